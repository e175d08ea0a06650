# blutrain's commands. Each makes .venv by itself, from the pinned versions in constraints/, with the
# newest Python of 3.11 to 3.13 that it finds.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
ARGS ?=
PYTEST_ARGS ?=

# CUDA major version that the driver speaks; empty without a GPU.
DRIVER := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9][0-9]*\).*/\1/p')
comma := ,
# Wheels of that version. The tests want a toolkit in any case: without a GPU they still compile
# every kernel to PTX and assemble it.
TOOLKIT := $(if $(filter 12,$(DRIVER)),cu12,cu13)
# On a GPU the training script's default is a BPE, which the data extra's library trains.
TRAIN_EXTRAS := $(if $(DRIVER),[data$(comma)$(TOOLKIT)])

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	-c constraints/constraints.txt -c constraints/$(TOOLKIT).txt
PINS := setup.cfg pyproject.toml constraints/constraints.txt constraints/$(TOOLKIT).txt

.PHONY: help train test lint format types pytest coverage docs bench-cpu bench-gpu clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

train: $(VENV)/.train ## train a GPT-2 on this machine, GPU or not (ARGS="--max-steps 100" goes to the script)
	$(BIN)/python examples/train_gpt2.py $(ARGS)

test: lint types pytest ## everything: lint, types, tests, docstrings, lessons

lint: $(VENV)/.test ## ruff's rules and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test ## lay the code out as `make lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.test ## mypy, strict for host code
	$(BIN)/mypy

# Each worker has a core: BLAS threads of its own would only wait for each other.
pytest: $(VENV)/.test ## the tests alone (PYTEST_ARGS="-k matmul", WORKERS=8)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

coverage: $(VENV)/.test ## the tests, and which host lines they ran
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine
	$(BIN)/coverage report

docs: $(VENV)/.test ## draw the tables in docs/ again from the code
	$(BIN)/python docs/make_op_table.py
	$(BIN)/python tests/kernel_table.py

bench-cpu: $(VENV)/.bench ## the CPU benchmarks beside PyTorch's figures, saved to benchmarks/results/
	BLUTRAIN_DEVICE=cpu $(BIN)/python benchmarks/bench_fidelity.py --save
	BLUTRAIN_DEVICE=cpu $(BIN)/python benchmarks/bench_launch.py --save
	BLUTRAIN_DEVICE=cpu $(BIN)/python benchmarks/bench_train_cpu.py --save

bench-gpu: $(VENV)/.bench ## the GPU benchmarks beside PyTorch's figures, saved to benchmarks/results/
	BLUTRAIN_DEVICE=cuda $(BIN)/python benchmarks/bench_fidelity.py --save
	BLUTRAIN_DEVICE=cuda $(BIN)/python benchmarks/bench_launch.py --save
	BLUTRAIN_DEVICE=cuda $(BIN)/python benchmarks/bench_gpt2.py --save
	BLUTRAIN_DEVICE=cuda $(BIN)/python benchmarks/bench_explain.py --save

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python counts only when it runs and can make an environment.
$(BIN)/python:
	@for name in $${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do \
		if "$$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
			2>/dev/null; then \
			echo "making $(VENV) with $$("$$name" --version)"; \
			exec "$$name" -m venv $(VENV); \
		fi; \
	done; \
	echo "make: needs Python 3.11 to 3.13 with venv and ensurepip, found none;" \
		"install one or name it: make PYTHON=/path/to/python3" >&2; exit 1

$(VENV)/.train: $(PINS) | $(BIN)/python
	$(INSTALL) -e '.$(TRAIN_EXTRAS)' matplotlib
	@touch $@

$(VENV)/.test: $(PINS) | $(BIN)/python
	$(INSTALL) -e '.[dev,$(TOOLKIT)]'
	@touch $@ $(VENV)/.train

$(VENV)/.bench: $(VENV)/.test benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@touch $@

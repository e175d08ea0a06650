"""The training script: kills, interrupts, resuming, bad input. Each run is a tiny model's."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from blutrain.errors import BlutrainError, CheckpointError, DataError
from blutrain.io.checkpoint import load_checkpoint
from blutrain.io.metrics import read_metrics

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt2.py"
STEPS = 12


@pytest.fixture(scope="session")
def script():
    spec = importlib.util.spec_from_file_location("train_gpt2", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_gpt2"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{k} squared is {k * k}.\n" for k in range(400)))
    return path


def flags(text, out, **changes):
    settings = {
        "data": text, "out_dir": out, "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8,
        "batch_size": 3, "gradient_accumulation_steps": 2, "dropout": 0.2, "max_steps": STEPS,
        "warmup_steps": 4, "checkpoint_interval": 4, "eval_interval": 3, "eval_batches": 2,
        "sample_tokens": 5, "preset": "tiny", "tokenizer": "bytes", **changes,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in settings.items()]


def run(text, out, before="", **changes):
    """Run the script in a process of its own, after some lines that may tamper with it."""
    program = f"""
import os, runpy, signal, sys
sys.argv[1:] = {flags(text, out, **changes)!r}
{textwrap.dedent(before)}
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=250,
    )


# The optimizer's step counts the steps: at the n-th, something happens to the process.
AT_STEP = """
    from blutrain import optim
    step = optim.AdamW.step
    def tampered(self, *args):
        step(self, *args)
        if self.steps == {n}:
            {what}
    optim.AdamW.step = tampered
"""


def numbers(out):
    """What must not differ by a bit: everything in the log but timings."""
    return [
        {k: v for k, v in line.items() if k not in ("tokens_per_second", "mfu")}
        for line in read_metrics(out / "metrics.jsonl")
    ]


@pytest.fixture(scope="session")
def whole(text, tmp_path_factory):
    """A run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole")
    done = run(text, out)
    assert done.returncode == 0, done.stderr
    return out, done


def test_a_whole_run(whole):
    out, done = whole
    lines = numbers(out)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if "held_out_loss" in line] == [3, 6, 9, 12]
    assert "held-out loss" in done.stdout
    assert "unigram entropy" in done.stdout
    assert load_checkpoint(out / "checkpoint.blutrain").state["step"] == STEPS
    if importlib.util.find_spec("matplotlib"):
        assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("step", [3, 7])
def test_killed_and_resumed_is_bit_identical(text, whole, tmp_path, step):
    """Killed before the first checkpoint, and between the first and the second."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    killed = run(text, tmp_path, AT_STEP.format(n=step, what=kill))
    assert killed.returncode == -signal.SIGKILL
    resumed = run(text, tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"from step {step // 4 * 4} to" in resumed.stdout
    assert numbers(tmp_path) == numbers(whole[0])


def test_killed_while_the_checkpoint_is_written(text, whole, tmp_path):
    """At the second checkpoint, with its data half on disk."""
    before = """
        fsync, calls = os.fsync, []
        def kill(descriptor):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.endswith("checkpoint.blutrain.partial"):
                calls.append(descriptor)
                if len(calls) == 2:
                    os.truncate(name, 1000)
                    os.kill(os.getpid(), signal.SIGKILL)
            fsync(descriptor)
        os.fsync = kill
    """
    killed = run(text, tmp_path, before)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "checkpoint.blutrain.partial").stat().st_size == 1000
    assert load_checkpoint(tmp_path / "checkpoint.blutrain").state["step"] == 4
    assert run(text, tmp_path).returncode == 0
    assert numbers(tmp_path) == numbers(whole[0])


@pytest.mark.parametrize("which", ["SIGINT", "SIGTERM"])
def test_interrupt_saves_first(text, whole, tmp_path, which):
    stop = f"os.kill(os.getpid(), signal.{which})"
    stopped = run(text, tmp_path, AT_STEP.format(n=6, what=stop))
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped at step 6; the same command goes on" in stopped.stdout
    assert load_checkpoint(tmp_path / "checkpoint.blutrain").state["step"] == 6
    if which == "SIGINT":
        assert run(text, tmp_path).returncode == 0
        assert numbers(tmp_path) == numbers(whole[0])


def test_a_finished_run_only_samples_again(text, whole):
    out, _ = whole
    before = numbers(out)
    again = run(text, out)
    assert again.returncode == 0, again.stderr
    assert numbers(out) == before


def test_errors_are_one_line(text, whole):
    out, _ = whole
    failed = run(text, out, n_layer=2)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: load_checkpoint: ")
    assert "same config, got n_layer 1 for 2; ask for the checkpoint's config" in failed.stderr
    assert "Traceback" not in failed.stderr


# ------------------------------------------------------------------ in this process
@pytest.fixture
def trainer(script, text, tmp_path):
    def make(**changes):
        return script.Trainer(script.parse(script.Settings, flags(text, tmp_path, **changes)))

    return make


def test_learns(trainer):
    run = trainer(max_steps=60, dropout=0.0, learning_rate=1e-2)
    losses = [run.train_step()["loss"] for _ in range(60)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 1
    assert run.evaluate() < run.baseline


def test_accumulation_is_a_larger_batch(trainer):
    """Two micro-batches of 3 give the gradient of their 6 windows."""
    two = trainer(dropout=0.0)
    one = trainer(dropout=0.0, batch_size=6, gradient_accumulation_steps=1)
    for _ in range(3):
        a, b = two.train_step(), one.train_step()
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)


def test_a_loss_that_is_not_finite_names_the_tensor(script, trainer, tmp_path):
    run = trainer()
    run.train_step()
    run.save()
    saved = (tmp_path / "checkpoint.blutrain").read_bytes()
    huge = np.full((64, 16), 1e38, np.float32)
    run.model.load_state_dict({"blocks.0.mlp.fc.weight": huge}, strict=False)
    before = {name: t.numpy() for name, t in run.model.state_dict().items()}
    with pytest.raises(script.NonFiniteError) as caught:
        run.train_step()
    text = str(caught.value)
    assert text.startswith("step 1: the loss must be finite; first not finite: activation ")
    assert "blocks.0.mlp.fc (" in text
    assert "checkpoint.blutrain is as it was" in text
    assert run.step == 1
    for name, t in run.model.state_dict().items():
        assert (t.numpy() == before[name]).all()
    assert (tmp_path / "checkpoint.blutrain").read_bytes() == saved


def test_a_parameter_that_is_not_finite_is_named(script, trainer):
    run = trainer()
    run.model.load_state_dict({"ln_f.bias": np.full(16, np.nan)}, strict=False)
    with pytest.raises(script.NonFiniteError, match=r"parameter ln_f.bias \(16 of 16 elements\)"):
        run.train_step()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"n_layer": 2}, CheckpointError, "n_layer 1 for 2"),
        ({"batch_size": 4}, CheckpointError, "batch_size 4 for 3"),
        ({"seed": 5}, CheckpointError, "seed 5 for 1337"),
        ({"n_head": 3}, BlutrainError, "multiple of n_head"),
        ({"data": "/nowhere.txt"}, DataError, "must be a readable text"),
        ({"vocab_size": 100}, DataError, "must be at least 256, got 100"),
    ],
)
def test_what_does_not_fit_changes_nothing(trainer, tmp_path, changes, error, says):
    run = trainer()
    run.train_step()
    run.save()
    run.log.write(step=1, loss=1.0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(error, match=says):
        trainer(**changes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resume_modes(trainer):
    with pytest.raises(CheckpointError, match="must be there for --resume=must"):
        trainer(resume="must")
    run = trainer()
    run.train_step()
    run.save()
    assert trainer(resume="must").step == 1
    assert trainer(resume="never").step == 0
    assert trainer().step == 1


def test_a_damaged_checkpoint_is_refused(trainer, tmp_path):
    run = trainer()
    run.save()
    path = tmp_path / "checkpoint.blutrain"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match="must be whole, got it is truncated"):
        trainer()


def test_other_hyperparameters_may_change_on_resume(trainer):
    run = trainer()
    run.train_step()
    run.save()
    again = trainer(learning_rate=5e-4, max_steps=50, beta1=0.8)
    assert again.train_step()["lr"] == pytest.approx(5e-4 * 2 / 4)
    assert again.optimizer.groups[0]["betas"][0] == 0.8
    assert again.optimizer.steps == 2


def test_the_sample_is_text_after_the_prompt(trainer):
    assert trainer(prompt="12 squared").sample().startswith("12 squared")


def test_metrics_are_json(whole):
    for line in (whole[0] / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        assert values["tokens_per_second"] > 0
        assert values["mfu"] > 0

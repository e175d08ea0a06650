"""Debug mode finds every planted bug, in its line and with all who have part in it."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import op_checks
import pytest
from cpu_executor import kernels
from cpu_executor.planted import BUGS, blocks_add, no_guard, with_guard

import blutrain as bt
from blutrain.autograd import registry
from blutrain.autograd.registry import OPS
from blutrain.device import TARGET, cpu
from blutrain.device.cpu.interpret import KernelFault
from blutrain.errors import DeviceError, ShapeError

ORDERS = ("ascending", "reversed", 11)
TESTS = Path(__file__).resolve().parent.parent


def marked(kernel):
    """The lines that have part in a kernel's bug, its device functions' included."""
    module = inspect.getmodule(kernel.py_func)
    called = [getattr(module, n, None) for n in kernel.py_func.__code__.co_names]
    functions = [kernel.py_func, *(c.py_func for c in called if hasattr(c, "py_func"))]
    found = set()
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        found |= {first + k for k, text in enumerate(lines) if text.rstrip().endswith("# BUG")}
    return found


def run(case, kernel, order):
    arguments = case.arguments()
    cpu.run(kernel, case.grid, case.block, *arguments, shared=case.shared, debug=True, order=order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(name, order):
    case = BUGS[name]
    with pytest.raises(KernelFault) as caught:
        run(case, case.bug, order)
    fault = caught.value
    assert fault.kind == case.kind
    assert fault.array == case.array
    lines = marked(case.bug)
    assert lines
    assert fault.site.line in lines
    assert {s.line for s in fault.sites} <= lines
    text = str(fault)
    assert f"{fault.site.file}:{fault.site.line}" in text
    assert fault.site.text in text
    assert case.bug.py_func.__name__ in text
    if case.kind == "race":
        assert fault.places[0] != fault.places[1]
        assert text.count("of block") == 2


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", BUGS)
def test_without_the_bug_nothing_is_found(name, order):
    case = BUGS[name]
    run(case, case.right, order)


def test_there_are_twenty_bugs_at_least():
    assert len(BUGS) >= 20
    assert len({case.bug for case in BUGS.values()}) == len(BUGS)
    assert np.unique([case.kind for case in BUGS.values()]).size == 7


# No false alarms ---------------------------------------------------------------------------------

# Elements of all of a sample's inputs; with more it takes seconds.
SMALL = 200


def samples():
    """All (op, sample), those that take long marked so."""
    for op in OPS.values():
        for sample in op.samples(np.random.default_rng(0)):
            sizes = [0]
            for given in sample.inputs:
                op_checks.map_arrays(given, lambda v, sizes=sizes: sizes.append(v.size))
            # A block of a matrix product computes a whole tile, however small the matrices.
            batched = op.name in ("matmul", "linear") and any(np.ndim(v) > 2 for v in sample.inputs)
            slow = sum(sizes) > SMALL or batched or "attention" in op.name
            marks = [pytest.mark.long] if slow else []
            yield pytest.param(op, sample, marks=marks, id=f"{op.name}-{sample.name}")


@pytest.mark.skipif(TARGET == "cuda", reason="kernels are checked on the CPU")
@pytest.mark.parametrize("op, sample", list(samples()))
def test_no_false_alarm_on_an_op(op, sample):
    """And values and gradients are those of compiled kernels, to rounding."""
    # The portable kernels are the definition; BLAS, where it is faster, is no kernel.
    with registry.portable_only(), bt.debug():
        op_checks.check_forward(op, sample, bt.float32, "dense")
        got = op_checks.gradients(op, sample, bt.float32, "dense")[0] if op.differentiable else []
    want = op_checks.gradients(op, sample, bt.float32, "dense")[0] if op.differentiable else []
    for a, b in zip(got, want, strict=True):
        op_checks.assert_close(a, b, 1e-4, 1e-5, op.name)


@pytest.mark.skipif(TARGET == "cuda", reason="kernels are checked on the CPU")
@pytest.mark.parametrize("dtype", [bt.float16, bt.bfloat16, bt.float64], ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "linear", "gelu"])
def test_other_types(name, dtype):
    op = OPS[name]
    sample = min(
        op.samples(np.random.default_rng(0)), key=lambda s: sum(np.size(i) for i in s.inputs)
    )
    with registry.portable_only(), bt.debug(order="reversed"):
        op_checks.check_forward(op, sample, dtype, "dense")


# Switches ----------------------------------------------------------------------------------------


@pytest.mark.skipif(TARGET == "cuda", reason="kernels are checked on the CPU")
def test_mode_ends_with_its_block_or_when_switched_off():
    x = bt.zeros(40)
    too_many = (no_guard, 1, 64, x)
    with bt.debug():
        with pytest.raises(KernelFault, match="x\\[40\\]"):
            bt.launch(*too_many)
        with bt.debug(False):
            bt.launch(with_guard, 1, 64, x)
        with pytest.raises(KernelFault):
            bt.launch(*too_many)
    bt.debug()
    with pytest.raises(KernelFault):
        bt.launch(*too_many)
    bt.debug(False)
    bt.launch(with_guard, 1, 64, x)
    assert x.tolist() == list(range(40))


def test_mode_ends_when_an_error_leaves_its_block():
    if TARGET == "cuda":
        pytest.skip("kernels are checked on the CPU")
    with pytest.raises(KernelFault), bt.debug():
        bt.launch(no_guard, 1, 64, bt.zeros(40))
    bt.launch(with_guard, 1, 64, bt.zeros(40))


@pytest.mark.parametrize("value, found", [
    ("1", True), ("reversed", True), ("5", True), ("", False), ("0", False),
])  # fmt: skip
def test_environment(value, found):
    script = (
        "import blutrain as bt\n"
        "from cpu_executor.planted import blocks_add\n"
        "bt.launch(blocks_add, 3, 32, bt.ones(3), bt.zeros(1))\n"
    )
    path = os.pathsep.join(map(str, (TESTS, TESTS.parent)))
    environment = {**os.environ, "BLUTRAIN_DEVICE": "cpu", "BLUTRAIN_DEBUG": value}
    environment["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert ("KernelFault" in done.stderr) == found, done.stderr
    assert (done.returncode != 0) == found


def test_bad_switches():
    from blutrain.device.cpu.debug.mode import from_environment

    for value in ("yes", "-1", "²"):
        with pytest.raises(ShapeError, match="BLUTRAIN_DEBUG: must be 1, reversed"):
            from_environment(value)
    with pytest.raises(ShapeError, match="order must be"):
        bt.debug(order="random")


@pytest.mark.skipif(TARGET != "cuda", reason="only a GPU refuses")
def test_gpu_says_what_to_do():
    with pytest.raises(DeviceError, match="BLUTRAIN_DEVICE=cpu"):
        bt.debug()


def test_orders_change_a_race():
    """Unchecked, a race gives other results in another order: what the orders are for."""
    from blutrain.device.cpu.interpret import interpret

    results = set()
    for order in ("ascending", "reversed"):
        x = np.arange(64, dtype=np.float32)
        interpret(BUGS["neighbours in place"].bug, 1, 64, x, order=order)
        results.add(x.tobytes())
    assert len(results) == 2


def test_message_has_all_that_one_needs():
    with pytest.raises(KernelFault) as caught:
        cpu.run(blocks_add, 3, 32, np.ones(3, np.float32), np.zeros(1, np.float32), debug=True)
    fault = caught.value
    line = fault.site.line
    assert str(fault) == (
        f"kernel blocks_add ({fault.site.file}:{line}, `total[0] += v  # BUG`): race: thread "
        f"(0, 0, 0) of block (1, 0, 0) loads global array total[0], and thread (0, 0, 0) of block "
        f"(0, 0, 0) stores to it in {fault.site.file}:{line} `total[0] += v  # BUG`, with nothing "
        f"that orders them; blocks have no order: use cuda.atomic or two launches, or "
        f"publish what is stored by a cuda.threadfence() before an atomic"
    )


@pytest.mark.parametrize("kernel, arguments", [
    (kernels.last_block_sums, lambda: (np.ones(100, np.float32), np.zeros(4, np.float32),
                                       np.zeros(1, np.int32), np.zeros(1, np.float32))),
    (kernels.column_sums, lambda: (np.ones((4, 50), np.float32), np.zeros(50, np.float32))),
    (kernels.histogram, lambda: (np.arange(64).reshape(8, 8), np.zeros(64, np.int32))),
])  # fmt: skip
def test_blocks_that_work_together_rightly(kernel, arguments):
    block = (8, 8) if kernel is kernels.histogram else 64
    cpu.run(kernel, 4, block, *arguments(), debug=True)

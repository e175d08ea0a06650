"""Kernels on the CPU executor: against Numba's simulator, against NumPy, and how long they compile.

The simulator runs each thread of a block as a Python thread; it is measured in a process of its
own, because NUMBA_ENABLE_CUDASIM is read when Numba is imported. NumPy multiplies matrices with
OpenBLAS; both are given one core, and the SGEMM two as well.

    usage: python benchmarks/bench_cpu_executor.py [--save]
"""

from __future__ import annotations

import os

# Before NumPy is imported: its BLAS asks then, and once, how many threads it may use.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ["BLUTRAIN_DEVICE"] = "cpu"

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# A simulated layer norm takes seconds; three are enough for a ratio of 100,000.
SIMULATED, REPEATS = 3, 9
SGEMM_N = 1024
HEADS, TOKENS = 8, 512


def simulated_cases() -> dict[str, tuple[Any, Any, Any, list[Any], Array]]:
    """Kernel, grid, block, arguments and expected result of the cases that the simulator runs."""
    import cpu_executor_kernels as kernels

    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, np.float32)

    x, y = normal(kernels.ADD_N), normal(kernels.ADD_N)
    n, tile = kernels.MATMUL_N, kernels.TILE
    a, b = normal(n, n), normal(n, n)
    rows = normal(kernels.NORM_ROWS, kernels.NORM_COLS)
    weight, bias = normal(kernels.NORM_COLS), normal(kernels.NORM_COLS)
    centred = rows - rows.mean(1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    eps = np.float32(1e-5)
    block = kernels.ADD_BLOCK
    return {
        f"add of {kernels.ADD_N:,}": (
            kernels.add_kernel, -(-kernels.ADD_N // block), block, [x, y, np.zeros_like(x)], x + y,
        ),
        f"tiled matmul {n}^3": (
            kernels.matmul_kernel, (n // tile, n // tile), (tile, tile),
            [a, b, np.zeros_like(a)], a @ b,
        ),
        f"layer norm {kernels.NORM_ROWS}x{kernels.NORM_COLS}": (
            kernels.layer_norm_kernel, kernels.NORM_ROWS, kernels.NORM_BLOCK,
            [rows, weight, bias, np.zeros_like(rows), eps], normed,
        ),
    }  # fmt: skip


def output_of(arguments: list[Any]) -> Array:
    """The array that a kernel writes: the last one."""
    return [a for a in arguments if isinstance(a, np.ndarray)][-1]


def simulate() -> None:
    """Print the simulator's seconds for each case as JSON; runs in a process of its own."""
    medians = {}
    for case, (kernel, grid, block, arguments, expected) in simulated_cases().items():
        seconds = []
        for _ in range(SIMULATED):
            start = time.perf_counter()
            kernel[grid, block](*arguments)
            seconds.append(time.perf_counter() - start)
        assert np.allclose(output_of(arguments), expected, rtol=1e-4, atol=1e-4), case
        medians[case] = float(np.median(seconds))
    print(json.dumps(medians))


def seconds_of(call: Callable[[], object], at_least: float = 0.05) -> float:
    """Seconds a call, over as many calls as take `at_least`."""
    calls, elapsed = 0, 0.0
    start = time.perf_counter()
    while elapsed < at_least:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
    return elapsed / calls


def launcher(
    kernel: Any, grid: Any, block: Any, arguments: list[Any], shared: int = 0
) -> Callable[[], object]:
    """A call that runs a kernel; `shared` bytes of dynamic shared memory."""
    from blutrain.device import cpu

    return lambda: cpu.run(kernel, grid, block, *arguments, shared=shared)


def simulator_rows() -> list[Any]:
    """Each case beside the simulator."""
    from report import Row, median

    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, __file__, "--simulate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for case, (kernel, grid, block, arguments, expected) in simulated_cases().items():
        call = launcher(kernel, grid, block, arguments)
        call()
        assert np.allclose(output_of(arguments), expected, rtol=1e-4, atol=1e-4), case
        ours = median([seconds_of(call) for _ in range(REPEATS)])
        rows.append(Row(case, "time", "us", "lower", ours * 1e6, "simulator", theirs[case] * 1e6))
    return rows


def sgemm_rows() -> list[Any]:
    """The register-blocked matrix product on one core and on two, beside NumPy's on one."""
    import cpu_executor_kernels as kernels
    from report import Row, alternate, cores, median

    rng = np.random.default_rng(1)
    n = SGEMM_N
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    c, grid = np.zeros((n, n), np.float32), (n // kernels.BLOCK_N, n // kernels.BLOCK_M)
    call = launcher(kernels.sgemm_kernel, grid, kernels.SGEMM_THREADS, [a, b, c])
    giga = 2 * n**3 / 1e9

    def on(n_cores: int) -> Callable[[], float]:
        def measured() -> float:
            os.environ["BLUTRAIN_CPU_THREADS"] = str(n_cores)
            return giga / seconds_of(call)

        return measured

    one, two, numpy = alternate([on(1), on(2), lambda: giga / seconds_of(lambda: a @ b)], REPEATS)
    os.environ["BLUTRAIN_CPU_THREADS"] = "1"
    assert np.allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    what, unit = f"SGEMM {n}^3", ("throughput", "GFLOP/s", "higher")
    rows = [Row(f"{what}, one core", *unit, median(one), "numpy", median(numpy))]
    if cores() > 1:
        rows.append(Row(f"{what}, two cores", *unit, median(two)))
    return rows


def numpy_attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    """softmax(q kT scale) v, in place where NumPy can."""
    s = q @ k.transpose(0, 2, 1)
    s *= np.float32(scale)
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    total = s.sum(-1, keepdims=True)
    out: Array = s @ v
    out /= total
    return out


def attention_row() -> Any:
    """Flash attention, forward, on one core beside NumPy's."""
    import cpu_executor_kernels as kernels
    from report import Row, alternate, median

    rng = np.random.default_rng(2)
    shape, scale = (HEADS, TOKENS, kernels.HEAD), np.float32(kernels.HEAD**-0.5)
    q, k, v = (rng.standard_normal(shape, np.float32) for _ in range(3))
    out = np.zeros(shape, np.float32)
    grid = (TOKENS // kernels.QUERIES, HEADS)
    kernel, block = kernels.flash_attention_kernel, kernels.ATTENTION_THREADS
    call = launcher(kernel, grid, block, [q, k, v, out, scale], 4 * kernels.ATTENTION_SHARED)
    giga = 4 * HEADS * TOKENS**2 * kernels.HEAD / 1e9
    os.environ["BLUTRAIN_CPU_THREADS"] = "1"
    ours, theirs = alternate(
        [lambda: giga / seconds_of(call),
         lambda: giga / seconds_of(lambda: numpy_attention(q, k, v, float(scale)))], REPEATS,
    )  # fmt: skip
    assert np.allclose(out, numpy_attention(q, k, v, float(scale)), rtol=1e-4, atol=1e-4)
    case = f"flash attention {HEADS}x{TOKENS}x{kernels.HEAD}, one core"
    return Row(case, "throughput", "GFLOP/s", "higher", median(ours), "numpy", median(theirs))


def compile_times() -> None:
    """Print each kernel's seconds to compile as JSON; in a process of its own, as a user's is."""
    import cpu_executor_kernels as kernels
    from numba import types

    from blutrain.device import cpu

    f1, f2, f3 = (types.Array(types.float32, d, "C") for d in (1, 2, 3))
    scalar = types.float32
    wanted: dict[str, tuple[Any, tuple[int, int, int], list[Any]]] = {
        "add": (kernels.add_kernel, (kernels.ADD_BLOCK, 1, 1), [f1] * 3),
        "tiled matmul": (kernels.matmul_kernel, (kernels.TILE, kernels.TILE, 1), [f2] * 3),
        "layer norm": (
            kernels.layer_norm_kernel, (kernels.NORM_BLOCK, 1, 1), [f2, f1, f1, f2, scalar],
        ),
        "SGEMM": (kernels.sgemm_kernel, (kernels.SGEMM_THREADS, 1, 1), [f2] * 3),
        "flash attention": (
            kernels.flash_attention_kernel,
            (kernels.ATTENTION_THREADS, 1, 1), [f3] * 4 + [scalar],
        ),
    }  # fmt: skip
    # What Numba sets up once a process is no kernel's time.
    cpu.compile_kernel(kernels.add_kernel, (32, 1, 1), [f1] * 3)
    seconds = {}
    for name, (kernel, block, kinds) in wanted.items():
        start = time.perf_counter()
        cpu.compile_kernel(kernel, block, kinds)
        seconds[name] = time.perf_counter() - start
    print(json.dumps(seconds))


def compile_rows() -> list[Any]:
    """First compile and a load from the disk cache, each kernel."""
    from report import Row, median

    measured: list[list[dict[str, float]]] = [[], []]
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "BLUTRAIN_CACHE": cache}
            for kind in range(2):  # an empty cache, then the one that the first run filled
                done = subprocess.run(
                    [sys.executable, __file__, "--compile"], env=environment,
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                measured[kind].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for what, runs in zip(("first compile", "from the disk cache"), measured, strict=True):
        for name in runs[0]:
            value = median([run[name] for run in runs])
            rows.append(Row(f"{name}, {what}", "time", "s", "lower", value))
    return rows


def main() -> None:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    if arguments.simulate:
        return simulate()
    if arguments.compile:
        return compile_times()
    from report import finish

    os.environ["BLUTRAIN_CPU_THREADS"] = "1"
    rows = [*simulator_rows(), *sgemm_rows(), attention_row(), *compile_rows()]
    notes = {"repeats": REPEATS, "simulated": SIMULATED, "blas_threads": 1}
    finish("cpu_executor", rows, arguments.save, notes)
    return None


if __name__ == "__main__":
    main()

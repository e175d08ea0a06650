"""Random kernels, run by the compiled executor and by an interpreter of single threads.

Their integers must agree to the last bit, floating-point numbers to float32's precision. Many
more than the test suite has time for: `python tests/cpu_executor/fuzz.py --kernels 2000`.
"""

from __future__ import annotations

import argparse
import linecache
import os
import random
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":  # as a script, it is not in the package that its neighbours are in
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cpu_executor.interpreter import N_BLOCKS, interpret
from cpu_executor.writer import Writer

from blutrain.device import cpu

Array = np.ndarray[Any, Any]


def module_of(text: str, filename: str) -> dict[str, Any]:
    """Execute a module that is in no file, so that its source can still be found."""
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    namespace: dict[str, Any] = {"__name__": filename}
    exec(compile(text, filename, "exec"), namespace)
    return namespace


OPTIONS = (
    cpu.Options(),
    cpu.Options(reverse=True),
    cpu.Options(shuffle=1, poison=True, check_barriers=True, check_bounds=True),
)


def _compare(expected: Sequence[Array], got: Sequence[Array]) -> str:
    """Where two kernels' results differ; "" if nowhere."""
    for a, b in zip(expected, got, strict=True):
        # Numbers from 0 to 2, perhaps in float32 in the kernel and always in float64 in Python.
        same = np.abs(a - b) < 1e-4 if a.dtype == np.float64 else a == b
        if not same.all():
            where = np.argwhere(~same)
            return f"{len(where)} {a.dtype} of {a.size} differ, last index {set(where[:, -1])}"
    return ""


def check(seed: int, ways: Sequence[cpu.Options] = OPTIONS) -> str:
    """Compare executor and interpreter on one random kernel; gives "" or what is wrong."""
    writer = Writer(seed)
    text, n_threads = writer.text(), writer.n_threads
    data = np.random.default_rng(seed).integers(0, 100, n_threads)
    n = seed % 5 + 1

    def outputs() -> list[Array]:
        shapes = ((N_BLOCKS, n_threads, 7), (N_BLOCKS, 300), (N_BLOCKS, n_threads, 4), (8,))
        kinds = (np.int64, np.int64, np.float64, np.int64)
        return [np.zeros(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]

    order = list(range(n_threads))
    expected = outputs()
    interpret(text, writer.grid, writer.block, (data.tolist(), n, *expected), order)
    other = outputs()
    random.Random(seed).shuffle(order)
    interpret(text, writer.grid, writer.block, (data.tolist(), n, *other), order)
    assert _compare(expected, other) == "", f"kernel {seed} has a race"
    kernel = module_of(text, f"<fuzz {seed}>")["kernel"]
    for options in ways:
        got = outputs()
        try:
            cpu.run(kernel, writer.grid, writer.block, data, n, *got, options=options)
        except Exception:
            return f"{options}: {traceback.format_exc(limit=-2)}"
        wrong = _compare(expected, got)
        if wrong:
            return f"{options}: {wrong}"
    return ""


def apart(seed: int) -> str:
    """As `check`, in a process of its own: LLVM's assertions end the process that they fail in."""
    child = os.fork()
    if child == 0:
        wrong = check(seed)
        if wrong:
            print(f"seed {seed}: {wrong}", flush=True)
        os._exit(1 if wrong else 0)
    status = os.waitpid(child, 0)[1]
    return f"process ended with {status}" if status else ""


def main() -> int:
    """Check random kernels, and print what is wrong; gives how many are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    arguments = parser.parse_args()
    bad = 0
    check(0)  # what Numba sets up once, it sets up for all
    for seed in range(arguments.first, arguments.first + arguments.kernels):
        wrong = apart(seed)
        if wrong:
            bad += 1
            print(f"seed {seed}: {wrong}", flush=True)
    print(f"{arguments.kernels} kernels, {bad} wrong")
    return bad


if __name__ == "__main__":
    sys.exit(main() > 0)

"""Random kernels, run by the compiled executor and by an interpreter of single threads.

Their results must agree to the last bit. Many more than the test suite has time for:
`python tests/cpu_executor/fuzz.py --kernels 2000`.
"""

from __future__ import annotations

import argparse
import linecache
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


def check(seed: int, ways: Sequence[cpu.Options] = OPTIONS) -> str:
    """Compare executor and interpreter on one random kernel; gives "" or what is wrong."""
    writer = Writer(seed)
    text, n_threads = writer.text(), writer.n_threads
    data = np.random.default_rng(seed).integers(0, 100, n_threads)
    n = seed % 5 + 1

    def outputs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return np.zeros((N_BLOCKS, n_threads, 7), np.int64), np.zeros((N_BLOCKS, 300), np.int64)

    order = list(range(n_threads))
    expected = outputs()
    interpret(text, writer.block, (data.tolist(), n, *expected), order)
    other = outputs()
    random.Random(seed).shuffle(order)
    interpret(text, writer.block, (data.tolist(), n, *other), order)
    for a, b in zip(expected, other, strict=True):
        assert (a == b).all(), f"kernel {seed} has a race"
    kernel = module_of(text, f"<fuzz {seed}>")["kernel"]
    for options in ways:
        got = outputs()
        try:
            cpu.run(kernel, N_BLOCKS, writer.block, data, n, *got, options=options)
        except Exception:
            return f"{options}: {traceback.format_exc(limit=-2)}"
        for a, b in zip(expected, got, strict=True):
            if not (a == b).all():
                where = np.argwhere(a != b)
                return f"{options}: {len(where)} of {a.size} differ, last index {set(where[:, -1])}"
    return ""


def main() -> int:
    """Check random kernels, and print what is wrong; gives how many are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    arguments = parser.parse_args()
    bad = 0
    for seed in range(arguments.first, arguments.first + arguments.kernels):
        wrong = check(seed)
        if wrong:
            bad += 1
            print(f"seed {seed}: {wrong}", flush=True)
    print(f"{arguments.kernels} kernels, {bad} wrong")
    return bad


if __name__ == "__main__":
    sys.exit(main() > 0)

"""What a launch costs the host, ours beside Numba's own, and what an allocation costs.

A kernel that does nothing with three 1-D float32 arrays is launched many times; the time per
launch is the host's, the queue is emptied in between. On the cpu target, where Numba's own
launcher has no counterpart but a simulator, only ours is measured.

    usage: python benchmarks/bench_launch.py [--save]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from numba import cuda
from report import Row, alternate, finish, median

from blutrain import dtypes
from blutrain.device import TARGET, launch, synchronize
from blutrain.device.array import Array
from blutrain.memory import free, malloc

# Fewer than the driver's queue holds (1024): a full queue would make the host wait for the GPU.
LAUNCHES, REPEATS = 500, 20
ELEMENTS, BLOCK = 1024, 256


@cuda.jit
def touch_kernel(x: Any, y: Any, z: Any) -> None:
    """The least that uses all three arguments."""
    i = cuda.grid(1)
    if i < x.size:
        z[i] = x[i] + y[i]


def microseconds_per_call(call: Callable[[], object]) -> float:
    """The host's time for one of many calls, with the device idle before them."""
    synchronize()
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        call()
    elapsed = time.perf_counter() - start
    synchronize()
    return elapsed / LAUNCHES * 1e6


def launch_row() -> Row:
    """One launch with three 1-D arrays."""
    blocks = [malloc(4 * ELEMENTS) for _ in range(3)]
    x, y, z = (Array(b.pointer, (ELEMENTS,), (4,), dtypes.float32, "C", b) for b in blocks)
    grid = ELEMENTS // BLOCK

    def ours() -> float:
        return microseconds_per_call(lambda: launch(touch_kernel, grid, BLOCK, x, y, z))

    case = f"launch, three 1-D arrays of {ELEMENTS}"
    if TARGET == "cpu":
        (measured,) = alternate([ours], REPEATS)
        return Row(case, "time", "us", "lower", median(measured))
    a, b, c = (cuda.device_array(ELEMENTS, "float32") for _ in range(3))
    configured = touch_kernel[grid, BLOCK]

    def theirs() -> float:
        return microseconds_per_call(lambda: configured(a, b, c))

    measured, peers = alternate([ours, theirs], REPEATS)
    return Row(case, "time", "us", "lower", median(measured), "numba-cuda", median(peers))


def allocation_row(nbytes: int) -> Row:
    """One allocation and its release, cached."""

    def ours() -> float:
        return microseconds_per_call(lambda: free(malloc(nbytes)))

    case = f"malloc and free, {nbytes >> 10} KiB"
    (measured,) = alternate([ours], REPEATS)
    return Row(case, "time", "us", "lower", median(measured))


def main() -> None:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    rows = [launch_row(), allocation_row(4 << 10), allocation_row(48 << 20)]
    finish("launch", rows, arguments.save, {"launches": LAUNCHES, "repeats": REPEATS})


if __name__ == "__main__":
    main()

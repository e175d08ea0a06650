"""The cost model on the CPU beside the hardware's own counters.

Kernels with known troubles: a coalesced, a strided and a shifted copy, and transposes by tiles of
shared memory, of 4 and of 8 bytes an element, with and without a column of padding. `bt.explain`
counts them on the CPU; on a GPU each is also run under NVIDIA's profiler, and the two must agree.
Without a GPU only ours are shown.

    usage: python benchmarks/bench_explain.py [--save]
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, float64
from report import Row, finish

import blutrain as bt

N, STRIDE, BLOCK = 1 << 20, 8, 256
TILE, PADDED, ROWS, SIDE = 32, 33, 8, 1024
MOST_OFF = 0.02


@cuda.jit
def coalesced_copy_kernel(
    x: Any,  # (n,)
    y: Any,  # (n,)
) -> None:
    """y = x, neighbouring threads on neighbouring elements."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i]


@cuda.jit
def strided_copy_kernel(
    x: Any,  # (n,)
    y: Any,  # (n / STRIDE,)
) -> None:
    """Every STRIDE-th element of x."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[STRIDE * i]


@cuda.jit
def transpose_kernel(
    x: Any,  # (n_rows, n_cols)
    y: Any,  # (n_cols, n_rows)
) -> None:
    """y = x.T by tiles; a column of a tile lies in one bank."""
    tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for k in range(0, TILE, ROWS):
        tile[ty + k, tx] = x[row + ty + k, col + tx]
    cuda.syncthreads()  # the tile is complete
    for k in range(0, TILE, ROWS):
        y[col + ty + k, row + tx] = tile[tx, ty + k]


@cuda.jit
def padded_transpose_kernel(
    x: Any,  # (n_rows, n_cols)
    y: Any,  # (n_cols, n_rows)
) -> None:
    """The same with rows of 33: a column then lies in all 32 banks."""
    tile = cuda.shared.array((TILE, PADDED), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for k in range(0, TILE, ROWS):
        tile[ty + k, tx] = x[row + ty + k, col + tx]
    cuda.syncthreads()  # the tile is complete
    for k in range(0, TILE, ROWS):
        y[col + ty + k, row + tx] = tile[tx, ty + k]


@cuda.jit
def shifted_copy_kernel(
    x: Any,  # (n,)
    y: Any,  # (n - 1,)
) -> None:
    """y[i] = x[i + 1]: a warp's 128 bytes reach into a fifth sector."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i + 1]


@cuda.jit
def transpose_f64_kernel(
    x: Any,  # (n_rows, n_cols)
    y: Any,  # (n_cols, n_rows)
) -> None:
    """The transpose of float64: 8 bytes a lane are served by half-warps."""
    tile = cuda.shared.array((TILE, TILE), float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for k in range(0, TILE, ROWS):
        tile[ty + k, tx] = x[row + ty + k, col + tx]
    cuda.syncthreads()  # the tile is complete
    for k in range(0, TILE, ROWS):
        y[col + ty + k, row + tx] = tile[tx, ty + k]


@cuda.jit
def padded_transpose_f64_kernel(
    x: Any,  # (n_rows, n_cols)
    y: Any,  # (n_cols, n_rows)
) -> None:
    """The same with rows of 33."""
    tile = cuda.shared.array((TILE, PADDED), float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for k in range(0, TILE, ROWS):
        tile[ty + k, tx] = x[row + ty + k, col + tx]
    cuda.syncthreads()  # the tile is complete
    for k in range(0, TILE, ROWS):
        y[col + ty + k, row + tx] = tile[tx, ty + k]


class Case(NamedTuple):
    """A kernel and how it is launched, with arguments of these shapes."""

    kernel: Any
    grid: Any
    block: Any
    x: tuple[int, ...]
    y: tuple[int, ...]
    dtype: str = "float32"


SQUARE = (SIDE // TILE, SIDE // TILE), (TILE, ROWS), (SIDE, SIDE), (SIDE, SIDE)
CASES = {
    "coalesced copy": Case(coalesced_copy_kernel, N // BLOCK, BLOCK, (N,), (N,)),
    "strided copy": Case(strided_copy_kernel, N // STRIDE // BLOCK, BLOCK, (N,), (N // STRIDE,)),
    "transpose": Case(transpose_kernel, *SQUARE),
    "padded transpose": Case(padded_transpose_kernel, *SQUARE),
    "shifted copy": Case(shifted_copy_kernel, N // BLOCK, BLOCK, (N + 1,), (N,)),
    "float64 transpose": Case(transpose_f64_kernel, *SQUARE, "float64"),
    "padded float64 transpose": Case(padded_transpose_f64_kernel, *SQUARE, "float64"),
}
# The profiler's counters by what we call them.
COUNTERS = {
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
}


def ours(case: Case) -> dict[str, float]:
    """What the cost model counts for the whole grid."""
    x, y = (np.zeros(shape, case.dtype) for shape in (case.x, case.y))
    total = bt.explain(case.kernel, case.grid, case.block, x, y).grid_total
    return {
        "global_load_sectors": total.global_loads.sectors,
        "global_store_sectors": total.global_stores.sectors,
        "global_load_requests": total.global_loads.requests,
        "global_store_requests": total.global_stores.requests,
        "shared_load_conflicts": total.shared_loads.conflicts,
        "shared_store_conflicts": total.shared_stores.conflicts,
    }


def launch_once(case: Case) -> None:
    """What the profiler looks at."""
    x, y = bt.rand(case.x, dtype=case.dtype), bt.zeros(case.y, case.dtype)
    bt.launch(case.kernel, case.grid, case.block, x, y)
    bt.synchronize()


def profiled() -> dict[str, dict[str, float]]:
    """The hardware's counters of every case, by the names of `COUNTERS`.

    Raises:
        RuntimeError: the profiler failed.
    """
    command = ["ncu", "--csv", "--clock-control", "none"]
    command += ["--metrics", ",".join(COUNTERS.values()), sys.executable, __file__, "--launch-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # The table begins after the program's own output and the profiler's messages.
    start = done.stdout.find('"ID"')
    if done.returncode != 0 or start < 0:
        raise RuntimeError(f"ncu: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    names = {counter: ours for ours, counter in COUNTERS.items()}
    found: dict[str, dict[str, float]] = {name: {} for name in CASES}
    for line in csv.DictReader(io.StringIO(done.stdout[start:])):
        for name, case in CASES.items():
            # Other kernels fill the arrays, and one name ends like another.
            if re.search(rf"(?<![a-z_]){case.kernel.py_func.__name__}", line["Kernel Name"]):
                value = float(line["Metric Value"].replace(",", ""))
                found[name][names[line["Metric Name"]]] = value
    if any(len(counted) != len(COUNTERS) for counted in found.values()):
        raise RuntimeError(f"ncu did not count everything: {done.stdout[-2000:]}")
    return found


def rows(measured: dict[str, dict[str, float]]) -> list[Row]:
    """Ours beside the profiler's; counters that are 0 in both are left out."""
    found = []
    for name, case in CASES.items():
        theirs = measured.get(name, {})
        for metric, value in ours(case).items():
            counted = theirs.get(metric)
            if value or counted:
                peer = "ncu" if measured else None
                found.append(Row(name, metric, "count", "lower", value, peer, counted))
    return found


def off(row: Row) -> float:
    """By what share ours differs from the profiler's."""
    assert row.theirs is not None
    return abs(row.ours - row.theirs) / max(row.theirs, 1)


def main() -> None:
    """Count, measure where there is a profiler, print, and save if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--launch-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch_only:
        for case in CASES.values():
            launch_once(case)
        return
    can_profile = bt.TARGET == "cuda" and shutil.which("ncu") is not None
    found = rows(profiled() if can_profile else {})
    finish("explain", found, arguments.save and can_profile, {"n": N, "side": SIDE})
    wrong = [row for row in found if row.theirs is not None and off(row) > MOST_OFF]
    for row in wrong:
        print(f"{row.case}, {row.metric}: {row.ours:,.0f}, but ncu counts {row.theirs:,.0f}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

"""A transposed copy of float32 matrices, for tensor cores that read TF32 along K alone.

    target[b, c, r] = source[b, r, c]

A block turns a square through shared memory, so that both sides are read and written in whole
lines. One read and one write an element: bound by device memory.
"""

from __future__ import annotations

from numba import cuda, float32

from blutrain.cuda_kernels.common import blocks_for
from blutrain.device import launch
from blutrain.device.array import Array

SIDE = 64  # of a square
THREADS = 256
# One column more than a square has: a warp reads a column of it from 32 different banks.
PITCH = SIDE + 1


@cuda.jit
def transpose_kernel(
    source,  # (n_batch, n_rows, n_cols)
    target,  # (n_batch, n_cols, n_rows)
):
    square = cuda.shared.array((SIDE, PITCH), float32)
    n_rows = source.shape[1]
    n_cols = source.shape[2]
    across = (n_cols + SIDE - 1) // SIDE
    down = (n_rows + SIDE - 1) // SIDE
    batch = cuda.blockIdx.x // (across * down)
    place = cuda.blockIdx.x % (across * down)
    row0 = place // across * SIDE
    col0 = place % across * SIDE
    fast = cuda.threadIdx.x % SIDE
    slow = cuda.threadIdx.x // SIDE
    for i in range(0, SIDE, THREADS // SIDE):
        if row0 + slow + i < n_rows and col0 + fast < n_cols:
            square[slow + i, fast] = source[batch, row0 + slow + i, col0 + fast]
    cuda.syncthreads()  # the square is complete
    for i in range(0, SIDE, THREADS // SIDE):
        if row0 + fast < n_rows and col0 + slow + i < n_cols:
            target[batch, col0 + slow + i, row0 + fast] = square[fast, slow + i]


def transpose(source: Array, target: Array) -> None:
    """Write `source` (n_batch, n_rows, n_cols) into `target` (n_batch, n_cols, n_rows)."""
    n_batch, n_rows, n_cols = source.shape
    grid = n_batch * blocks_for(n_rows, SIDE) * blocks_for(n_cols, SIDE)
    launch(transpose_kernel, grid, THREADS, source, target)

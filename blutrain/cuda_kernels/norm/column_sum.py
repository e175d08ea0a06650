"""The second stage of a sum over rows, shared by the norms: partial sums to a parameter's gradient.

The first stage (in each op's own file) leaves, for every column, one partial sum a chunk of rows,
as a dense row of `n_chunks` values. Here one warp adds up each such row. Both stages add in an
order that depends on the shape alone, so the result is the same bits every time.
"""

from __future__ import annotations

from numba import cuda, float32

from blutrain.cuda_kernels.common import N_WARPS, ROWS_BLOCK, WARP, blocks_for, warp_sum
from blutrain.device import launch
from blutrain.dtypes import DType
from blutrain.tensor import Tensor, empty, zeros

# Enough chunks to fill a large GPU several times over at 768 columns (3 blocks a chunk), few enough
# that the second stage stays small beside the first.
MAX_CHUNKS = 512
MIN_ROWS_PER_CHUNK = 32


def column_chunks(n_rows: int) -> tuple[int, int]:
    """How rows are cut into chunks.

    Returns:
        (n_chunks, rows_per_chunk); every chunk has at least one row.

    Example:
        >>> column_chunks(10), column_chunks(16384), column_chunks(16385)
        ((1, 32), (512, 32), (497, 33))
    """
    rows_per_chunk = max(MIN_ROWS_PER_CHUNK, -(-n_rows // MAX_CHUNKS))
    return -(-n_rows // rows_per_chunk), rows_per_chunk


@cuda.jit
def partial_sum_kernel(
    partial,  # (n_cols, n_chunks)
    total,  # (n_cols,)
):
    """One warp a column: add its partial sums."""
    n_cols, n_chunks = partial.shape
    lane = cuda.threadIdx.x
    col = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if col >= n_cols:  # a whole warp leaves, so the shuffles below stay full
        return
    value = float32(0.0)
    for chunk in range(lane, n_chunks, WARP):
        value += partial[col, chunk]
    value = warp_sum(value)
    if lane == 0:
        total[col] = value


def sum_partials(partial: Tensor, dtype: DType) -> Tensor:
    """Add up the last axis of (n_cols, n_chunks) partial sums; zeros where there are none."""
    n_cols, n_chunks = partial.shape
    if n_chunks == 0 or n_cols == 0:
        return zeros((n_cols,), dtype)
    total = empty((n_cols,), dtype)
    launch(partial_sum_kernel, blocks_for(n_cols, N_WARPS), ROWS_BLOCK, partial, total)
    return total

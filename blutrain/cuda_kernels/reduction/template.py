"""The kernels that all reductions share: combine many elements into one, in a fixed order.

Any axes are brought to one of two forms: the last dimension of (n_rows, n_cols), or the middle one
of (outer, n, inner). Long reductions are cut into chunks whose partial results are reduced again,
so that small outputs still fill the device; nothing is atomic, so results repeat bit by bit.
Memory-bound: each element is read once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numba import cuda, float32, float64, int64

from blutrain import dtypes
from blutrain.cuda_kernels.common import BLOCK, FULL_MASK, N_WARPS, WARP, blocks_for
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.device import launch
from blutrain.device.array import Array
from blutrain.dtypes import DType
from blutrain.tensor import Tensor, allocate

ROW_CHUNK = 16384  # elements of a row that one block takes: 64 a thread
COLUMN_CHUNK = 64  # rows that one thread of the columns kernel adds up


class Reduction(NamedTuple):
    """How elements are combined.

    Attributes:
        name: for the kernels' names.
        combine: device function (accumulator, accumulator) → accumulator; associative.
        identity: what an accumulator starts from.
        load: device function (element) → accumulator.
    """

    name: str
    combine: Any
    identity: float
    load: Any


def accumulator(dtype: DType) -> Any:
    """The Numba type that elements of `dtype` are combined in."""
    if dtype.is_floating:
        return float64 if dtype is dtypes.float64 else float32
    return int64


@functools.cache
def rows_kernel(r: Reduction, real: Any) -> Any:
    """The kernel that reduces chunks of rows, a block a chunk."""
    combine, load, identity = r.combine, r.load, _identity(r, real)

    def kernel(
        x,  # (n_rows, n_cols)
        out,  # (n_rows, n_chunks)
        chunk,
    ):
        shared = cuda.shared.array(N_WARPS, real)
        n_chunks = out.shape[1]
        row = cuda.blockIdx.x // n_chunks
        first = (cuda.blockIdx.x % n_chunks) * chunk
        last = min(first + chunk, x.shape[1])
        # Every thread combines a strided part of the chunk.
        acc = real(identity)
        for col in range(first + cuda.threadIdx.x, last, BLOCK):
            acc = combine(acc, load(x[row, col]))
        # Then the lanes of a warp, then the warps of the block.
        acc = combine(acc, cuda.shfl_xor_sync(FULL_MASK, acc, 16))
        acc = combine(acc, cuda.shfl_xor_sync(FULL_MASK, acc, 8))
        acc = combine(acc, cuda.shfl_xor_sync(FULL_MASK, acc, 4))
        acc = combine(acc, cuda.shfl_xor_sync(FULL_MASK, acc, 2))
        acc = combine(acc, cuda.shfl_xor_sync(FULL_MASK, acc, 1))
        if cuda.laneid == 0:
            shared[cuda.threadIdx.x // WARP] = acc
        cuda.syncthreads()  # every warp's part is in shared memory
        if cuda.threadIdx.x == 0:
            total = shared[0]
            for w in range(1, N_WARPS):
                total = combine(total, shared[w])
            out[row, cuda.blockIdx.x % n_chunks] = total

    kernel.__name__ = kernel.__qualname__ = f"{r.name}_rows_kernel"
    return cuda.jit(kernel)


@functools.cache
def columns_kernel(r: Reduction, real: Any) -> Any:
    """The kernel that reduces a middle dimension, a thread a column and chunk."""
    combine, load, identity = r.combine, r.load, _identity(r, real)

    def kernel(
        x,  # (outer, n, inner)
        out,  # (outer, n_chunks, inner)
        chunk,
    ):
        inner, n_chunks = out.shape[2], out.shape[1]
        blocks_per_row = (inner + BLOCK - 1) // BLOCK
        col = (cuda.blockIdx.x % blocks_per_row) * BLOCK + cuda.threadIdx.x
        part = (cuda.blockIdx.x // blocks_per_row) % n_chunks
        o = cuda.blockIdx.x // (blocks_per_row * n_chunks)
        # Neighbouring threads read neighbouring columns: coalesced.
        if col < inner:
            acc = real(identity)
            for i in range(part * chunk, min((part + 1) * chunk, x.shape[1])):
                acc = combine(acc, load(x[o, i, col]))
            out[o, part, col] = acc

    kernel.__name__ = kernel.__qualname__ = f"{r.name}_columns_kernel"
    return cuda.jit(kernel)


def _identity(r: Reduction, real: Any) -> float | int:
    if real is not int64:
        return r.identity
    if math.isfinite(r.identity):
        return int(r.identity)
    return -(2**63) if r.identity < 0 else 2**63 - 1


def reduce(t: Tensor, axes: Sequence[int], r: Reduction, again: Reduction, dtype: DType) -> Tensor:
    """Reduce `axes` (ascending), which disappear from the shape.

    Args:
        t: any strides.
        axes: the dimensions to reduce.
        r: how elements are loaded and combined.
        again: how partial results are combined (the same, without the load).
        dtype: the result's.
    """
    kept = tuple(n for d, n in enumerate(t.shape) if d not in axes)
    outer, n, inner, packed = _three(t, axes)
    result = allocate(kept, dtype)
    if result.size == 0:
        return result
    real = accumulator(t.dtype)
    partial = {float32: dtypes.float32, float64: dtypes.float64, int64: dtypes.int64}[real]
    x = (
        packed.array(outer, n, inner)
        if n
        else Array(result.pointer, (outer, 0, inner), (0, 0, 0), t.dtype, "C")
    )
    chunk = ROW_CHUNK if inner == 1 else COLUMN_CHUNK
    while True:
        n_chunks = max(1, blocks_for(n, chunk))
        last = n_chunks == 1
        to = result if last else allocate((outer, n_chunks, inner), partial)
        if inner == 1:
            rows = Array(
                x.pointer, (outer, n), (n * x.dtype.itemsize, x.dtype.itemsize), x.dtype, "C", x
            )
            launch(
                rows_kernel(r, real),
                outer * n_chunks,
                BLOCK,
                rows,
                to.array(outer, n_chunks),
                chunk,
            )
        else:
            grid = outer * n_chunks * blocks_for(inner)
            launch(columns_kernel(r, real), grid, BLOCK, x, to.array(outer, n_chunks, inner), chunk)
        if last:
            return result
        x, n, r = to.array(), n_chunks, again


def _three(t: Tensor, axes: Sequence[int]) -> tuple[int, int, int, Tensor]:
    """(outer, n, inner, t packed so): the reduced axes as one, with what is kept around them."""
    together = not axes or list(axes) == list(range(axes[0], axes[-1] + 1))
    if not together:
        # Extents of 1 between them do not keep them apart.
        between = [d for d in range(axes[0], axes[-1] + 1) if d not in axes]
        together = all(t.shape[d] == 1 for d in between)
    if not together:
        kept = [d for d in range(t.ndim) if d not in axes]
        t = t.permute(*kept, *axes)
        axes = list(range(len(kept), t.ndim))
    first, last = (axes[0], axes[-1] + 1) if axes else (t.ndim, t.ndim)
    outer, n, inner = (
        math.prod(t.shape[:first]),
        math.prod(t.shape[first:last]),
        math.prod(t.shape[last:]),
    )
    return outer, n, inner, dense(t)

r"""Looking up rows of a matrix.

Forward:   y[i, :] = weight[indices[i], :]
Backward:  dweight[v, :] = Σ_{i: indices[i] = v} dy[i, :]

The sum has a fixed order, without float atomics: positions are sorted by index (`token_order`), and
each block adds up RUN neighbours of the sorted list. Most rows begin and end within one such
stretch, and are written at once. A row that reaches over stretches leaves one partial sum in each;
a second kernel adds those. So a token that fills a third of the batch is summed by many blocks.

Shapes: indices (...), weight (V, C), y (..., C). Saved for backward: the indices.
Bytes for N lookups of element size s: forward 2 N C s; backward N C s read, V C s written with
zeros and up to N C s more where rows occur. FLOPs: none forward, N C backward.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32

from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.common import BLOCK, N_WARPS, ROWS_BLOCK, WARP, blocks_for
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.index.bounds import check_indices
from blutrain.cuda_kernels.index.token_order import sorted_keys
from blutrain.cuda_kernels.validate import check_floating
from blutrain.device import launch
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty, zeros

RUN = 32  # sorted positions that one block adds up
POSITION = 0xFFFFFFFF  # the part of a sorted key that is the position; the index is above it


@cuda.jit
def embedding_forward_kernel(
    indices,  # (n,)
    weight,  # (n_rows, n_cols)
    y,  # (n, n_cols)
):
    """One warp a lookup."""
    n_rows, n_cols = weight.shape
    at = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if at >= indices.size:
        return
    index = indices[at]
    inside = index >= 0 and index < n_rows  # always, but in unchecked()
    row = index if inside else 0
    for col in range(cuda.threadIdx.x, n_cols, WARP):
        value = weight[row, col]
        y[at, col] = value if inside else type(value)(math.nan)


@cuda.jit
def embedding_backward_kernel(
    keys,  # (n_padded,), sorted: index * 2³² + position
    dy,  # (n, n_cols)
    dweight,  # (n_rows, n_cols), zeros
    partial,  # (2 n_stretches, n_cols): of each stretch's first and last row
):
    """One block a stretch of RUN sorted positions and BLOCK columns: dweight[v] = Σ dy[i]."""
    n, n_cols = dy.shape
    n_tiles = (n_cols + BLOCK - 1) // BLOCK
    stretch = cuda.blockIdx.x // n_tiles
    col = cuda.blockIdx.x % n_tiles * BLOCK + cuda.threadIdx.x
    if col >= n_cols:
        return
    begin = stretch * RUN
    end = min(n, begin + RUN)
    before = keys[begin - 1] >> 32 if begin > 0 else -1
    after = keys[end] >> 32 if end < n else -1
    total = float32(0.0)
    for at in range(begin, end):
        row = keys[at] >> 32
        total += dy[keys[at] & POSITION, col]
        following = keys[at + 1] >> 32 if at + 1 < end else -1
        if following != row:  # the row's positions in this stretch end here
            if row == before:
                partial[2 * stretch, col] = total
            elif row == after:
                partial[2 * stretch + 1, col] = total
            elif row >= 0 and row < dweight.shape[0]:  # always, but in unchecked()
                dweight[row, col] = total
            total = float32(0.0)


@cuda.jit
def embedding_backward_join_kernel(
    keys,  # (n_padded,), sorted: index * 2³² + position
    partial,  # (2 n_stretches, n_cols)
    dweight,  # (n_rows, n_cols)
    n,
):
    """One block a stretch and BLOCK columns: add up a row that starts here and goes on after it."""
    n_cols = dweight.shape[1]
    n_tiles = (n_cols + BLOCK - 1) // BLOCK
    stretch = cuda.blockIdx.x // n_tiles
    col = cuda.blockIdx.x % n_tiles * BLOCK + cuda.threadIdx.x
    begin = stretch * RUN
    end = begin + RUN
    if col >= n_cols or end >= n:
        return
    row = keys[end - 1] >> 32
    if keys[end] >> 32 != row or row < 0 or row >= dweight.shape[0]:
        return
    if begin > 0 and keys[begin - 1] >> 32 == row:  # it starts in an earlier stretch
        return
    total = partial[2 * stretch + 1, col]
    later = stretch + 1
    while later * RUN < n and keys[later * RUN] >> 32 == row:
        total += partial[2 * later, col]
        later += 1
    dweight[row, col] = total


def embedding_forward(ctx: Context, indices: Tensor, weight: Tensor) -> Tensor:
    """Launch the lookup and save the indices."""
    weight = dense(weight)
    n, n_cols = indices.size, weight.shape[1]
    y = empty((*indices.shape, n_cols), weight.dtype)
    if y.size:
        launch(
            embedding_forward_kernel,
            blocks_for(n, N_WARPS),
            ROWS_BLOCK,
            indices.array(n),
            weight,
            y.array(n, n_cols),
        )
    ctx.save(indices)
    ctx.weight_shape = weight.shape
    return y


def embedding_backward(ctx: Context, dy: Tensor) -> tuple[None, Tensor]:
    """Sort the positions, add up the stretches, join the rows that reach over several."""
    (indices,) = ctx.saved
    n, n_cols = indices.size, ctx.weight_shape[1]
    dweight = zeros(ctx.weight_shape, dy.dtype)
    if dy.size:
        keys = sorted_keys(indices)
        n_stretches = blocks_for(n, RUN)
        partial = empty((2 * n_stretches, n_cols), dy.dtype.compute)
        grid = n_stretches * blocks_for(n_cols)
        gradient = dense(dy).array(n, n_cols)
        launch(embedding_backward_kernel, grid, BLOCK, keys, gradient, dweight, partial)
        if n_stretches > 1:
            launch(embedding_backward_join_kernel, grid, BLOCK, keys, partial, dweight, n)
    return None, dweight


def reference(indices: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """NumPy."""
    y: np.ndarray = weight[indices]
    return y


def samples(rng: np.random.Generator) -> list[Sample]:
    """No lookup, one, one row again and again, every row once, more columns than a block."""

    def sample(indices: np.ndarray, n_rows: int, n_cols: int) -> Sample:
        return Sample(inputs=(indices, rng.normal(size=(n_rows, n_cols))))

    return [
        sample(np.zeros((0,), np.int64), 3, 4),
        sample(np.array(2), 3, 1),
        sample(np.full((2, 50), 4), 7, 5),
        sample(rng.permutation(40).astype(np.int32), 40, 3),
        sample(rng.integers(0, 5, (3, 33)), 5, 2),
        sample(rng.integers(0, 11, 9), 11, 257 + int(rng.integers(0, 9))),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    i, w = np.array([[0, 2]]), np.zeros((3, 4), np.float32)
    op = "embedding:"
    return [
        Invalid((i + 1, w), ShapeError, f"{op} indices must be within [0, 3), got 3 at (0, 1)"),
        Invalid((i - 1, w), ShapeError, f"{op} indices must be within [0, 3), got -1 at (0, 0)"),
        Invalid((w, w), DTypeError, f"{op} indices must be integers, got bt.float32"),
        Invalid((i, i), DTypeError, f"{op} weight must have a floating dtype"),
        Invalid((i, w[0]), ShapeError, f"{op} weight must have 2 dimensions"),
    ]


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """The rows of a matrix that the indices name.

    Args:
        indices: (...), integers within [0, V).
        weight: (V, C), floating.

    Returns:
        (..., C), dtype of weight.

    Raises:
        ShapeError: an index is out of range (see `index.bounds`), or weight is no matrix.
        DTypeError: indices are not integers or weight is not floating.

    Example:
        >>> import blutrain as bt
        >>> bt.embedding(bt.tensor([1, 0, 1]), bt.tensor([[0.0, 1.0], [2.0, 3.0]])).tolist()
        [[2.0, 3.0], [0.0, 1.0], [2.0, 3.0]]
    """
    check_floating("embedding", "weight", weight)
    if weight.ndim != 2:
        raise ShapeError(message("embedding", "weight must have 2 dimensions", weight.shape))
    indices = check_indices("embedding", "indices", indices, weight.shape[0])
    y: Tensor = apply("embedding", indices, weight)
    return y


register(
    Op(
        name="embedding",
        forward=embedding_forward,
        backward=embedding_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=embedding,
    )
)

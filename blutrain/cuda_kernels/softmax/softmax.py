r"""Softmax along an axis.

Forward, for every row x of C values, with m = max_j x_j so that no exponential overflows:

    y_j = exp(x_j - m) / Σ_k exp(x_k - m)

Backward, from dy_k/dx_j = y_k (δ_jk - y_j):

    dx_j = Σ_k dy_k y_k (δ_jk - y_j) = y_j (dy_j - Σ_k dy_k y_k)

Shapes: x, y (..., C), or any other axis through a packed copy. Saved for backward: y alone.
Bytes for N rows of element size s: 2 N C s forward (one more read of a row longer than the cache),
3 N C s backward. FLOPs: about 5 N C and N C exponentials (2 N C for short rows) forward, 4 N C
backward.

A row of -inf alone, or with a nan or +inf in it, becomes nan.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda, float32

from blutrain.autograd.registry import Op, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.common import (
    BLOCK,
    N_WARPS,
    ROWS_BLOCK,
    WARP,
    block_sum,
    blocks_for,
    warp_max,
    warp_sum,
)
from blutrain.cuda_kernels.softmax import rows
from blutrain.cuda_kernels.softmax.online import block_peak_and_total
from blutrain.device import launch
from blutrain.tensor import Tensor, empty_like


@cuda.jit
def softmax_forward_kernel(
    x,  # (n_rows, n_cols)
    y,  # (n_rows, n_cols)
):
    """One warp a row: the maximum, the sum, then y."""
    n_rows, n_cols = x.shape
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if row >= n_rows:  # a whole warp leaves, so the shuffles below stay full
        return
    peak = float32(-math.inf)
    for i in range(lane, n_cols, WARP):
        peak = max(peak, x[row, i])
    peak = warp_max(peak)
    total = float32(0.0)
    for j in range(lane, n_cols, WARP):
        total += math.exp(x[row, j] - peak)
    total = warp_sum(total)
    for k in range(lane, n_cols, WARP):
        y[row, k] = math.exp(x[row, k] - peak) / total


@cuda.jit
def softmax_backward_kernel(
    dy,  # (n_rows, n_cols)
    y,  # (n_rows, n_cols)
    dx,  # (n_rows, n_cols)
):
    """One warp a row: dx = y (dy - Σ dy y)."""
    n_rows, n_cols = y.shape
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if row >= n_rows:  # a whole warp leaves, so the shuffles below stay full
        return
    total = float32(0.0)
    for j in range(lane, n_cols, WARP):
        total += dy[row, j] * y[row, j]
    total = warp_sum(total)
    for k in range(lane, n_cols, WARP):
        dx[row, k] = y[row, k] * (dy[row, k] - total)


@functools.cache
def _long_row_kernels(real: Any) -> tuple[Any, Any]:
    """The same two with one block a row; shared memory needs the computing type `real`."""

    @cuda.jit
    def softmax_forward_long_kernel(
        x,  # (n_rows, n_cols)
        y,  # (n_rows, n_cols)
    ):
        shared = cuda.shared.array(N_WARPS, real)
        row = cuda.blockIdx.x
        peak, total = block_peak_and_total(x, row, shared)
        for col in range(cuda.threadIdx.x, x.shape[1], BLOCK):
            y[row, col] = math.exp(x[row, col] - peak) / total

    @cuda.jit
    def softmax_backward_long_kernel(
        dy,  # (n_rows, n_cols)
        y,  # (n_rows, n_cols)
        dx,  # (n_rows, n_cols)
    ):
        shared = cuda.shared.array(N_WARPS, real)
        row = cuda.blockIdx.x
        total = real(0.0)
        for j in range(cuda.threadIdx.x, y.shape[1], BLOCK):
            total += dy[row, j] * y[row, j]
        total = block_sum(total, shared)
        for k in range(cuda.threadIdx.x, y.shape[1], BLOCK):
            dx[row, k] = y[row, k] * (dy[row, k] - total)

    return softmax_forward_long_kernel, softmax_backward_long_kernel


def softmax_forward(ctx: Context, x: Tensor, *, axis: int) -> Tensor:
    """Launch the forward kernel on packed rows and save y."""
    x = rows.axis_last(x, axis)
    y = empty_like(x)
    if x.size:
        n_cols = x.shape[-1]
        n_rows = x.size // n_cols
        arrays = x.array(n_rows, n_cols), y.array(n_rows, n_cols)
        if n_cols > rows.LONG_ROW:
            launch(_long_row_kernels(rows.computing_type(x.dtype))[0], n_rows, BLOCK, *arrays)
        else:
            launch(softmax_forward_kernel, blocks_for(n_rows, N_WARPS), ROWS_BLOCK, *arrays)
    ctx.save(y)
    ctx.axis = axis
    return rows.axis_back(y, axis)


def softmax_backward(ctx: Context, dy: Tensor) -> Tensor:
    """Launch the backward kernel on packed rows."""
    (y,) = ctx.saved
    dy = rows.axis_last(dy, ctx.axis)
    dx = empty_like(y)
    if y.size:
        n_cols = y.shape[-1]
        n_rows = y.size // n_cols
        arrays = [t.array(n_rows, n_cols) for t in (dy, y, dx)]
        if n_cols > rows.LONG_ROW:
            launch(_long_row_kernels(rows.computing_type(y.dtype))[1], n_rows, BLOCK, *arrays)
        else:
            launch(softmax_backward_kernel, blocks_for(n_rows, N_WARPS), ROWS_BLOCK, *arrays)
    return rows.axis_back(dx, ctx.axis)


def reference(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """NumPy, float64."""
    if not x.size:
        return x
    e = np.exp(x - x.max(axis, keepdims=True))
    y: np.ndarray = e / e.sum(axis, keepdims=True)
    return y


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Exponentials along an axis, divided by their sum.

    Args:
        x: floating, any shape but ().
        axis: the axis along which the result sums to 1.

    Returns:
        Same shape and dtype as x.

    Raises:
        DTypeError: x is no floating tensor.
        ShapeError: x has no such axis.

    Example:
        >>> import blutrain as bt
        >>> bt.softmax(bt.zeros((2, 4))).tolist()[0]
        [0.25, 0.25, 0.25, 0.25]
    """
    result: Tensor = apply("softmax", x, axis=rows.check("softmax", x, axis))
    return result


register(
    Op(
        name="softmax",
        forward=softmax_forward,
        backward=softmax_backward,
        reference=reference,
        samples=rows.samples,
        errors=functools.partial(rows.errors, "softmax"),
        call=softmax,
    )
)

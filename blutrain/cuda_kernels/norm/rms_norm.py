r"""Root-mean-square normalisation over the last axis.

Forward, for every row x of C values:

    rstd = 1 / sqrt(Σ_j x_j² / C + eps)      x̂_j = x_j rstd      y_j = x̂_j w_j

Backward. With g_j = dy_j w_j = dL/dx̂_j and d rstd/dx_k = -rstd³ x_k / C,

    dx_k = g_k rstd + Σ_j g_j x_j d rstd/dx_k = rstd (g_k - x̂_k Σ_j g_j x̂_j / C)
    dw_j = Σ_rows dy_j x̂_j

dw is summed in two stages of fixed order, as in `layer_norm`.

Shapes: x, y (..., C); w (C,). Saved for backward: x, w, and rstd of every row (4 bytes).
Bytes for N rows of element size s: forward 2 N C s; backward dx 3 N C s, dw 2 N C s.
FLOPs: forward 4 N C, backward 11 N C.

Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32

from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.common import BLOCK, N_WARPS, ROWS_BLOCK, WARP, blocks_for, warp_sum
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.norm.column_sum import column_chunks, sum_partials
from blutrain.cuda_kernels.validate import check_dtype, check_floating, check_tensor
from blutrain.device import launch
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty, empty_like


@cuda.jit
def rms_norm_forward_kernel(
    x,  # (n_rows, n_cols)
    weight,  # (n_cols,)
    y,  # (n_rows, n_cols)
    rstd,  # (n_rows,)
    eps,
):
    """One warp a row: the squares' sum, then y."""
    n_rows, n_cols = x.shape
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if row >= n_rows:  # a whole warp leaves, so the shuffles below stay full
        return
    squares = float32(0.0)
    for j in range(lane, n_cols, WARP):
        value = x[row, j]
        squares += value * value
    squares = warp_sum(squares)
    row_rstd = type(eps)(1.0) / math.sqrt(squares / type(eps)(n_cols) + eps)
    for k in range(lane, n_cols, WARP):
        y[row, k] = x[row, k] * row_rstd * weight[k]
    if lane == 0:
        rstd[row] = row_rstd


@cuda.jit
def rms_norm_backward_dx_kernel(
    dy,  # (n_rows, n_cols)
    x,  # (n_rows, n_cols)
    weight,  # (n_cols,)
    rstd,  # (n_rows,)
    dx,  # (n_rows, n_cols)
):
    """One warp a row: dx = rstd (g - x̂ Σ(g x̂) / C) with g = dy w."""
    n_rows, n_cols = x.shape
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if row >= n_rows:  # a whole warp leaves, so the shuffles below stay full
        return
    row_rstd = rstd[row]
    sum_gx = float32(0.0)
    for j in range(lane, n_cols, WARP):
        sum_gx += dy[row, j] * weight[j] * (x[row, j] * row_rstd)
    sum_gx = warp_sum(sum_gx)
    mean_gx = sum_gx / type(row_rstd)(n_cols)
    for k in range(lane, n_cols, WARP):
        normalised = x[row, k] * row_rstd
        dx[row, k] = row_rstd * (dy[row, k] * weight[k] - normalised * mean_gx)


@cuda.jit
def rms_norm_backward_dw_kernel(
    dy,  # (n_rows, n_cols)
    x,  # (n_rows, n_cols)
    rstd,  # (n_rows,)
    partial_dw,  # (n_cols, n_chunks)
    rows_per_chunk,
):
    """One thread a column and chunk of rows: dw = Σ dy x̂ over the chunk.

    Neighbouring threads read neighbouring columns; the partial sums are stored transposed for the
    second stage.
    """
    n_rows, n_cols = x.shape
    n_chunks = partial_dw.shape[1]
    chunk = cuda.blockIdx.x % n_chunks
    col = cuda.blockIdx.x // n_chunks * BLOCK + cuda.threadIdx.x
    if col >= n_cols:
        return
    dw = float32(0.0)
    for row in range(chunk * rows_per_chunk, min(n_rows, (chunk + 1) * rows_per_chunk)):
        dw += dy[row, col] * (x[row, col] * rstd[row])
    partial_dw[col, chunk] = dw


def rms_norm_forward(ctx: Context, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Launch the forward kernel and save what backward needs."""
    x, weight = dense(x), dense(weight)
    n_cols = x.shape[-1]
    n_rows = x.size // n_cols if n_cols else 0
    real = x.dtype.compute
    y = empty_like(x)
    rstd = empty((n_rows,), real)
    if n_rows:
        launch(
            rms_norm_forward_kernel,
            blocks_for(n_rows, N_WARPS),
            ROWS_BLOCK,
            x.array(n_rows, n_cols),
            weight,
            y.array(n_rows, n_cols),
            rstd,
            real.type(eps),
        )
    ctx.save(x, rstd, weight)
    return y


def rms_norm_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Launch the backward kernels that the tape asks for."""
    x, rstd, weight = ctx.saved
    dy = dense(dy)
    n_rows, n_cols = rstd.size, x.shape[-1]
    matrix = (n_rows, n_cols)
    dx = dw = None
    if ctx.needs[0]:
        dx = empty_like(x)
        if n_rows:
            launch(
                rms_norm_backward_dx_kernel,
                blocks_for(n_rows, N_WARPS),
                ROWS_BLOCK,
                dy.array(*matrix),
                x.array(*matrix),
                weight,
                rstd,
                dx.array(*matrix),
            )
    if ctx.needs[1]:
        n_chunks, rows_per_chunk = column_chunks(n_rows)
        partial_dw = empty((n_cols, n_chunks), rstd.dtype)
        if n_rows:
            launch(
                rms_norm_backward_dw_kernel,
                blocks_for(n_cols) * n_chunks,
                BLOCK,
                dy.array(*matrix),
                x.array(*matrix),
                rstd,
                partial_dw,
                rows_per_chunk,
            )
        dw = sum_partials(partial_dw, weight.dtype)
    return dx, dw


def reference(x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """NumPy, float64."""
    y: np.ndarray = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return y


def samples(rng: np.random.Generator) -> list[Sample]:
    """Shapes around the warp's and the block's edges."""

    def sample(shape: tuple[int, ...], **params: Any) -> Sample:
        weight = rng.normal(1.0, 0.3, shape[-1])
        return Sample(inputs=(rng.normal(0.2, 2.0, shape), weight), params=params)

    return [
        sample((0, 5)),
        sample((1, 1), eps=0.5),
        sample((3, 31)),
        sample((2, 3, 33)),
        sample((9, 257), eps=1e-3),
        sample((int(rng.integers(65, 200)), int(rng.integers(2, 80)))),
        sample((7,)),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    x, w = np.zeros((2, 4), np.float32), np.ones(4, np.float32)
    return [
        Invalid((x, w[:3]), ShapeError, "rms_norm: weight must have shape (4,), got (3,)"),
        Invalid((x, w.astype(np.int32)), DTypeError, "rms_norm: weight must have dtype"),
        Invalid((x[0, 0], w), ShapeError, "rms_norm: x must have at least 1 dimension"),
        Invalid((x.astype(np.int32), w), DTypeError, "rms_norm: x must have a floating dtype"),
    ]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Scale the last axis to a root mean square of 1, then by the weight.

    Args:
        x: (..., C), floating.
        weight: (C,), dtype of x.
        eps: added to the mean square.

    Returns:
        Same shape and dtype as x.

    Raises:
        ShapeError: weight is not of shape (C,), or x has no axis.
        DTypeError: x is not floating, or weight has another dtype.

    Example:
        >>> import blutrain as bt
        >>> bt.rms_norm(bt.tensor([3.0, 3.0, 3.0]), bt.tensor([1.0, 2.0, 4.0]), eps=0.0).tolist()
        [1.0, 2.0, 4.0]
    """
    check_floating("rms_norm", "x", x)
    if x.ndim == 0:
        raise ShapeError(message("rms_norm", "x must have at least 1 dimension", x.shape))
    shape = x.shape[-1:]
    check_tensor("rms_norm", "weight", weight)
    if weight.shape != shape:
        do = f"pass weight=bt.ones({shape[0]})"
        raise ShapeError(message("rms_norm", f"weight must have shape {shape}", weight.shape, do))
    check_dtype("rms_norm", "weight", weight, x.dtype)
    result: Tensor = apply("rms_norm", x, weight, eps=float(eps))
    return result


RMS_NORM = register(
    Op(
        name="rms_norm",
        forward=rms_norm_forward,
        backward=rms_norm_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=rms_norm,
    )
)

r"""Layer normalisation over the last axis.

Forward, for every row x of C values:

    mean = Σ_j x_j / C          rstd = 1 / sqrt(Σ_j (x_j - mean)² / C + eps)
    x̂_j  = (x_j - mean) rstd    y_j  = x̂_j w_j + b_j

The variance is summed from the centred values in a second sweep over the row, which then lies in
the cache: Σx² - C mean² would cancel badly where the mean is large.

Backward. With g_j = dy_j w_j = dL/dx̂_j, and since mean and rstd depend on every x_j,

    dL/dx_k = Σ_j g_j dx̂_j/dx_k,    dx̂_j/dx_k = rstd (δ_jk - 1/C - x̂_j x̂_k / C)

so

    dx_k = rstd (g_k - Σ_j g_j / C - x̂_k Σ_j g_j x̂_j / C)
    dw_j = Σ_rows dy_j x̂_j          db_j = Σ_rows dy_j

dw and db are sums over rows in two stages of fixed order (no atomics), so that the same inputs give
the same bits: each block sums a chunk of rows, then the chunks' partial sums are added up.

Shapes: x, y (..., C); w, b (C,). Saved for backward: x, w, and mean and rstd of every row, 8 bytes
a row in place of x̂, which would cost as much as x.
Bytes for N rows of element size s: forward 2 N C s; backward dx 3 N C s, dw and db 2 N C s.
FLOPs: forward 7 N C, backward 15 N C.

Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, equations 3 and 4.
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
def layer_norm_forward_kernel(
    x,  # (n_rows, n_cols)
    weight,  # (n_cols,)
    bias,  # (n_cols,), or anything where has_bias is false
    y,  # (n_rows, n_cols)
    mean,  # (n_rows,)
    rstd,  # (n_rows,)
    eps,
    has_bias,
):
    """One warp a row: mean, then the centred squares, then y."""
    n_rows, n_cols = x.shape
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if row >= n_rows:  # a whole warp leaves, so the shuffles below stay full
        return

    total = float32(0.0)
    for i in range(lane, n_cols, WARP):
        total += x[row, i]
    total = warp_sum(total)
    row_mean = total / type(eps)(n_cols)

    squares = float32(0.0)
    for j in range(lane, n_cols, WARP):
        centred = x[row, j] - row_mean
        squares += centred * centred
    squares = warp_sum(squares)
    row_rstd = type(eps)(1.0) / math.sqrt(squares / type(eps)(n_cols) + eps)

    for k in range(lane, n_cols, WARP):
        value = (x[row, k] - row_mean) * row_rstd * weight[k]
        if has_bias:
            value += bias[k]
        y[row, k] = value
    if lane == 0:
        mean[row] = row_mean
        rstd[row] = row_rstd


@cuda.jit
def layer_norm_backward_dx_kernel(
    dy,  # (n_rows, n_cols)
    x,  # (n_rows, n_cols)
    weight,  # (n_cols,)
    mean,  # (n_rows,)
    rstd,  # (n_rows,)
    dx,  # (n_rows, n_cols)
):
    """One warp a row: dx = rstd (g - Σg / C - x̂ Σ(g x̂) / C) with g = dy w."""
    n_rows, n_cols = x.shape
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if row >= n_rows:  # a whole warp leaves, so the shuffles below stay full
        return
    row_mean = mean[row]
    row_rstd = rstd[row]

    sum_g = float32(0.0)
    sum_gx = float32(0.0)
    for j in range(lane, n_cols, WARP):
        g = dy[row, j] * weight[j]
        sum_g += g
        sum_gx += g * ((x[row, j] - row_mean) * row_rstd)
    sum_g = warp_sum(sum_g)
    sum_gx = warp_sum(sum_gx)
    mean_g = sum_g / type(row_rstd)(n_cols)
    mean_gx = sum_gx / type(row_rstd)(n_cols)

    for k in range(lane, n_cols, WARP):
        g = dy[row, k] * weight[k]
        normalised = (x[row, k] - row_mean) * row_rstd
        dx[row, k] = row_rstd * (g - mean_g - normalised * mean_gx)


@cuda.jit
def layer_norm_backward_dw_kernel(
    dy,  # (n_rows, n_cols)
    x,  # (n_rows, n_cols)
    mean,  # (n_rows,)
    rstd,  # (n_rows,)
    partial_dw,  # (n_cols, n_chunks)
    partial_db,  # (n_cols, n_chunks)
    rows_per_chunk,
):
    """One thread a column and chunk of rows: dw = Σ dy x̂ and db = Σ dy over the chunk.

    Neighbouring threads read neighbouring columns. The partial sums are stored transposed, so that
    the second stage reads the chunks of one column as one dense row.
    """
    n_rows, n_cols = x.shape
    n_chunks = partial_dw.shape[1]
    chunk = cuda.blockIdx.x % n_chunks
    col = cuda.blockIdx.x // n_chunks * BLOCK + cuda.threadIdx.x
    if col >= n_cols:
        return
    dw = float32(0.0)
    db = float32(0.0)
    for row in range(chunk * rows_per_chunk, min(n_rows, (chunk + 1) * rows_per_chunk)):
        g = dy[row, col]
        dw += g * ((x[row, col] - mean[row]) * rstd[row])
        db += g
    partial_dw[col, chunk] = dw
    partial_db[col, chunk] = db


def layer_norm_forward(
    ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> Tensor:
    """Launch the forward kernel and save what backward needs."""
    x, weight = dense(x), dense(weight)
    n_cols = x.shape[-1]
    n_rows = x.size // n_cols if n_cols else 0
    real = x.dtype.compute
    y = empty_like(x)
    mean, rstd = empty((n_rows,), real), empty((n_rows,), real)
    if n_rows:
        launch(
            layer_norm_forward_kernel,
            blocks_for(n_rows, N_WARPS),
            ROWS_BLOCK,
            x.array(n_rows, n_cols),
            weight,
            weight if bias is None else dense(bias),
            y.array(n_rows, n_cols),
            mean,
            rstd,
            real.type(eps),
            bias is not None,
        )
    ctx.save(x, mean, rstd, weight)
    return y


def layer_norm_backward(
    ctx: Context, dy: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Launch the backward kernels that the tape asks for."""
    x, mean, rstd, weight = ctx.saved
    dy = dense(dy)
    n_rows, n_cols = mean.size, x.shape[-1]
    matrix = (n_rows, n_cols)
    dx = dw = db = None
    if ctx.needs[0]:
        dx = empty_like(x)
        if n_rows:
            launch(
                layer_norm_backward_dx_kernel,
                blocks_for(n_rows, N_WARPS),
                ROWS_BLOCK,
                dy.array(*matrix),
                x.array(*matrix),
                weight,
                mean,
                rstd,
                dx.array(*matrix),
            )
    if any(ctx.needs[1:]):
        n_chunks, rows_per_chunk = column_chunks(n_rows)
        partial_dw = empty((n_cols, n_chunks), mean.dtype)
        partial_db = empty((n_cols, n_chunks), mean.dtype)
        if n_rows:
            launch(
                layer_norm_backward_dw_kernel,
                blocks_for(n_cols) * n_chunks,
                BLOCK,
                dy.array(*matrix),
                x.array(*matrix),
                mean,
                rstd,
                partial_dw,
                partial_db,
                rows_per_chunk,
            )
        dw = sum_partials(partial_dw, weight.dtype) if ctx.needs[1] else None
        db = sum_partials(partial_db, weight.dtype) if len(ctx.needs) > 2 and ctx.needs[2] else None
    return dx, dw, db


def reference(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float = 1e-5
) -> np.ndarray:
    """NumPy, float64."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    y: np.ndarray = (x - mean) / np.sqrt(variance + eps) * weight
    return y if bias is None else y + bias


def samples(rng: np.random.Generator) -> list[Sample]:
    """Shapes around the warp's and the block's edges, with and without a bias."""

    def sample(shape: tuple[int, ...], bias: bool = True, **params: Any) -> Sample:
        c = shape[-1]
        return Sample(
            inputs=(
                rng.normal(0.5, 2.0, shape),
                rng.normal(1.0, 0.3, c),
                rng.normal(0.0, 0.3, c) if bias else None,
            ),
            params=params,
        )

    return [
        sample((0, 5)),
        sample((1, 1), eps=0.5),
        sample((3, 31)),
        sample((2, 3, 33), bias=False),
        sample((9, 257), eps=1e-3),
        sample((int(rng.integers(65, 200)), int(rng.integers(2, 80)))),
        sample((7,)),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    x, w = np.zeros((2, 4), np.float32), np.ones(4, np.float32)
    return [
        Invalid((x, w[:3], w), ShapeError, "layer_norm: weight must have shape (4,)"),
        Invalid((x, w, w[:3]), ShapeError, "layer_norm: bias must have shape (4,)"),
        Invalid(
            (x, w.astype(np.int32), w),
            DTypeError,
            "layer_norm: weight must have dtype",
        ),
        Invalid((x[0, 0], w, w), ShapeError, "layer_norm: x must have at least 1 dimension"),
        Invalid((x.astype(np.int32), w, w), DTypeError, "layer_norm: x must have a floating dtype"),
    ]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Normalise the last axis to mean 0 and variance 1, then scale and shift it.

    Args:
        x: (..., C), floating.
        weight: (C,), dtype of x.
        bias: (C,), dtype of x, or None for no shift.
        eps: added to the variance.

    Returns:
        Same shape and dtype as x.

    Raises:
        ShapeError: weight or bias is not of shape (C,), or x has no axis.
        DTypeError: x is not floating, or weight or bias has another dtype.

    Example:
        >>> import blutrain as bt
        >>> x = bt.tensor([[1.0, 3.0], [0.0, 4.0]])
        >>> bt.layer_norm(x, bt.ones(2), bt.zeros(2), eps=0.0).numpy().tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]
    """
    check_floating("layer_norm", "x", x)
    if x.ndim == 0:
        raise ShapeError(message("layer_norm", "x must have at least 1 dimension", x.shape))
    shape = x.shape[-1:]
    for name, parameter, fill in (("weight", weight, "ones"), ("bias", bias, "zeros")):
        if parameter is None and name == "bias":
            continue
        check_tensor("layer_norm", name, parameter)
        assert parameter is not None
        if parameter.shape != shape:
            do = f"pass {name}=bt.{fill}({shape[0]})"
            raise ShapeError(
                message("layer_norm", f"{name} must have shape {shape}", parameter.shape, do)
            )
        check_dtype("layer_norm", name, parameter, x.dtype)
    result: Tensor = apply("layer_norm", x, weight, bias, eps=float(eps))
    return result


LAYER_NORM = register(
    Op(
        name="layer_norm",
        forward=layer_norm_forward,
        backward=layer_norm_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=layer_norm,
    )
)

"""Variances over any axes: y = Σ (x - mean)² / (n - c), dx = 2 (x - mean) dy / (n - c).

The mean's own gradient drops out, since Σ (x - mean) = 0. Two passes (mean, then squared
distances), which keeps the digits that Σ x² - n mean² would lose. Kept: x and the mean.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.binary import as_compute, write_binary
from blutrain.cuda_kernels.elementwise.cast import cast, convert
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.cuda_kernels.reduction.mean import mean_axes
from blutrain.cuda_kernels.reduction.sum import (
    SUM,
    Axis,
    axis_errors,
    kept_shape,
    reshaped,
    spread,
)
from blutrain.cuda_kernels.reduction.template import reduce
from blutrain.cuda_kernels.validate import as_axes, check_tensor
from blutrain.errors import ShapeError, message
from blutrain.tensor import Tensor


@cuda.jit(device=True)
def _squared_distance(x, mean):
    return (x - mean) * (x - mean)


@cuda.jit(device=True)
def _var_dx(x, mean, dy):
    return (x - mean) * dy


def var_forward(
    ctx: Any, x: Tensor, axes: tuple[int, ...], keepdim: bool, correction: int
) -> Tensor:
    """y = Σ (x - mean)² / (n - correction)."""
    n = math.prod(x.shape[a] for a in axes)
    wide = convert(x, dtypes.float32) if x.dtype.is_half else x
    mean = mean_axes(wide, axes)
    centre = spread(mean, x.shape, axes)
    squares = map_elements(_squared_distance, "var_forward", [wide, centre], wide.dtype)
    y = reduce(squares, axes, SUM, SUM, wide.dtype)
    ctx.scale = 1.0 / (n - correction)
    write_binary("mul", y, None, ctx.scale)
    ctx.axes = axes
    ctx.save(x, mean)
    y = convert(y, x.dtype)
    return reshaped(y, kept_shape(x.shape, axes)) if keepdim else y


def var_backward(ctx: Any, dy: Tensor) -> Tensor:
    """dx = 2 (x - mean) dy / (n - correction)."""
    x, mean = ctx.saved
    wide = convert(x, mean.dtype)
    inputs = [
        wide,
        spread(mean, x.shape, ctx.axes),
        spread(convert(dy, mean.dtype), x.shape, ctx.axes),
    ]
    dx = map_elements(_var_dx, "var_backward", inputs, mean.dtype)
    write_binary("mul", dx, None, float(as_compute(2.0 * ctx.scale, dtypes.float64)))
    return convert(dx, x.dtype)


def reference(x: Any, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Any:
    """NumPy's variance."""
    return np.var(x, axis=axis, keepdims=keepdim, ddof=correction)


def samples(rng: np.random.Generator) -> list[Sample]:
    """Every form of axes, with and without the correction, far from 0 too."""
    draw = rng.standard_normal
    m, n = (int(k) for k in rng.integers(2, 60, 2))
    return [
        Sample((draw((0, 3)),), {"axis": 1}, name="empty"),
        Sample((draw(1),), {"correction": 0}, name="one"),
        Sample((draw((m, n)),), {"axis": -1, "keepdim": True}, name="rows"),
        Sample((draw((m, n)),), {"axis": 0, "correction": 0}, name="columns"),
        Sample((draw((3, 4, 5)),), {"axis": (0, 2)}, name="apart"),
        Sample((draw(600) + 30,), name="far", dtypes=(dtypes.float32, dtypes.float64)),
    ]


def errors() -> list[Invalid]:
    """Bad axes, and too few elements for the correction."""
    return [
        *axis_errors("var"),
        Invalid((np.ones((1, 3)), 0), ShapeError, "var: over 1 elements correction must be less"),
    ]


def var(x: Tensor, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Tensor:
    """The variance over `axis`.

    Args:
        x: any shape; integers are taken as float32.
        axis: one dimension, several, or all for None.
        keepdim: keep the reduced dimensions with extent 1.
        correction: what is taken from the count before dividing: 1 for a sample's unbiased
            estimate, 0 for the variance of the values themselves.

    Raises:
        ShapeError: an axis is out of range or named twice, or there are too few elements.

    Example:
        >>> import blutrain as bt
        >>> bt.var(bt.tensor([1.0, 2.0, 3.0])).item()
        1.0
    """
    axes = as_axes("var", axis, check_tensor("var", "x", x).ndim)
    n = math.prod(x.shape[a] for a in axes)
    if n <= correction:
        raise ShapeError(message("var", f"over {n} elements correction must be less", correction))
    if not x.dtype.is_floating:
        x = cast(x, dtypes.float32)
    result: Tensor = apply("var", x, axes=axes, keepdim=keepdim, correction=correction)
    return result


register(
    Op(
        name="var",
        forward=var_forward,
        backward=var_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=var,
    )
)

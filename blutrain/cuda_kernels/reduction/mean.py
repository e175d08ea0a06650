"""Means over any axes: y = Σ x / n, dx = dy / n repeated; the sum is the `sum` kernel's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blutrain import dtypes
from blutrain.autograd.registry import Op, apply, register
from blutrain.cuda_kernels.elementwise.binary import write_binary
from blutrain.cuda_kernels.elementwise.cast import cast, convert
from blutrain.cuda_kernels.elementwise.copy import dense_copy
from blutrain.cuda_kernels.reduction.sum import (
    SUM,
    Axis,
    axis_errors,
    kept_shape,
    reshaped,
    samples,
    spread,
)
from blutrain.cuda_kernels.reduction.template import reduce
from blutrain.cuda_kernels.validate import as_axes, check_tensor
from blutrain.tensor import Tensor


def mean_axes(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The mean over `axes`, which disappear; not recorded. 0 / 0 (nan) over no elements."""
    n = math.prod(x.shape[a] for a in axes)
    # Divide before rounding to a half, so that a large sum does not overflow it.
    wide = dtypes.float32 if x.dtype.is_half else x.dtype
    y = reduce(x, axes, SUM, SUM, wide)
    write_binary("mul", y, None, 1.0 / n if n else math.nan)
    return convert(y, x.dtype)


def mean_forward(ctx: Any, x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """y = Σ x / n over `axes`."""
    ctx.shape, ctx.axes = x.shape, axes
    y = mean_axes(x, axes)
    return reshaped(y, kept_shape(x.shape, axes)) if keepdim else y


def mean_backward(ctx: Any, dy: Tensor) -> Tensor:
    """dx = dy / n, repeated along the axes."""
    n = math.prod(ctx.shape[a] for a in ctx.axes)
    share = dense_copy(dy)
    write_binary("mul", share, None, 1.0 / max(n, 1))
    return spread(share, ctx.shape, ctx.axes)


def reference(x: Any, axis: Axis = None, keepdim: bool = False) -> Any:
    """NumPy's mean, nan over no elements."""
    n = x.size if axis is None else math.prod(x.shape[a] for a in np.atleast_1d(axis))
    total = np.sum(x, axis=axis, keepdims=keepdim)
    return total / n if n else total * np.nan


def mean(x: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """The mean over `axis`.

    Args:
        x: any shape; integers are averaged as float32.
        axis: one dimension, several, or all for None.
        keepdim: keep the averaged dimensions with extent 1.

    Raises:
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import blutrain as bt
        >>> bt.mean(bt.tensor([1.0, 2.0, 6.0])).item()
        3.0
    """
    axes = as_axes("mean", axis, check_tensor("mean", "x", x).ndim)
    if not x.dtype.is_floating:
        x = cast(x, dtypes.float32)
    result: Tensor = apply("mean", x, axes=axes, keepdim=keepdim)
    return result


register(
    Op(
        name="mean",
        forward=mean_forward,
        backward=mean_backward,
        reference=reference,
        samples=samples,
        errors=lambda: axis_errors("mean"),
        call=mean,
    )
)

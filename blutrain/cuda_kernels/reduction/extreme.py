"""Largest and smallest elements over any axes.

y = max x, dx = dy / k at the k places where x equals y, else 0 (equal ones share). nan wins over
every number. Each element is read once forward; backward reads x twice and counts the equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.cast import cast
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.cuda_kernels.reduction.sum import (
    Axis,
    axis_errors,
    kept_shape,
    reshaped,
    spread,
    sum_axes,
)
from blutrain.cuda_kernels.reduction.template import Reduction, reduce
from blutrain.cuda_kernels.validate import as_axes, check_tensor
from blutrain.errors import ShapeError, message
from blutrain.tensor import Tensor


@cuda.jit(device=True)
def _larger(a, b):
    return a if a > b or a != a else b  # nan wins


@cuda.jit(device=True)
def _smaller(a, b):
    return a if a < b or a != a else b  # nan wins


@cuda.jit(device=True)
def _itself(x):
    return x


@cuda.jit(device=True)
def _equal(x, y):
    return x == y


@cuda.jit(device=True)
def _share(dy, count):
    return dy / type(dy)(count)


@cuda.jit(device=True)
def _where_equal(x, y, share):
    return share if x == y else type(share)(0)


MAX = Reduction("max", _larger, -math.inf, _itself)
MIN = Reduction("min", _smaller, math.inf, _itself)


def _forward(r: Reduction) -> Callable[..., Tensor]:
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
        y = reduce(x, axes, r, r, x.dtype)
        ctx.axes = axes
        ctx.save(x, y)
        return reshaped(y, kept_shape(x.shape, axes)) if keepdim else y

    return forward


def _backward(ctx: Any, dy: Tensor) -> Tensor:
    x, y = ctx.saved
    best = spread(y, x.shape, ctx.axes)
    hit = map_elements(_equal, "extreme_equal", [x, best], dtypes.bool_)
    count = sum_axes(hit, ctx.axes)
    flat = reshaped(dense(dy), count.shape)
    share = map_elements(_share, "extreme_share", [flat, count], dy.dtype)
    inputs = [x, best, spread(share, x.shape, ctx.axes)]
    return map_elements(_where_equal, "extreme_backward", inputs, dy.dtype)


def samples(rng: np.random.Generator) -> list[Sample]:
    """Distinct elements (differences across a tie mean nothing), every form of axes."""

    def draw(*shape: int) -> Any:
        n = math.prod(shape)
        return (rng.permutation(n) - n / 2).reshape(shape) / 8

    m, n = (int(k) for k in rng.integers(1, 40, 2))
    return [
        Sample((draw(0, 3),), {"axis": 1}, name="empty"),
        Sample((draw(),), name="scalar"),
        Sample((draw(1),), {"axis": 0}, name="one"),
        Sample((draw(m, n),), {"axis": -1, "keepdim": True}, name="rows"),
        Sample((draw(m, n),), {"axis": 0}, name="columns"),
        Sample((draw(3, 4, 5, 6),), {"axis": (0, 2)}, name="apart"),
        Sample((draw(900),), name="blocks"),
    ]


def _errors(op: str) -> Callable[[], list[Invalid]]:
    return lambda: [
        *axis_errors(op),
        Invalid((np.ones((0, 3)), 0), ShapeError, f"{op}: a reduced axis must not be empty"),
    ]


def _extreme(op: str, x: Tensor, axis: Axis, keepdim: bool) -> Tensor:
    axes = as_axes(op, axis, check_tensor(op, "x", x).ndim)
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(message(op, "a reduced axis must not be empty", x.shape))
    if x.dtype is dtypes.bool_:
        x = cast(x, dtypes.uint8)
    result: Tensor = apply(op, x, axes=axes, keepdim=keepdim)
    return result


def max(x: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """The largest element over `axis`; nan where there is one.

    Args:
        x: any shape.
        axis: one dimension, several, or all for None.
        keepdim: keep the reduced dimensions with extent 1.

    Raises:
        ShapeError: an axis is out of range, named twice, or empty.

    Example:
        >>> import blutrain as bt
        >>> bt.max(bt.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1).tolist()
        [5.0, 4.0]
    """
    return _extreme("max", x, axis, keepdim)


def min(x: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """The smallest element over `axis`; arguments and errors as for `max`.

    Example:
        >>> import blutrain as bt
        >>> bt.min(bt.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1).tolist()
        [1.0, 2.0]
    """
    return _extreme("min", x, axis, keepdim)


for _name, _r, _reference in (("max", MAX, np.max), ("min", MIN, np.min)):

    def _float64(
        x: Any, axis: Axis = None, keepdim: bool = False, f: Callable[..., Any] = _reference
    ) -> Any:
        return f(x, axis=axis, keepdims=keepdim)

    register(
        Op(
            name=_name,
            forward=_forward(_r),
            backward=_backward,
            reference=_float64,
            samples=samples,
            errors=_errors(_name),
            call=globals()[_name],
        )
    )

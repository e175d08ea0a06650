"""Sums over any axes: y = Σ x, dx = dy repeated.

Halves and float32 are added in float32, integers and bool in int64. Each element is read once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.reduction.template import Reduction, reduce
from blutrain.cuda_kernels.validate import as_axes, check_tensor
from blutrain.errors import DTypeError, ShapeError
from blutrain.tensor import Tensor

Axis = int | tuple[int, ...] | None


@cuda.jit(device=True)
def _add(a, b):
    return a + b


@cuda.jit(device=True)
def _itself(x):
    return x


SUM = Reduction("sum", _add, 0.0, _itself)


def sum_axes(t: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over `axes` (ascending), which disappear; not recorded."""
    dtype = t.dtype if t.dtype.is_floating else dtypes.int64
    return reduce(t, axes, SUM, SUM, dtype)


def sum_to_shape(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo a broadcast: `t` summed over the dimensions in which `shape` was repeated."""
    if t.shape == shape:
        return t
    extra = t.ndim - len(shape)
    repeated = [d + extra for d, n in enumerate(shape) if n == 1 and t.shape[d + extra] != 1]
    axes = (*range(extra), *repeated)
    s = sum_axes(t, axes) if axes else t
    return Tensor(s.storage, shape, None, s.offset, s.dtype) if s.is_contiguous else s


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with an extent of 1 at each of `axes`."""
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def reshaped(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A contiguous tensor's memory seen with another shape; not recorded."""
    return Tensor(t.storage, shape, None, t.offset, t.dtype)


def spread(dy: Tensor, shape: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
    """`dy`, whatever `keepdim` was, as a view repeated over `axes`; not recorded."""
    return reshaped(dense(dy), kept_shape(shape, axes)).expand(shape)


def sum_forward(ctx: Any, x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """y = Σ x over `axes`."""
    ctx.shape, ctx.axes = x.shape, axes
    y = sum_axes(x, axes)
    return reshaped(y, kept_shape(x.shape, axes)) if keepdim else y


def sum_backward(ctx: Any, dy: Tensor) -> Tensor:
    """dx = dy, repeated along the summed axes (a view: nothing is written)."""
    return spread(dy, ctx.shape, ctx.axes)


def reference(x: Any, axis: Axis = None, keepdim: bool = False) -> Any:
    """NumPy's sum."""
    return np.sum(x, axis=axis, keepdims=keepdim)


def samples(rng: np.random.Generator) -> list[Sample]:
    """Every form of axes, and sizes around a block and a chunk."""
    draw = rng.standard_normal
    m, n = (int(k) for k in rng.integers(1, 90, 2))
    return [
        Sample((draw((0, 3)),), {"axis": 0}, name="empty"),
        Sample((draw(()),), name="scalar"),
        Sample((draw(1),), {"axis": 0, "keepdim": True}, name="one"),
        Sample((draw((m, n)),), {"axis": 1}, name="rows"),
        Sample((draw((m, n)),), {"axis": 0, "keepdim": True}, name="columns"),
        Sample((draw((3, 4, 5, 6)),), {"axis": (0, 2)}, name="apart"),
        Sample((draw((2, 3, 4)),), {"axis": (-1, 0), "keepdim": True}, name="ends"),
        Sample((draw((2, 70, 3)),), {"axis": 1}, name="middle"),
        Sample((draw(20000),), name="chunks", grad=()),
    ]


def axis_errors(op: str) -> list[Invalid]:
    """Axes out of range or named twice, and no tensor."""
    return [
        Invalid((np.ones((2, 3)), 2), ShapeError, f"{op}: axis must be within 2 dimensions"),
        Invalid((np.ones((2, 3)), (0, 0)), ShapeError, f"{op}: axes must differ"),
        Invalid(([1.0],), DTypeError, f"{op}: x must be a tensor"),
    ]


def sum(x: Tensor, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """The sum over `axis`.

    Args:
        x: any shape; bool and integers are summed as int64.
        axis: one dimension, several, or all for None.
        keepdim: keep the summed dimensions with extent 1.

    Raises:
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import blutrain as bt
        >>> bt.sum(bt.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
        [4.0, 6.0]
    """
    axes = as_axes("sum", axis, check_tensor("sum", "x", x).ndim)
    result: Tensor = apply("sum", x, axes=axes, keepdim=keepdim)
    return result


register(
    Op(
        name="sum",
        forward=sum_forward,
        backward=sum_backward,
        reference=reference,
        samples=samples,
        errors=lambda: axis_errors("sum"),
        call=sum,
    )
)

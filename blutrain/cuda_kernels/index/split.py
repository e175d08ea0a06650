r"""Cutting a tensor into stretches along an axis, without a copy.

Forward:   y_k = the k-th stretch of x, a view
Backward:  dx = [dy_1, dy_2, ...] along the axis, zeros where no gradient came: 2 n s bytes

All stretches are one entry on the tape, so that the gradients are joined once; a tape of separate
slices would write and add up one whole dx for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.elementwise.copy import copy_into
from blutrain.cuda_kernels.index.cat import stretches
from blutrain.cuda_kernels.validate import as_axes, check_tensor
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty


def split_forward(
    ctx: Context, x: Tensor, *, sizes: Sequence[int], axis: int
) -> tuple[Tensor, ...]:
    """The views."""
    ctx.shape, ctx.sizes, ctx.axis = x.shape, sizes, axis
    return stretches(x, sizes, axis)


def split_backward(ctx: Context, *dys: Tensor) -> Tensor:
    """Copy each gradient into its stretch."""
    dx = empty(ctx.shape, dys[0].dtype)
    for dy, place in zip(dys, stretches(dx, ctx.sizes, ctx.axis), strict=True):
        if dy.size:
            copy_into(place, dy)
    return dx


def _sizes(extent: int, sizes: int | Sequence[int]) -> list[int]:
    """The size of every stretch; an int stands for stretches of that size, the last one shorter."""
    if not isinstance(sizes, int):
        return list(sizes)
    n_whole, left = divmod(extent, sizes)
    return [sizes] * n_whole + [left] * bool(left)


def reference(x: np.ndarray, sizes: int | Sequence[int], axis: int = 0) -> tuple[np.ndarray, ...]:
    """NumPy."""
    ends = np.cumsum(_sizes(x.shape[axis], sizes))
    return tuple(np.split(x, ends[:-1], axis))


def samples(rng: np.random.Generator) -> list[Sample]:
    """One stretch, several, empty ones, every axis, a shorter last one."""

    def sample(shape: tuple[int, ...], sizes: int | list[int], axis: int = 0) -> Sample:
        return Sample(inputs=(rng.normal(size=shape), sizes), params={"axis": axis})

    return [
        sample((3,), 3),
        sample((7,), 3),
        sample((2, 210), [70, 70, 70], -1),
        sample((5, 9), [0, 4, 5], 1),
        sample((4, 1 + int(rng.integers(2, 9)), 2), 2, 1),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    x = np.zeros((2, 6), np.float32)
    return [
        Invalid((x, [1, 2]), ShapeError, "split: sizes must add up to 2", {"axis": 0}),
        Invalid((x, [7, -1]), ShapeError, "split: sizes must not be negative", {"axis": 1}),
        Invalid((x, 0), ShapeError, "split: sizes must be at least 1"),
        Invalid((x, 1), ShapeError, "split: axis must be within 2 dimensions", {"axis": 2}),
        Invalid(([1.0], 1), DTypeError, "split: x must be a tensor"),
    ]


def split(x: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Cut a tensor into neighbouring stretches along an axis; they are views of it.

    Args:
        x: any shape but ().
        sizes: the size of every stretch, adding up to x's extent; or one size for all, of which
            the last may be shorter.
        axis: where x is cut.

    Raises:
        ShapeError: the sizes do not add up, or there is no such axis.

    Example:
        >>> import blutrain as bt
        >>> [t.tolist() for t in bt.split(bt.arange(5), [2, 3])]
        [[0, 1], [2, 3, 4]]
    """
    check_tensor("split", "x", x)
    (axis,) = as_axes("split", axis, x.ndim)
    if isinstance(sizes, int) and sizes < 1:
        raise ShapeError(message("split", "sizes must be at least 1", sizes))
    cut = _sizes(x.shape[axis], sizes)
    if any(n < 0 for n in cut):
        raise ShapeError(message("split", "sizes must not be negative", cut))
    if sum(cut) != x.shape[axis]:
        raise ShapeError(message("split", f"sizes must add up to {x.shape[axis]}", cut))
    parts: tuple[Tensor, ...] = apply("split", x, sizes=cut, axis=axis)
    for part in parts:
        if part.node is not None:
            part.node.view_version = x.storage.version  # a later in-place write is then noticed
    return parts


register(
    Op(
        name="split",
        forward=split_forward,
        backward=split_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=split,
    )
)

r"""Joining tensors along an axis.

Forward:   y = [x_1, x_2, ...] along the axis
Backward:  dx_k = the k-th stretch of dy, as a view: nothing is moved

Each x_k is copied into its place in y, whatever its strides: 2 n s bytes for n elements of size s.
Shapes: x_k alike but along the axis; y has the sum of their extents there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.elementwise.copy import copy_into
from blutrain.cuda_kernels.validate import as_axes, check_dtype, check_tensor
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty


def stretches(t: Tensor, sizes: Sequence[int], axis: int) -> tuple[Tensor, ...]:
    """Views of neighbouring stretches of `t`, of the given sizes along `axis`."""
    views, begin = [], 0
    for size in sizes:
        views.append(t[(slice(None),) * axis + (slice(begin, begin + size),)])
        begin += size
    return tuple(views)


def cat_forward(ctx: Context, *tensors: Tensor, axis: int) -> Tensor:
    """Copy each tensor into its stretch of the result."""
    first = tensors[0]
    ctx.sizes, ctx.axis = [t.shape[axis] for t in tensors], axis
    shape = (*first.shape[:axis], sum(ctx.sizes), *first.shape[axis + 1 :])
    y = empty(shape, first.dtype)
    for t, place in zip(tensors, stretches(y, ctx.sizes, axis), strict=True):
        if t.size:
            copy_into(place, t)
    return y


def cat_backward(ctx: Context, dy: Tensor) -> tuple[Tensor, ...]:
    """The stretches of dy."""
    return stretches(dy, ctx.sizes, ctx.axis)


def reference(tensors: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """NumPy."""
    return np.concatenate(tensors, axis)


def samples(rng: np.random.Generator) -> list[Sample]:
    """One tensor, several, empty ones, every axis, long and short rows."""

    def sample(*shapes: tuple[int, ...], axis: int = 0) -> Sample:
        return Sample(inputs=([rng.normal(size=s) for s in shapes],), params={"axis": axis})

    return [
        sample((3,)),
        sample((0,), (1,), (257,)),
        sample((2, 3), (1, 3), (4, 3)),
        sample((5, 1), (5, 70), (5, 0), (5, int(rng.integers(1, 9))), axis=-1),
        sample((2, 3, 4), (2, 5, 4), axis=1),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)
    but = "must have shape (2, 3) but along axis 0"
    return [
        Invalid(([],), ShapeError, "cat: tensors must hold at least one"),
        Invalid(([a, b],), ShapeError, f"cat: tensors[1] {but}"),
        Invalid(([a, a[0]],), ShapeError, f"cat: tensors[1] {but}"),
        Invalid(([a, a.astype(np.int32)],), DTypeError, "cat: tensors[1] must have dtype"),
        Invalid(([a],), ShapeError, "cat: axis must be within 2 dimensions", {"axis": 2}),
    ]


def cat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors along an axis that they have.

    Args:
        tensors: at least one, all of one dtype, and of one shape but along the axis.
        axis: where they are joined.

    Raises:
        ShapeError: there is none, the shapes do not fit, or there is no such axis.
        DTypeError: the dtypes differ.

    Example:
        >>> import blutrain as bt
        >>> bt.cat([bt.tensor([1, 2]), bt.tensor([3])]).tolist()
        [1, 2, 3]
    """
    tensors = list(tensors)
    if not tensors:
        raise ShapeError(message("cat", "tensors must hold at least one", "none"))
    for k, t in enumerate(tensors):
        check_tensor("cat", f"tensors[{k}]", t)
    first = tensors[0]
    (axis,) = as_axes("cat", axis, first.ndim)
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    for k, t in enumerate(tensors):
        if t.ndim != first.ndim or (*t.shape[:axis], *t.shape[axis + 1 :]) != rest:
            wrong = f"tensors[{k}] must have shape {first.shape} but along axis {axis}"
            raise ShapeError(message("cat", wrong, t.shape))
        check_dtype("cat", f"tensors[{k}]", t, first.dtype)
    y: Tensor = apply("cat", *tensors, axis=axis)
    return y


register(
    Op(
        name="cat",
        forward=cat_forward,
        backward=cat_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=cat,
    )
)

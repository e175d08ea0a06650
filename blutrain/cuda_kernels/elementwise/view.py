"""What a view means for gradients, and `reshape`, which is a view where it can be.

A view launches nothing. Its gradient is carried back by the inverse: another view for reshape and
permute, a sum for expand, and for an index zeros with the gradient written where the index points.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blutrain.autograd import tape
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.copy import copy_into, dense, dense_copy
from blutrain.cuda_kernels.reduction.sum import sum_to_shape
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.errors import ShapeError
from blutrain.tensor import Tensor, resolve_shape, zeros


def view_backward(ctx: Any, dy: Tensor) -> Tensor:
    """The gradient of the base, by the kind of view."""
    kind, *how = ctx.back
    if kind == "reshape":
        packed = dense(dy)
        return Tensor(packed.storage, how[0], None, packed.offset, packed.dtype)
    if kind == "permute":
        return dy.permute(how[0])
    if kind == "expand":
        return sum_to_shape(dy, how[0])
    shape, key = how
    dx = zeros(shape, dy.dtype)
    copy_into(dx[key], dy)
    return dx


def _record_view(base: Tensor, view: Tensor, back: tuple[Any, ...]) -> Tensor:
    view.is_view = True
    if not (base.requires_grad and tape.mode.recording and view.dtype.is_floating):
        return view
    tape.check_view("view", base)
    context = tape.Context((True,))
    context.back = back
    node = tape.Node(back[0], view_backward, context, [base], [view])
    node.view_version = view.storage.version
    tape.attach(node, [view])
    return view


Tensor._view_hook = _record_view


def reshape_forward(ctx: Any, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A packed copy with the new shape, where no view can have it."""
    ctx.back = "reshape", x.shape
    packed = dense_copy(x)
    return Tensor(packed.storage, shape, None, packed.offset, packed.dtype)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The elements in row-major order with another shape: a view where possible, else a copy.

    Args:
        x: any shape.
        shape: extents with the same number of elements; one may be -1.

    Raises:
        ShapeError: the elements do not fit.

    Example:
        >>> import blutrain as bt
        >>> bt.reshape(bt.tensor([[1, 2], [3, 4]]).T, -1).tolist()
        [1, 3, 2, 4]
    """
    check_tensor("reshape", "x", x)
    new = resolve_shape("reshape", shape, x.size)
    view = x.as_shape(new)
    result: Tensor = apply("reshape", x, shape=new) if view is None else view
    return result


def samples(rng: np.random.Generator) -> list[Sample]:
    """Merging, splitting, nothing at all."""
    return [
        Sample((rng.standard_normal(a), b))
        for a, b in (((0,), (0, 3)), ((1,), ()), ((6, 50), (300,)), ((4, 6, 5), (2, 12, -1)))
    ]


def errors() -> list[Invalid]:
    """Another number of elements, two unknown extents."""
    return [
        Invalid((np.ones(6), (4,)), ShapeError, "reshape: shape must hold 6 elements"),
        Invalid((np.ones(6), (-1, -1)), ShapeError, "reshape: shape may hold one -1"),
    ]


register(
    Op(
        name="reshape",
        forward=reshape_forward,
        backward=view_backward,
        reference=np.reshape,
        samples=samples,
        errors=errors,
        call=reshape,
    )
)

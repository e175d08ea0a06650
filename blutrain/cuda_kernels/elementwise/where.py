"""Choosing between two tensors: z = x where the condition holds, else y.

dx = dz where the condition holds, else 0; dy the other way round; both summed back to the
operand's shape. Three reads and one write an element; the condition is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.binary import Number, broadcast_shapes, operands
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.cuda_kernels.reduction.sum import sum_to_shape
from blutrain.cuda_kernels.validate import check_dtype, check_tensor
from blutrain.errors import DTypeError, ShapeError
from blutrain.tensor import Tensor, from_numpy


@cuda.jit(device=True)
def _where(condition, x, y):
    return x if condition else y


@cuda.jit(device=True)
def _where_dx(condition, dz):
    return dz if condition else type(dz)(0)


@cuda.jit(device=True)
def _where_dy(condition, dz):
    return type(dz)(0) if condition else dz


def where_forward(ctx: Any, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """z = x where the condition holds, else y."""
    ctx.save(condition)
    ctx.shapes = x.shape, y.shape
    shape = broadcast_shapes("where", condition.shape, broadcast_shapes("where", x.shape, y.shape))
    return map_elements(_where, "where_forward", [condition, x, y], x.dtype, shape=shape)


def where_backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
    """dx = dz where the condition holds; dy = dz where it does not."""
    (condition,) = ctx.saved
    out: list[Tensor | None] = [None]
    for f, needed, shape in zip((_where_dx, _where_dy), ctx.needs[1:], ctx.shapes, strict=True):
        if not needed:
            out.append(None)
            continue
        d = map_elements(f, "where_backward", [condition, dz], dz.dtype, shape=dz.shape)
        out.append(sum_to_shape(d, shape))
    return tuple(out)


def samples(rng: np.random.Generator) -> list[Sample]:
    """Equal shapes and each operand broadcast."""

    def sample(c: tuple[int, ...], x: tuple[int, ...], y: tuple[int, ...]) -> Sample:
        return Sample((rng.random(c) < 0.5, rng.standard_normal(x), rng.standard_normal(y)))

    m, n = (int(k) for k in rng.integers(1, 70, 2))
    return [
        sample((0,), (0,), (0,)),
        sample((1,), (1,), (1,)),
        sample((300,), (300,), (300,)),
        sample((m, n), (n,), (m, 1)),
        sample((m, 1), (m, n), ()),
    ]


def errors() -> list[Invalid]:
    """A condition that is no bool, shapes that do not fit."""
    yes = np.ones(3, bool)
    return [
        Invalid((np.ones(3), np.ones(3), 0.0), DTypeError, "where: condition must have dtype"),
        Invalid((yes, np.ones(2), 0.0), ShapeError, "where: shapes must broadcast together"),
    ]


def where(condition: Tensor, x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x where the condition holds, else y, with broadcasting.

    Args:
        condition: bool.
        x: a tensor or a number.
        y: likewise; at least one of the two is a tensor.

    Raises:
        DTypeError: the condition is not bool.
        ShapeError: the shapes do not broadcast together.

    Example:
        >>> import blutrain as bt
        >>> x = bt.tensor([-1.0, 2.0])
        >>> bt.where(x > 0, x, 0.0).tolist()
        [0.0, 2.0]
    """
    check_dtype("where", "condition", check_tensor("where", "condition", condition), dtypes.bool_)
    a, b, number, reverse = operands("where", x, y)
    if b is None:
        b = from_numpy(np.asarray(number), a.dtype)
        a, b = (b, a) if reverse else (a, b)
    broadcast_shapes("where", condition.shape, broadcast_shapes("where", a.shape, b.shape))
    result: Tensor = apply("where", condition, a, b)
    return result


register(
    Op(
        name="where",
        forward=where_forward,
        backward=where_backward,
        reference=np.where,
        samples=samples,
        errors=errors,
        call=where,
    )
)

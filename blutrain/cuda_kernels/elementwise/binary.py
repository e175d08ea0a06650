"""Arithmetic of two tensors, or of a tensor and a number, with broadcasting.

Each op is a device function z = f(x, y) beside its two derivatives times the incoming gradient dz.
The gradient of an operand that was broadcast is summed back to the operand's shape. Per element:
two reads and one write forward, up to three reads and one write for each gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.primitives import provide
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.cast import cast
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.cuda_kernels.reduction.sum import sum_to_shape
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.dtypes import DType, promote, promote_scalar
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor

Number = bool | int | float


@cuda.jit(device=True)
def _add(x, y):
    return x + y


@cuda.jit(device=True)
def _pass_on(x, y, dz):
    return dz


@cuda.jit(device=True)
def _sub(x, y):
    return x - y


@cuda.jit(device=True)
def _sub_dy(x, y, dz):
    return -dz


@cuda.jit(device=True)
def _mul(x, y):
    return x * y


@cuda.jit(device=True)
def _mul_dx(x, y, dz):
    return dz * y


@cuda.jit(device=True)
def _mul_dy(x, y, dz):
    return dz * x


@cuda.jit(device=True)
def _div(x, y):
    return x / y


@cuda.jit(device=True)
def _div_dx(x, y, dz):
    return dz / y


@cuda.jit(device=True)
def _div_dy(x, y, dz):
    return -dz * x / (y * y)


@cuda.jit(device=True)
def _pow(x, y):
    return x**y


@cuda.jit(device=True)
def _pow_dx(x, y, dz):
    return type(dz)(0) if y == 0 else dz * y * x ** (y - type(y)(1))


@cuda.jit(device=True)
def _pow_dy(x, y, dz):
    # 0 ** y stays 0 around a positive y: its slope there is 0, not 0 * log(0).
    return type(dz)(0) if x == 0 and y >= 0 else dz * x**y * math.log(x)


@cuda.jit(device=True)
def _maximum(x, y):
    return x if x > y or x != x else y  # nan in either operand wins


@cuda.jit(device=True)
def _maximum_dx(x, y, dz):
    return dz if x > y else (type(dz)(0.5) * dz if x == y else type(dz)(0))


@cuda.jit(device=True)
def _maximum_dy(x, y, dz):
    return dz if y > x else (type(dz)(0.5) * dz if x == y else type(dz)(0))


@cuda.jit(device=True)
def _minimum(x, y):
    return x if x < y or x != x else y


@cuda.jit(device=True)
def _minimum_dx(x, y, dz):
    return dz if x < y else (type(dz)(0.5) * dz if x == y else type(dz)(0))


@cuda.jit(device=True)
def _minimum_dy(x, y, dz):
    return dz if y < x else (type(dz)(0.5) * dz if x == y else type(dz)(0))


class _Binary(NamedTuple):
    f: Any
    dx: Any
    dy: Any
    reference: Callable[[Any, Any], Any]
    keeps: bool = True  # whether the derivatives read x and y
    keeps_with_number: bool = True  # the same where y is a number
    integers: bool = True  # whether integers stay integers
    domain: tuple[float, float] = (-3, 3)
    kink: bool = False  # whether f has a kink at x = y, which samples then keep away from


_TABLE: dict[str, _Binary] = {
    "add": _Binary(_add, _pass_on, _pass_on, np.add, keeps=False, keeps_with_number=False),
    "sub": _Binary(_sub, _pass_on, _sub_dy, np.subtract, keeps=False, keeps_with_number=False),
    "mul": _Binary(_mul, _mul_dx, _mul_dy, np.multiply, keeps_with_number=False),
    "div": _Binary(_div, _div_dx, _div_dy, np.divide, integers=False, domain=(0.3, 3)),
    "pow": _Binary(_pow, _pow_dx, _pow_dy, np.power, domain=(0.3, 3)),
    "maximum": _Binary(_maximum, _maximum_dx, _maximum_dy, np.maximum, kink=True),
    "minimum": _Binary(_minimum, _minimum_dx, _minimum_dy, np.minimum, kink=True),
}


@functools.cache
def number_last(f: Any) -> Any:
    """f(x, a) for f(x, y)."""

    @cuda.jit(device=True)
    def with_number(x, a):
        return f(x, a)

    return with_number


@functools.cache
def number_first(f: Any) -> Any:
    """f(a, x) for f(x, y)."""

    @cuda.jit(device=True)
    def with_number(x, a):
        return f(a, x)

    return with_number


@functools.cache
def _gradient_number_last(g: Any) -> Any:
    @cuda.jit(device=True)
    def with_number(x, dz, a):
        return g(x, a, dz)

    return with_number


@functools.cache
def _gradient_number_first(g: Any) -> Any:
    @cuda.jit(device=True)
    def with_number(x, dz, a):
        return g(a, x, dz)

    return with_number


def as_compute(value: Number, dtype: DType) -> np.generic:
    """A number in the type that a kernel for `dtype` computes in."""
    if dtype.is_floating:
        scalar: np.generic = dtype.compute.type(value)
        return scalar
    return np.int64(value)


def broadcast_shapes(op: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape by NumPy's rules.

    Raises:
        ShapeError: there is none.
    """
    if a == b:
        return a
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        raise ShapeError(
            message(op, "shapes must broadcast together", f"{a} and {b}", "reshape or expand one")
        ) from None


def _forward(name: str, b: _Binary) -> Callable[..., Tensor]:
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, number: Number | None, reverse: bool
    ) -> Tensor:
        ctx.number, ctx.reverse = number, reverse
        if y is None:
            assert number is not None
            ctx.save(x if b.keeps_with_number or (reverse and b.keeps) else None, None)
            f = number_first(b.f) if reverse else number_last(b.f)
            scalars = [as_compute(number, x.dtype)]
            return map_elements(f, f"{name}_number_forward", [x], x.dtype, scalars)
        ctx.shapes = x.shape, y.shape
        ctx.save(x if b.keeps else None, y if b.keeps else None)
        shape = broadcast_shapes(name, x.shape, y.shape)
        return map_elements(b.f, f"{name}_forward", [x, y], x.dtype, shape=shape)

    return forward


def _backward(name: str, b: _Binary) -> Callable[..., tuple[Tensor | None, ...]]:
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved
        if ctx.number is not None:
            g = b.dy if ctx.reverse else b.dx
            if g is _pass_on:
                return dz, None
            bind = _gradient_number_first if ctx.reverse else _gradient_number_last
            inputs = [dz if x is None else x, dz]
            scalars = [as_compute(ctx.number, dz.dtype)]
            f = bind(g)
            return map_elements(f, f"{name}_number_backward", inputs, dz.dtype, scalars), None
        out: list[Tensor | None] = []
        for g, which, needed, shape in zip(
            (b.dx, b.dy), ("dx", "dy"), ctx.needs, ctx.shapes, strict=True
        ):
            if not needed:
                out.append(None)
                continue
            d = dz
            if g is not _pass_on:
                inputs = [dz if x is None else x, dz if y is None else y, dz]
                d = map_elements(g, f"{name}_backward_{which}", inputs, dz.dtype, shape=dz.shape)
            out.append(sum_to_shape(d, shape))
        return tuple(out)

    return backward


def _samples(b: _Binary) -> Callable[[np.random.Generator], list[Sample]]:
    def samples(rng: np.random.Generator) -> list[Sample]:
        def x(*shape: int) -> Any:
            drawn = np.asarray(rng.uniform(*b.domain, shape))
            return np.round(drawn * 8) / 8 if b.kink else drawn

        def y(*shape: int) -> Any:
            return x(*shape) + 1 / 16 if b.kink else x(*shape)

        m, n = (int(k) for k in rng.integers(1, 70, 2))
        return [
            Sample((x(0), y(0)), name="empty"),
            Sample((x(), y()), name="scalars"),
            Sample((x(1), y(1)), name="one"),
            Sample((x(300), y(300)), name="blocks"),
            Sample((x(m, n), y(n)), name="rows"),
            Sample((x(m, 1), y(1, n)), name="outer"),
            Sample((x(2, 1, 3, 1, 2), y(3, 1, 2, 1)), name="five dimensions"),
            Sample((x(m, n), 1.5625), name="number"),
        ]

    return samples


def _errors(name: str) -> Callable[[], list[Invalid]]:
    return lambda: [
        Invalid((np.ones(2), np.ones(3)), ShapeError, f"{name}: shapes must broadcast together"),
        Invalid((np.ones(2), "a"), DTypeError, f"{name}: y must be a tensor"),
    ]


def operands(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor | None, Number | None, bool]:
    """(tensor, tensor or None, number or None, whether the number came first), of one dtype.

    Raises:
        DTypeError: an operand is neither a tensor nor a number, or neither is a tensor.
    """
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if x.dtype is y.dtype:
            return x, y, None, False
        dtype = promote(x.dtype, y.dtype)
        return cast(x, dtype), cast(y, dtype), None, False
    t, number, reverse = (x, y, False) if isinstance(x, Tensor) else (y, x, True)
    if isinstance(number, np.generic):
        number = number.item()
    if not isinstance(number, (bool, int, float)):
        check_tensor(op, "x" if reverse else "y", number)
    check_tensor(op, "y" if reverse else "x", t)
    return cast(t, promote_scalar(t.dtype, number)), None, number, reverse


def _binary(name: str, x: Any, y: Any) -> Tensor:
    a, b, number, reverse = operands(name, x, y)
    if a.dtype is dtypes.bool_:
        a, b = cast(a, dtypes.int64), None if b is None else cast(b, dtypes.int64)
    if not a.dtype.is_floating and not _TABLE[name].integers:
        a, b = cast(a, dtypes.float32), None if b is None else cast(b, dtypes.float32)
    if b is not None:
        broadcast_shapes(name, a.shape, b.shape)
    result: Tensor = apply(name, a, b, number=number, reverse=reverse)
    return result


def add(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x + y, element by element.

    Args:
        x: a tensor or a number; at least one operand is a tensor.
        y: likewise; the shapes broadcast by NumPy's rules.

    Raises:
        ShapeError: the shapes do not broadcast together.
        DTypeError: an operand is neither tensor nor number.

    Example:
        >>> import blutrain as bt
        >>> bt.add(bt.tensor([1.0, 2.0]), 0.5).tolist()
        [1.5, 2.5]
    """
    return _binary("add", x, y)


def sub(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x - y, element by element; operands as for `add`.

    Example:
        >>> import blutrain as bt
        >>> bt.sub(1.0, bt.tensor([0.25])).tolist()
        [0.75]
    """
    return _binary("sub", x, y)


def mul(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x * y, element by element; operands as for `add`.

    Example:
        >>> import blutrain as bt
        >>> bt.mul(bt.tensor([[1.0], [2.0]]), bt.tensor([3.0, 4.0])).tolist()
        [[3.0, 4.0], [6.0, 8.0]]
    """
    return _binary("mul", x, y)


def div(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x / y, element by element; integers are divided as float32.

    Example:
        >>> import blutrain as bt
        >>> bt.div(bt.tensor([1, 2]), 4).tolist()
        [0.25, 0.5]
    """
    return _binary("div", x, y)


def pow(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x to the power y, element by element; operands as for `add`.

    Example:
        >>> import blutrain as bt
        >>> bt.pow(bt.tensor([3.0]), 2).tolist()
        [9.0]
    """
    if isinstance(x, Tensor) and isinstance(y, (int, float)) and y == 2:
        return _binary("mul", x, x)
    return _binary("pow", x, y)


def maximum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """The larger of x and y, element by element; equal ones share the gradient.

    Example:
        >>> import blutrain as bt
        >>> bt.maximum(bt.tensor([-1.0, 2.0]), 0).tolist()
        [0.0, 2.0]
    """
    return _binary("maximum", x, y)


def minimum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """The smaller of x and y, element by element; equal ones share the gradient.

    Example:
        >>> import blutrain as bt
        >>> bt.minimum(bt.tensor([-1.0, 2.0]), 0).tolist()
        [-1.0, 0.0]
    """
    return _binary("minimum", x, y)


def write_binary(name: str, x: Tensor, y: Tensor | None, number: Number | None) -> None:
    """x = f(x, y) in x's own memory, for the in-place operators; not recorded."""
    f = _TABLE[name].f
    if y is None:
        assert number is not None
        scalars = [as_compute(number, x.dtype)]
        map_elements(number_last(f), f"{name}_number_forward", [x], x.dtype, scalars, out=x)
    else:
        map_elements(f, f"{name}_forward", [x, y], x.dtype, out=x, shape=x.shape)


def accumulate(into: Tensor, t: Tensor) -> None:
    """into += t, in place; the engine's sum of gradients."""
    write_binary("add", into, t, None)


provide("accumulate", accumulate)

for _name, _b in _TABLE.items():
    register(
        Op(
            name=_name,
            forward=_forward(_name, _b),
            backward=_backward(_name, _b),
            reference=_b.reference,
            samples=_samples(_b),
            errors=_errors(_name),
            call=globals()[_name],
        )
    )

"""Comparisons, element by element, with broadcasting; the results are bool and have no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.binary import (
    Number,
    as_compute,
    broadcast_shapes,
    number_first,
    number_last,
    operands,
)
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.errors import DTypeError, ShapeError
from blutrain.tensor import Tensor


@cuda.jit(device=True)
def _eq(x, y):
    return x == y


@cuda.jit(device=True)
def _ne(x, y):
    return x != y


@cuda.jit(device=True)
def _lt(x, y):
    return x < y


@cuda.jit(device=True)
def _le(x, y):
    return x <= y


@cuda.jit(device=True)
def _gt(x, y):
    return x > y


@cuda.jit(device=True)
def _ge(x, y):
    return x >= y


_TABLE: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "eq": (_eq, np.equal),
    "ne": (_ne, np.not_equal),
    "lt": (_lt, np.less),
    "le": (_le, np.less_equal),
    "gt": (_gt, np.greater),
    "ge": (_ge, np.greater_equal),
}


def _forward(name: str, f: Any) -> Callable[..., Tensor]:
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, number: Number | None, reverse: bool
    ) -> Tensor:
        if y is None:
            assert number is not None
            bound = number_first(f) if reverse else number_last(f)
            scalars = [as_compute(number, x.dtype)]
            return map_elements(bound, f"{name}_number", [x], dtypes.bool_, scalars)
        shape = broadcast_shapes(name, x.shape, y.shape)
        return map_elements(f, name, [x, y], dtypes.bool_, shape=shape)

    return forward


def samples(rng: np.random.Generator) -> list[Sample]:
    """Small integers, so that equal elements occur."""

    def draw(*shape: int) -> Any:
        return rng.integers(-2, 3, shape).astype(np.float64)

    m, n = (int(k) for k in rng.integers(1, 70, 2))
    return [
        Sample((draw(0), draw(0)), name="empty"),
        Sample((draw(1), draw(1)), name="one"),
        Sample((draw(300), draw(300)), name="blocks"),
        Sample((draw(m, n), draw(n)), name="rows"),
        Sample((draw(m, n), 1), name="number"),
    ]


def _errors(name: str) -> Callable[[], list[Invalid]]:
    return lambda: [
        Invalid((np.ones(2), np.ones(3)), ShapeError, f"{name}: shapes must broadcast together"),
        Invalid((np.ones(2), None), DTypeError, f"{name}: y must be a tensor"),
    ]


def _compare(name: str, x: Any, y: Any) -> Tensor:
    a, b, number, reverse = operands(name, x, y)
    if b is not None:
        broadcast_shapes(name, a.shape, b.shape)
    result: Tensor = apply(name, a, b, number=number, reverse=reverse)
    return result


def eq(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Where x equals y.

    Example:
        >>> import blutrain as bt
        >>> bt.eq(bt.tensor([1, 2]), 2).tolist()
        [False, True]
    """
    return _compare("eq", x, y)


def ne(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Where x differs from y; nan differs from itself.

    Example:
        >>> import blutrain as bt
        >>> bt.ne(bt.tensor([1, 2, 3]), 2).tolist()
        [True, False, True]
    """
    return _compare("ne", x, y)


def lt(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Where x is less than y.

    Example:
        >>> import blutrain as bt
        >>> bt.lt(bt.tensor([1, 2, 3]), 2).tolist()
        [True, False, False]
    """
    return _compare("lt", x, y)


def le(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Where x is at most y.

    Example:
        >>> import blutrain as bt
        >>> bt.le(bt.tensor([1, 2, 3]), 2).tolist()
        [True, True, False]
    """
    return _compare("le", x, y)


def gt(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Where x is greater than y.

    Example:
        >>> import blutrain as bt
        >>> bt.gt(bt.tensor([1, 2, 3]), 2).tolist()
        [False, False, True]
    """
    return _compare("gt", x, y)


def ge(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Where x is at least y.

    Example:
        >>> import blutrain as bt
        >>> bt.ge(bt.tensor([1, 2, 3]), 2).tolist()
        [False, True, True]
    """
    return _compare("ge", x, y)


for _name, (_f, _reference) in _TABLE.items():
    register(
        Op(
            name=_name,
            forward=_forward(_name, _f),
            backward=None,
            reference=_reference,
            samples=samples,
            errors=_errors(_name),
            call=globals()[_name],
            differentiable=False,
        )
    )

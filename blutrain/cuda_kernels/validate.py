"""The checks that public functions make before anything is launched."""

from __future__ import annotations

from typing import Any

from blutrain.dtypes import DType
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor


def check_tensor(op: str, name: str, value: Any) -> Tensor:
    """`value` if it is a tensor.

    Raises:
        DTypeError: it is something else; the message says how to make a tensor of it.
    """
    if isinstance(value, Tensor):
        return value
    raise DTypeError(
        message(op, f"{name} must be a tensor", type(value).__name__, "pass bt.tensor(...) of it")
    )


def check_floating(op: str, name: str, value: Any) -> Tensor:
    """`value` if it is a tensor of a floating dtype.

    Raises:
        DTypeError: it is not.
    """
    t = check_tensor(op, name, value)
    if not t.dtype.is_floating:
        raise DTypeError(
            message(op, f"{name} must have a floating dtype", t.dtype, f"pass {name}.to('float32')")
        )
    return t


def check_dtype(op: str, name: str, t: Tensor, dtype: DType) -> None:
    """Require a dtype.

    Raises:
        DTypeError: `t` has another.
    """
    if t.dtype is not dtype:
        raise DTypeError(
            message(
                op, f"{name} must have dtype {dtype}", t.dtype, f"pass {name}.to({dtype.name!r})"
            )
        )


def check_shape(op: str, name: str, t: Tensor, shape: tuple[int, ...]) -> None:
    """Require a shape.

    Raises:
        ShapeError: `t` has another.
    """
    if t.shape != shape:
        raise ShapeError(message(op, f"{name} must have shape {shape}", t.shape))


def as_axes(op: str, axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """The dimensions that `axis` names, each within [0, ndim), ascending; all for None.

    Raises:
        ShapeError: one is out of range or named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    if any(not -ndim <= a < ndim for a in given):
        raise ShapeError(message(op, f"axis must be within {ndim} dimensions", axis))
    axes = tuple(sorted(a % ndim for a in given))
    if len(set(axes)) != len(axes):
        raise ShapeError(message(op, "axes must differ", axis))
    return axes

"""Numba's numbers in Python.

Numba computes with integers in 64 bits, whatever narrower types went in: two unsigned ones give an
unsigned one, all others a signed one. So every signed integer is an `int`, every unsigned one an
`Unsigned`, and only a cast, a store, a product or a shift can meet the ends of its type. Reals are
NumPy's float32 and float64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

_TOP = 1 << 63


def signed(value: int, bits: int = 64) -> int:
    """The low bits of an integer as a two's complement number."""
    half = 1 << (bits - 1)
    return (int(value) + half & (half << 1) - 1) - half


class Wrapped(int):
    """A signed integer that overflowed on its way, or was computed from one that did.

    It is an ordinary number for the kernel. An index that is one is a mistake. What a remainder, a
    mask of bits or a shift makes of it is not: hashes are made so.

    Attributes:
        why: what overflowed.
    """

    why: str

    def __new__(cls, value: int, why: str) -> Wrapped:
        """The low 64 bits of `value`."""
        made = super().__new__(cls, signed(value))
        made.why = why
        return made

    def __neg__(self) -> Wrapped:
        return Wrapped(-int(self), self.why)


class Unsigned(int):
    """An unsigned integer: what arithmetic gives has 64 bits.

    Attributes:
        bits: its width, which matters to `~` and `-` alone.
    """

    bits = 64

    def __new__(cls, value: Any = 0) -> Unsigned:
        """The low bits of `value`."""
        return super().__new__(cls, int(value) & (1 << cls.bits) - 1)

    def __invert__(self) -> Unsigned:
        return Unsigned(~int(self) & (1 << self.bits) - 1)

    def __neg__(self) -> Unsigned:
        return Unsigned(-int(self) & (1 << self.bits) - 1)


class Unsigned8(Unsigned):
    """Of 8 bits."""

    bits = 8


class Unsigned16(Unsigned):
    """Of 16 bits."""

    bits = 16


class Unsigned32(Unsigned):
    """Of 32 bits."""

    bits = 32


UNSIGNED = {8: Unsigned8, 16: Unsigned16, 32: Unsigned32, 64: Unsigned}
# Types of indices of which nothing is to be said.
PLAIN = frozenset([int, *UNSIGNED.values()])


def _tainted(function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def combine(self: Wrapped, other: Any) -> Any:
        a, b = (other, int(self)) if swapped else (int(self), other)
        result = function(a, b)
        return Wrapped(result, self.why) if isinstance(result, int) else result

    return combine


def _unsigned(function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def combine(self: Unsigned, other: Any) -> Any:
        if not isinstance(other, int):
            return function(other, float(self)) if swapped else function(float(self), other)
        result = function(int(other), int(self)) if swapped else function(int(self), int(other))
        return Unsigned(result) if isinstance(other, Unsigned) else signed(result)

    return combine


def _shift(function: Callable[[int, int], int]) -> Callable[[Unsigned, Any], Unsigned]:
    # The type of a shift is that of what is shifted.
    return lambda self, count: Unsigned(function(int(self), int(count)))


for _name in ("add", "sub", "mul", "floordiv"):
    for _swapped in (False, True):
        _method = f"__{'r' if _swapped else ''}{_name}__"
        setattr(Wrapped, _method, _tainted(getattr(operator, _name), _swapped))
for _name in ("add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "pow"):
    for _swapped in (False, True):
        _method = f"__{'r' if _swapped else ''}{_name.rstrip('_')}__"
        setattr(Unsigned, _method, _unsigned(getattr(operator, _name), _swapped))
Unsigned.__lshift__ = _shift(operator.lshift)  # type: ignore[method-assign,assignment]
Unsigned.__rshift__ = _shift(operator.rshift)  # type: ignore[method-assign,assignment]


def product(a: Any, b: Any) -> Any:
    """`a * b`."""
    result = a * b
    if type(result) is int and not -_TOP <= result < _TOP:
        return Wrapped(result, f"{a} * {b} does not fit int64")
    return result


def shifted(a: Any, b: Any) -> Any:
    """`a << b`."""
    result = a << b
    return signed(result) if type(result) is int and not -_TOP <= result < _TOP else result


def power(a: Any, b: Any) -> Any:
    """`a ** b`."""
    if isinstance(a, int) and isinstance(b, int) and b >= 0:
        result = int(a) ** int(b)
        return result if -_TOP <= result < _TOP else Wrapped(result, f"{a} ** {b} in int64")
    return real(a) ** real(b)


def quotient(a: Any, b: Any) -> Any:
    """`a / b`: as on a GPU, a division by zero gives infinity or NaN."""
    return real(a) / real(b)


def real(value: Any) -> Any:
    """A number as a NumPy real."""
    return value if isinstance(value, np.floating | np.complexfloating) else np.float64(value)


def number(value: Any) -> Any:
    """A NumPy scalar as the interpreter computes with it."""
    if isinstance(value, np.unsignedinteger):
        return UNSIGNED[8 * value.itemsize](int(value))
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.float16):
        return np.float32(value)
    return value


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value
    if not np.isfinite(value):  # what a GPU's conversion gives
        return 0 if np.isnan(value) else (_TOP - 1 if value > 0 else -_TOP)
    return int(value)


def _signed_cast(name: str, bits: int) -> Callable[..., Any]:
    half = 1 << (bits - 1)

    def cast(value: Any = 0) -> Any:
        whole = _integer(value)
        if -half <= whole < half:
            return whole if type(whole) is Wrapped else int(whole)
        # An unsigned number may be meant as bits.
        wrong = f"{name}({int(whole)}) does not fit"
        low = signed(whole, bits)
        return low if isinstance(value, Unsigned) else Wrapped(low, wrong)

    return cast


def _unsigned_cast(bits: int) -> Callable[..., Any]:
    kind = UNSIGNED[bits]
    return lambda value=0: kind(_integer(value))


CASTS: dict[str, Callable[..., Any]] = {
    **{f"int{bits}": _signed_cast(f"int{bits}", bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _unsigned_cast(bits) for bits in (8, 16, 32, 64)},
    "float16": lambda value=0: np.float32(np.float16(value)),
    "float32": lambda value=0: np.float32(value),
    "float64": lambda value=0: np.float64(value),
    "complex64": lambda value=0: np.complex64(value),
    "complex128": lambda value=0: np.complex128(value),
    "bool": bool,
}
for _name, _cast in CASTS.items():
    if _name != "bool":
        # What the type means where an array is asked for.
        setattr(_cast, "dtype", np.dtype(_name))  # noqa: B010 (a function's attribute)

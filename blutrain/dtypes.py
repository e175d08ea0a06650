"""Element types, and how they combine.

Promotion is NumPy's (`numpy.result_type`), with bfloat16 added beside float16: a half with an
integer of one byte stays that half, with a wider integer it becomes what float16 would, the two
halves together become float32. Python scalars are weak: they never widen a tensor of their kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blutrain.errors import DTypeError, message


@dataclass(frozen=True, eq=False)
class DType:
    """One element type.

    Attributes:
        name: the name, such as "float32".
        itemsize: bytes an element.
        kind: "f" float, "i" signed, "u" unsigned, "b" bool.
        storage: NumPy dtype of the bytes as they are stored (uint16 for bfloat16).
        compute: NumPy dtype that arithmetic happens in (float32 for the two halves).
    """

    name: str
    itemsize: int
    kind: str
    storage: np.dtype[Any] = field(repr=False)
    compute: np.dtype[Any] = field(repr=False)

    @property
    def is_floating(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.kind == "f"

    @property
    def is_half(self) -> bool:
        """Whether this is float16 or bfloat16: stored in 16 bits, computed in float32."""
        return self.kind == "f" and self.itemsize == 2

    def __repr__(self) -> str:
        return f"bt.{self.name}"

    def __reduce__(self) -> str:
        return self.name


def _dtype(name: str, storage: str = "", compute: str = "") -> DType:
    stored = np.dtype(storage or name)
    kind = "f" if name == "bfloat16" else stored.kind
    return DType(name, stored.itemsize, kind, stored, np.dtype(compute or storage or name))


float32 = _dtype("float32")
float64 = _dtype("float64")
float16 = _dtype("float16", compute="float32")
bfloat16 = _dtype("bfloat16", storage="uint16", compute="float32")
int8 = _dtype("int8")
int16 = _dtype("int16")
int32 = _dtype("int32")
int64 = _dtype("int64")
uint8 = _dtype("uint8")
uint16 = _dtype("uint16")
bool_ = _dtype("bool")

ALL: tuple[DType, ...] = (
    float32, float64, float16, bfloat16, int8, int16, int32, int64, uint8, uint16, bool_
)  # fmt: skip
FLOATING: tuple[DType, ...] = (float32, float64, float16, bfloat16)
_BY_NAME = {d.name: d for d in ALL}


def as_dtype(value: object) -> DType:
    """The DType for a DType, a name, a NumPy dtype or one of Python's float, int, bool.

    Raises:
        DTypeError: blutrain has no such element type.

    Example:
        >>> as_dtype("float16"), as_dtype(float)
        (bt.float16, bt.float32)
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, type) and value in (float, int, bool):  # np.dtype(float) == float too
        return {float: float32, int: int64, bool: bool_}[value]
    try:
        name = value if isinstance(value, str) else np.dtype(value).name  # type: ignore[call-overload]
        return _BY_NAME[name]
    except (KeyError, TypeError):
        have = ", ".join(_BY_NAME)
        raise DTypeError(message("dtype", f"must be one of {have}", value)) from None


def promote(*dtypes: DType) -> DType:
    """The dtype that an operation on these dtypes yields.

    Example:
        >>> promote(float32, int8), promote(bfloat16, float16), promote(int32, uint8)
        (bt.float32, bt.float32, bt.int32)
    """
    result = dtypes[0]
    for other in dtypes[1:]:
        result = _promote_two(result, other)
    return result


def _promote_two(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if bfloat16 in (a, b):
        other = b if a is bfloat16 else a
        if other is float16:
            return float32
        wide = _BY_NAME[np.result_type(np.float16, other.storage).name]
        return bfloat16 if wide is float16 else wide
    return _BY_NAME[np.result_type(a.storage, b.storage).name]


def promote_scalar(dtype: DType, scalar: bool | int | float) -> DType:
    """The dtype of a tensor of `dtype` combined with a (weak) Python scalar.

    Example:
        >>> promote_scalar(float16, 2.5), promote_scalar(int8, 3), promote_scalar(int8, 0.5)
        (bt.float16, bt.int8, bt.float32)
    """
    if isinstance(scalar, bool) or dtype.is_floating:
        return dtype
    if isinstance(scalar, float):
        return float32
    return int64 if dtype is bool_ else dtype


def to_storage(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """`values` as the bytes that a tensor of `dtype` stores (bfloat16: round to nearest even)."""
    if dtype is not bfloat16:
        return np.asarray(values, dtype=dtype.storage, order="C")
    bits = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    quiet_nan = (bits >> 16) | np.uint32(0x40)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, quiet_nan, rounded).astype(np.uint16)


def from_storage(stored: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """The inverse of `to_storage`; bfloat16 comes back as float32."""
    if dtype is not bfloat16:
        return stored
    return (stored.astype(np.uint32) << 16).view(np.float32)

"""Packing the arguments of a launch, the same bytes for both targets.

Numba passes an array to a kernel as consecutive fields: meminfo, parent, size, itemsize, data,
shape..., strides... Here each field, and each scalar, is one slot of eight bytes in a buffer. The
cuda target hands the driver a pointer to every slot; the cpu target hands the compiled kernel the
buffer. Which kernel is compiled depends on the *types* alone, so `type_of` makes the key.

Scalars: Python bool, int and float are boolean, int64 and float32; a NumPy scalar keeps its type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types

from blutrain import dtypes
from blutrain.device.array import Array
from blutrain.device.half import HalfArray
from blutrain.errors import DTypeError, message

# One slot of eight bytes a scalar type: (struct format, Numba type).
SCALARS: dict[type, tuple[str, types.Type]] = {
    bool: ("?7x", types.boolean),
    np.bool_: ("?7x", types.boolean),
    int: ("q", types.int64),
    float: ("f4x", types.float32),
    np.float32: ("f4x", types.float32),
    np.float64: ("d", types.float64),
    np.int8: ("b7x", types.int8),
    np.int16: ("h6x", types.int16),
    np.int32: ("i4x", types.int32),
    np.int64: ("q", types.int64),
    np.uint8: ("B7x", types.uint8),
    np.uint16: ("H6x", types.uint16),
    np.uint32: ("I4x", types.uint32),
    np.uint64: ("Q", types.uint64),
}
_ELEMENTS = {
    d: types.boolean if d is dtypes.bool_ else getattr(types, d.name)
    for d in dtypes.ALL
    if not d.is_half
}

# The type of one argument: a scalar's Python type, or (dtype, ndim, layout) for an array.
ArgumentType = type | tuple[dtypes.DType, int, str]


def type_of(argument: Any, where: str = "launch") -> ArgumentType:
    """The key of an argument's type.

    Raises:
        DTypeError: a kernel cannot take such an argument.
    """
    if type(argument) is Array:
        return (argument.dtype, len(argument.shape), argument.layout)
    if type(argument) in SCALARS:
        return type(argument)
    raise DTypeError(
        message(
            where, "an argument must be a tensor, an Array or a scalar", type(argument).__name__
        )
    )


def numba_type(key: ArgumentType) -> types.Type:
    """The Numba type that the kernel is compiled for."""
    if not isinstance(key, tuple):
        return SCALARS[key][1]
    dtype, ndim, layout = key
    if dtype.is_half:
        return HalfArray(dtype.name, ndim, layout)
    return types.Array(_ELEMENTS[dtype], ndim, layout)


def slots(keys: Sequence[ArgumentType]) -> struct.Struct:
    """The layout of the buffer for arguments of these types, in slots of eight bytes."""
    text = "="
    for key in keys:
        text += f"qqqqQ{2 * key[1]}q" if isinstance(key, tuple) else SCALARS[key][0]
    return struct.Struct(text)


def packer(keys: Sequence[ArgumentType]) -> Callable[..., None]:
    """A function (buffer, *arguments) that puts arguments of these types into the slots.

    It is written out for the types, with one variable for each extent and stride: taking tuples
    apart and putting them together again would be half the time of a launch.

    Example:
        >>> pack = packer([int, bool])
        >>> data = bytearray(16)
        >>> pack(data, 7, True)
        >>> data[0], data[8]
        (7, 1)
    """
    lines, fields, text = [], [], "="
    names = [f"a{k}" for k in range(len(keys))]
    for name, key in zip(names, keys, strict=True):
        if not isinstance(key, tuple):
            text += SCALARS[key][0]
            fields.append(name)
            continue
        dtype, ndim, _ = key
        extents = [f"{name}n{k}" for k in range(ndim)]
        steps = [f"{name}s{k}" for k in range(ndim)]
        text += f"16xqqQ{2 * ndim}q"
        if ndim:
            lines.append(f"{', '.join(extents)}, = {name}.shape")
            lines.append(f"{', '.join(steps)}, = {name}.strides")
        size = " * ".join(extents) or "1"
        fields += [size, str(dtype.itemsize), f"{name}.pointer", *extents, *steps]
    lines.append(f"pack({', '.join(['data', '0', *fields])})")
    source = f"def pack_arguments({', '.join(['data', *names])}):\n    " + "\n    ".join(lines)
    scope: dict[str, Any] = {"pack": struct.Struct(text).pack_into}
    exec(source, scope)
    made: Callable[..., None] = scope["pack_arguments"]
    return made

"""CUDA's vector types on the CPU: `cuda.float4(x, y, z, w)` is a tuple of four float32.

Its fields `.x` to `.w` are the tuple's elements. As in numba-cuda, a vector is made of as many
numbers, of which shorter vectors may give some: `cuda.float4(pair, z, w)`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FIELDS = "xyzw"
_NAME = re.compile(r"((?:u?int|float)\d+)x([1-4])")
_ALIAS = re.compile(r"(u?)(char|short|int|longlong|long|float|double)([1-4])")
_BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "longlong": 64, "float": 32, "double": 64}


def element_of(name: str) -> tuple[types.Type, int] | None:
    """The type and the number of a vector type's elements; None for another name.

    Example:
        >>> element_of("float4"), element_of("uint8x2"), element_of("popc")
        ((float32, 4), (uint8, 2), None)
    """
    if found := _NAME.fullmatch(name):
        return getattr(types, found[1], None), int(found[2])
    found = _ALIAS.fullmatch(name)
    if found is None:
        return None
    family = "float" if found[2] in ("float", "double") else found[1] + "int"
    return getattr(types, f"{family}{_BITS[found[2]]}"), int(found[3])


def field(kind: Any, attribute: str) -> int | None:
    """Which element of a type an attribute is; None where it is none of a vector's."""
    if type(kind) is not types.UniTuple or attribute not in FIELDS[: kind.count]:
        return None
    return FIELDS.index(attribute)


@functools.cache
def maker(name: str) -> Any:
    """The function that makes vectors of a type, or None."""
    found = element_of(name)
    if found is None or found[0] is None:
        return None
    element, count = found

    def typed(typing_context: Any, *given: Any) -> Any:
        parts = [list(k) if isinstance(k, types.UniTuple) else [k] for k in given]
        flat = [types.unliteral(k) for part in parts for k in part]
        numbers = all(isinstance(k, types.Number | types.Boolean) for k in flat)
        if len(flat) != count or not numbers:
            return None

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            elements = []
            for value, kind in zip(values, given, strict=True):
                if isinstance(kind, types.UniTuple):
                    elements += cgutils.unpack_tuple(builder, value, kind.count)
                else:
                    elements.append(value)
            cast = [context.cast(builder, v, k, element)
                    for v, k in zip(elements, flat, strict=True)]  # fmt: skip
            return context.make_tuple(builder, signature.return_type, cast)

        return types.UniTuple(element, count)(*given), codegen

    typed.__name__ = typed.__qualname__ = name
    return intrinsic(typed)

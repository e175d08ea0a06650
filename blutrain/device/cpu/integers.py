"""Operations on the bits of integers, and indices that are known not to be negative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _bits(name: str, result: Any, operation: Callable[[Any, Any, Any], Any]) -> Any:
    """A function of an integer's bits."""

    def typed(typing_context: Any, x: Any) -> Any:
        if not isinstance(x, types.Integer):
            return None

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = operation(builder, values[0], values[0].type)
            returned = signature.return_type
            if value.type.width > returned.bitwidth:
                return builder.trunc(value, ir.IntType(returned.bitwidth))
            if value.type.width < returned.bitwidth:
                return builder.zext(value, ir.IntType(returned.bitwidth))
            return value

        return (result or x)(x), codegen

    typed.__name__ = typed.__qualname__ = f"_{name}"
    return intrinsic(typed)


def _find_first_set(builder: Any, x: Any, llvm_type: Any) -> Any:
    zeros = builder.cttz(x, ir.IntType(1)(0))
    is_zero = builder.icmp_unsigned("==", x, llvm_type(0))
    return builder.select(is_zero, llvm_type(0), builder.add(zeros, llvm_type(1)))


popc = _bits("popc", types.int32, lambda builder, x, t: builder.ctpop(x))
clz = _bits("clz", types.int32, lambda builder, x, t: builder.ctlz(x, ir.IntType(1)(0)))
ffs = _bits("ffs", types.int32, _find_first_set)
brev = _bits("brev", None, lambda builder, x, t: builder.bitreverse(x))


@intrinsic
def _unsigned(typing_context: Any, index: Any) -> Any:
    """An integer that is known to be non-negative, as an unsigned one."""
    given = types.unliteral(index)
    if not isinstance(given, types.Integer):
        # A float or a tuple that only looks like an integer: as it is, for Numba to judge.
        return given(given), lambda context, builder, signature, values: values[0]

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.cast(builder, values[0], given, types.intp)

    return types.uintp(given), codegen


unsigned = _unsigned

"""Mathematical functions as LLVM code that LLVM can vectorise."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _real(*kinds: Any) -> types.Type:
    """The floating-point type in which operands of these types are combined."""
    if all(k is types.float32 for k in kinds):
        return types.float32
    return types.float64


def _llvm_function(builder: Any, name: str, llvm_type: Any, values: list[Any]) -> Any:
    suffix = "f32" if isinstance(llvm_type, ir.FloatType) else "f64"
    kind = ir.FunctionType(llvm_type, [llvm_type] * len(values))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.{suffix}")
    return builder.call(function, values)


def _extreme(name: str, order: str, llvm_name: str) -> Any:
    """Two-operand min or max; of a number and a NaN the number, as CUDA has it."""

    def typed(typing_context: Any, a: Any, b: Any) -> Any:
        given = (types.unliteral(a), types.unliteral(b))
        kind = typing_context.unify_types(*given)
        if not isinstance(kind, types.Number | types.Boolean):
            return None

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, y = (context.cast(builder, v, k, kind) for v, k in zip(values, given, strict=True))
            if isinstance(kind, types.Float):
                return _llvm_function(builder, llvm_name, x.type, [x, y])
            signed = getattr(kind, "signed", False)
            compare = builder.icmp_signed if signed else builder.icmp_unsigned
            return builder.select(compare(order, y, x), y, x)

        return kind(*given), codegen

    typed.__name__ = typed.__qualname__ = f"_{name}"
    return intrinsic(typed)


minimum = _extreme("minimum", "<", "minnum")
maximum = _extreme("maximum", ">", "maxnum")


@intrinsic
def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    kinds = [types.unliteral(k) for k in (a, b, c)]
    real = _real(*kinds)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        cast = [context.cast(builder, v, k, real) for v, k in zip(values, kinds, strict=True)]
        return _llvm_function(builder, "fma", context.get_value_type(real), cast)

    return real(*kinds), codegen


fma = _fma


@intrinsic
def _select(typing_context: Any, test: Any, a: Any, b: Any) -> Any:
    """`a if test else b`, both evaluated."""
    kind = typing_context.unify_types(types.unliteral(a), types.unliteral(b))

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        flag = context.cast(builder, values[0], signature.args[0], types.boolean)
        one = context.cast(builder, values[1], signature.args[1], kind)
        other = context.cast(builder, values[2], signature.args[2], kind)
        return builder.select(flag, one, other)

    return kind(test, a, b), codegen


select = _select
cbrt = None
MATH: dict[str, Any] = {}
LIBDEVICE: dict[str, Any] = {}

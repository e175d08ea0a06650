"""Mathematical functions as Numba intrinsics, with the types that CUDA gives them.

A float32 stays float32 and is computed by a formula that LLVM can vectorise (`formulas.py`), a
float64 by libm; an integer is converted to float64 first. `floor` and `ceil` give floats, as in
CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.device.cpu import formulas
from blutrain.device.cpu.reals import Real


def _is_number(*kinds: Any) -> bool:
    return all(isinstance(k, types.Number | types.Boolean) for k in kinds)


def _real(*kinds: Any) -> types.Type:
    """The floating-point type in which operands of these types are combined."""
    return types.float32 if all(k == types.float32 for k in kinds) else types.float64


def _named(name: str, typed: Any) -> Any:
    """A function as an intrinsic of that name."""
    typed.__name__ = typed.__qualname__ = f"_{name}"
    return intrinsic(typed)


def _result(
    context: Any, builder: Any, kind: types.Type, single: Any, name: str, values: list[Real]
) -> Any:
    """A function's LLVM value: by formula for float32, by LLVM or libm otherwise."""
    if kind == types.float32 and single is not None:
        return single(*values).value
    if name in _LLVM:
        return values[0].call(_LLVM[name], *values[1:]).value
    if name in _LIBM:
        llvm_type = values[0].value.type
        declared = ir.FunctionType(llvm_type, [llvm_type] * len(values))
        symbol = name + ("f" if kind == types.float32 else "")
        library = cgutils.get_or_insert_function(builder.module, declared, symbol)
        return builder.call(library, [v.value for v in values])
    signature = kind(*[kind] * len(values))
    found = context.get_function(getattr(math, name), signature)
    return found(builder, [v.value for v in values])


# Functions that LLVM has itself: an instruction, or a call of libm.
_LLVM = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "fabs",
    "copysign": "copysign", "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2",
    "log10": "log10", "sin": "sin", "cos": "cos", "pow": "pow", "rint": "rint",
}  # fmt: skip


# Functions of libm that Numba does not have in both precisions.
_LIBM = ("cbrt", "fmod", "nextafter", "remainder")


def _unary(name: str, single: Callable[[Real], Real] | None = None) -> Any:
    """A function of one number."""

    def typed(typing_context: Any, x: Any) -> Any:
        given = types.unliteral(x)
        if not _is_number(given):
            return None
        kind = _real(given)

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = Real(builder, context.cast(builder, values[0], given, kind))
            return _result(context, builder, kind, single, name, [value])

        return kind(given), codegen

    return _named(name, typed)


def _binary(name: str, single: Callable[[Real, Real], Real] | None = None) -> Any:
    """A function of two numbers."""

    def typed(typing_context: Any, x: Any, y: Any) -> Any:
        given = (types.unliteral(x), types.unliteral(y))
        if not _is_number(*given):
            return None
        kind = _real(*given)

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            cast = [
                Real(builder, context.cast(builder, v, k, kind))
                for v, k in zip(values, given, strict=True)
            ]
            return _result(context, builder, kind, single, name, cast)

        return kind(*given), codegen

    return _named(name, typed)


def _extreme(name: str, order: str, llvm_name: str) -> Any:
    """Two-operand min or max; of a number and a NaN the number, as CUDA has it."""

    def typed(typing_context: Any, a: Any, b: Any) -> Any:
        given = (types.unliteral(a), types.unliteral(b))
        kind = typing_context.unify_types(*given)
        if not _is_number(kind):
            return None

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, y = (context.cast(builder, v, k, kind) for v, k in zip(values, given, strict=True))
            if isinstance(kind, types.Float):
                return Real(builder, x).call(llvm_name, Real(builder, y)).value
            signed = getattr(kind, "signed", False)
            compare = builder.icmp_signed if signed else builder.icmp_unsigned
            return builder.select(compare(order, y, x), y, x)

        return kind(*given), codegen

    return _named(name, typed)


minimum = _extreme("minimum", "<", "minnum")
maximum = _extreme("maximum", ">", "maxnum")


@intrinsic
def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    given = [types.unliteral(k) for k in (a, b, c)]
    kind = _real(*given)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y, z = (
            Real(builder, context.cast(builder, v, k, kind))
            for v, k in zip(values, given, strict=True)
        )
        return x.fma(y, z).value

    return kind(*given), codegen


@intrinsic
def _select(typing_context: Any, test: Any, a: Any, b: Any) -> Any:
    """`a if test else b`, both evaluated."""
    given = (types.unliteral(a), types.unliteral(b))
    kind = typing_context.unify_types(*given)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        flag = context.cast(builder, values[0], signature.args[0], types.boolean)
        flag = builder.trunc(flag, ir.IntType(1)) if flag.type.width > 1 else flag
        one, other = (
            context.cast(builder, v, k, kind) for v, k in zip(values[1:], given, strict=True)
        )
        return builder.select(flag, one, other)

    return kind(test, *given), codegen


def _classify(name: str, test: Callable[[Real], Any]) -> Any:
    """A question about one number; integers are never NaN or infinite."""

    def typed(typing_context: Any, x: Any) -> Any:
        given = types.unliteral(x)
        if not _is_number(given):
            return None
        kind = _real(given)

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return test(Real(builder, context.cast(builder, values[0], given, kind)))

        return types.boolean(given), codegen

    return _named(name, typed)


@intrinsic
def _half(typing_context: Any, x: Any) -> Any:
    """A number rounded to the nearest float16, as a float32."""
    given = types.unliteral(x)
    if not _is_number(given):
        return None

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        value = context.cast(builder, values[0], given, _real(given))
        return builder.fpext(builder.fptrunc(value, ir.HalfType()), ir.FloatType())

    return types.float32(given), codegen


@intrinsic
def _modf(typing_context: Any, x: Any) -> Any:
    """The fractional and the whole part of a number, each with its sign."""
    given = types.unliteral(x)
    if not _is_number(given):
        return None
    kind = _real(given)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x = Real(builder, context.cast(builder, values[0], given, kind))
        whole = x.call("trunc")
        rest = builder.fsub(x.value, whole.value)
        infinite = x.magnitude().test("==", math.inf)
        rest = builder.select(infinite, ir.Constant(rest.type, 0.0), rest)
        rest = Real(builder, rest).call("copysign", x)
        return context.make_tuple(builder, signature.return_type, [rest.value, whole.value])

    return types.UniTuple(kind, 2)(given), codegen


half, modf = _half, _modf
ONE, TEN = np.float32(1), np.float32(10)
fma, select = _fma, _select
cbrt, rint = _unary("cbrt"), _unary("rint")
exp2, rsqrt = _unary("exp2", formulas.exp2), _unary("rsqrt", formulas.rsqrt)

_FORMULAS = ("exp", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "sin", "cos", "tan")
_OTHERS = (
    "sqrt", "floor", "ceil", "trunc", "fabs", "acos", "acosh", "asin", "asinh", "atan", "atanh",
    "cosh", "sinh", "erfc", "gamma", "lgamma", "degrees", "radians",
)  # fmt: skip

# The functions of Python's `math` that kernels may call.
MATH: dict[str, Any] = {
    **{name: _unary(name, getattr(formulas, name)) for name in _FORMULAS},
    **{name: _unary(name) for name in _OTHERS},
    "pow": _binary("pow", formulas.pow),
    **{
        name: _binary(name)
        for name in ("copysign", "atan2", "fmod", "hypot", "nextafter", "remainder")
    },
    "exp2": exp2,
    "cbrt": cbrt,
    "modf": modf,
    "isnan": _classify("isnan", lambda x: x.is_nan()),
    "isinf": _classify("isinf", lambda x: x.magnitude().test("==", math.inf)),
    "isfinite": _classify("isfinite", lambda x: x.magnitude().test("<", math.inf)),
}

# CUDA's libdevice, whose float32 functions end in f.
LIBDEVICE: dict[str, Any] = {
    **{name + "f": meaning for name, meaning in MATH.items() if not name.startswith("is")},
    **{name: meaning for name, meaning in MATH.items() if not name.startswith("is")},
    **{f"fast_{f}f": MATH[f] for f in ("exp", "log", "log2", "log10", "sin", "cos", "pow")},
    "rsqrt": rsqrt, "rsqrtf": rsqrt, "fma": fma, "fmaf": fma, "fmaxf": maximum, "fminf": minimum,
    "fmax": maximum, "fmin": minimum,
}  # fmt: skip

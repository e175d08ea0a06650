"""Floating-point LLVM values with Python's operators: `x * y + z` makes two instructions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

F32, F64, I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_INF = math.inf
_SUFFIX = {F32: "f32", F64: "f64"}


class Real:
    """A floating-point LLVM value (float or double) with arithmetic."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def of(self, x: Real | float) -> Any:
        """An operand as an LLVM value of this one's type."""
        if isinstance(x, Real):
            return x.value
        if self.value.type == F32:  # llvmlite wants a double that is exactly a float
            x = struct.unpack("f", struct.pack("f", x))[0] if math.isfinite(x) else x
        return ir.Constant(self.value.type, float(x))

    def _make(self, value: Any) -> Real:
        return Real(self.builder, value)

    def __add__(self, x: Real | float) -> Real:
        return self._make(self.builder.fadd(self.value, self.of(x)))

    def __radd__(self, x: float) -> Real:
        return self._make(self.builder.fadd(self.of(x), self.value))

    def __sub__(self, x: Real | float) -> Real:
        return self._make(self.builder.fsub(self.value, self.of(x)))

    def __rsub__(self, x: float) -> Real:
        return self._make(self.builder.fsub(self.of(x), self.value))

    def __mul__(self, x: Real | float) -> Real:
        return self._make(self.builder.fmul(self.value, self.of(x)))

    __rmul__ = __mul__

    def __truediv__(self, x: Real | float) -> Real:
        return self._make(self.builder.fdiv(self.value, self.of(x)))

    def __rtruediv__(self, x: float) -> Real:
        return self._make(self.builder.fdiv(self.of(x), self.value))

    def __neg__(self) -> Real:
        return self._make(self.builder.fneg(self.value))

    def test(self, order: str, x: Real | float) -> Any:
        """A comparison, false when either is NaN."""
        return self.builder.fcmp_ordered(order, self.value, self.of(x))

    def is_nan(self) -> Any:
        """Whether this is NaN."""
        return self.builder.fcmp_unordered("uno", self.value, self.value)

    def where(self, test: Any, otherwise: Real | float) -> Real:
        """This where `test` holds, else `otherwise`."""
        return self._make(self.builder.select(test, self.value, self.of(otherwise)))

    def call(self, name: str, *operands: Real | float) -> Real:
        """One of LLVM's functions on this and more operands."""
        kind = self.value.type
        values = [self.value, *(self.of(x) for x in operands)]
        signature = ir.FunctionType(kind, [kind] * len(values))
        symbol = f"llvm.{name}.{_SUFFIX[kind]}"
        function = cgutils.get_or_insert_function(self.builder.module, signature, symbol)
        return self._make(self.builder.call(function, values))

    def fma(self, x: Real | float, y: Real | float) -> Real:
        """self * x + y, rounded once."""
        return self.call("fma", x, y)

    def magnitude(self) -> Real:
        """|x|."""
        return self.call("fabs")

    def with_sign_of(self, x: Real) -> Real:
        """|self| with the sign of x."""
        return self.call("copysign", x)

    def rounded(self) -> Real:
        """To the nearest integer, ties to even."""
        return self.call("rint")

    def polynomial(self, coefficients: Sequence[float]) -> Real:
        """Horner's rule, the highest power first."""
        result: Real = self._make(self.of(coefficients[0]))
        for c in coefficients[1:]:
            result = result.fma(self, c)
        return result

    def integer(self) -> Any:
        """To an i32, rounding towards zero; NaN gives 0 (LLVM leaves it undefined)."""
        sane = self.builder.select(self.is_nan(), self.of(0.0), self.value)
        return self.builder.fptosi(sane, I32)

    def double(self) -> Real:
        """As float64."""
        return self._make(self.builder.fpext(self.value, F64))

    def single(self) -> Real:
        """As float32."""
        return self._make(self.builder.fptrunc(self.value, F32))


def real(builder: Any, integer: Any, kind: Any) -> Real:
    """An integer as a floating-point value."""
    return Real(builder, builder.sitofp(integer, kind))


def power_of_two(builder: Any, n: Any) -> Real:
    """2**n as float32 for an i32 n from -126 to 127: the exponent field alone."""
    biased = builder.add(n, I32(127))
    return Real(builder, builder.bitcast(builder.shl(biased, I32(23)), F32))


def scaled(x: Real, n: Any) -> Real:
    """x * 2**n, in two steps: 2**n alone may be out of range where the product is not."""
    b = x.builder
    half = b.ashr(n, I32(1))
    return x * power_of_two(b, half) * power_of_two(b, b.sub(n, half))

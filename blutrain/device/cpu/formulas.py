"""float32 functions as straight-line formulas, which LLVM vectorises; a call of libm stays one.

Errors, in units in the last place against float64, over all float32 (tests/cpu_executor/test_math):
exp 1, log 1, tanh 2, erf 1, expm1 2, log1p 2, sin and cos 1 for |x| < 2^30, pow 1. Infinities,
NaN, signed zeros and subnormals are as IEEE 754 and C say.

The formulas are written over `Real` (`reals.py`). There are no branches: every way is computed, and
one selected.
"""

from __future__ import annotations

import math
from typing import Any

from blutrain.device.cpu.reals import F32, F64, I32, I64, Real, power_of_two, real, scaled

_INF = math.inf

# 1/5! and so on, adjusted by a minimax fit of e**r on |r| <= ln(2)/2 (Cephes, expf).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
        5.0000001201e-1)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4


def _exp_reduced(x: Real) -> tuple[Real, Any]:
    """(r, n) with x = r + n ln 2, |r| <= ln(2)/2."""
    n = (x * 1.44269504088896341).rounded()
    r = n.fma(-_LN2_HIGH, x)
    r = n.fma(-_LN2_LOW, r)
    return r, n.integer()


def exp(x: Real) -> Real:
    """e**x: 2**n times a polynomial."""
    # Beyond these, the result is 0 or infinity; NaN fails both tests and goes through.
    bounded = (x * 0.0 + 89.0).where(x.test(">", 89.0), x)
    bounded = (x * 0.0 - 105.0).where(x.test("<", -105.0), bounded)
    bounded = Real(x.builder, x.of(89.0)).where(x.test("==", _INF), bounded)
    bounded = Real(x.builder, x.of(-105.0)).where(x.test("==", -_INF), bounded)
    r, n = _exp_reduced(bounded)
    return scaled(r.polynomial(_EXP).fma(r * r, r) + 1.0, n)


def exp2(x: Real) -> Real:
    """2**x."""
    b = x.builder
    bounded = Real(b, x.of(129.0)).where(x.test(">", 129.0), x)
    bounded = Real(b, x.of(-151.0)).where(x.test("<", -151.0), bounded)
    n = bounded.rounded()
    r = (bounded - n) * 0.693147180559945309
    return scaled(r.polynomial(_EXP).fma(r * r, r) + 1.0, n.integer())


def expm1(x: Real) -> Real:
    """e**x - 1 without cancellation: 2**n (e**r - 1) + (2**n - 1)."""
    b = x.builder
    bounded = Real(b, x.of(89.0)).where(x.test(">", 89.0), x)
    bounded = Real(b, x.of(-30.0)).where(x.test("<", -30.0), bounded)
    r, n = _exp_reduced(bounded)
    small = r.polynomial(_EXP).fma(r * r, r)
    half = b.ashr(n, I32(1))
    first, second = power_of_two(b, half), power_of_two(b, b.sub(n, half))
    # 2**n itself overflows at n = 128, so the last factor of two comes at the end.
    whole = small.fma(first, first - 1.0 / second) * second
    tiny = x.magnitude().test("<", 1e-5)
    return (x + 0.5 * x * x).where(tiny, whole).with_sign_of(x)


# Coefficients of log((1+s)/(1-s)) / s - 2 in s**2 (FreeBSD msun, e_logf.c).
_LG1, _LG2, _LG3, _LG4 = 0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841
_LOG_LN2_HIGH, _LOG_LN2_LOW = 6.9313812256e-01, 9.0580006145e-06


def _log_parts(x: Real) -> tuple[Real, Real, Real, Real]:
    """(k, f, h, t): x = 2**k (1 + f), sqrt(1/2) < 1 + f < sqrt(2), log(1 + f) = f - (h - t)."""
    b = x.builder
    subnormal = x.test("<", 1.17549435e-38)
    normal = (x * 33554432.0).where(subnormal, x)  # times 2**25
    bits = b.add(b.bitcast(normal.value, I32), I32(0x3F800000 - 0x3F3504F3))
    k = b.sub(b.ashr(bits, I32(23)), I32(127))
    k = b.sub(k, b.select(subnormal, I32(25), I32(0)))
    mantissa = b.add(b.and_(bits, I32(0x007FFFFF)), I32(0x3F3504F3))
    f = Real(b, b.bitcast(mantissa, F32)) - 1.0
    s = f / (f + 2.0)
    z = s * s
    w = z * z
    rest = z * w.fma(_LG3, _LG1) + w * w.fma(_LG4, _LG2)
    h = 0.5 * f * f
    return real(b, k, F32), f, h, s * (h + rest)


def _log_corners(x: Real, result: Real) -> Real:
    """What a logarithm is at 0, below it, at infinity and at NaN."""
    nan = Real(x.builder, x.of(math.nan))
    result = Real(x.builder, x.of(-_INF)).where(x.test("==", 0.0), result)
    result = nan.where(x.test("<", 0.0), result)
    result = x.where(x.test("==", _INF), result)
    return x.where(x.is_nan(), result)


def log(x: Real) -> Real:
    """Natural logarithm."""
    k, f, h, t = _log_parts(x)
    result = k * _LOG_LN2_HIGH - ((h - (t + k * _LOG_LN2_LOW)) - f)
    return _log_corners(x, result)


def log2(x: Real) -> Real:
    """Logarithm to base 2, exact at powers of two."""
    k, f, h, t = _log_parts(x)
    wide = (f.double() - (h.double() - t.double())) * 1.4426950408889634074
    return _log_corners(x, (wide + k.double()).single())


def log10(x: Real) -> Real:
    """Logarithm to base 10."""
    k, f, h, t = _log_parts(x)
    wide = (f.double() - (h.double() - t.double())) * 0.43429448190325182765
    return _log_corners(x, (wide + k.double() * 0.30102999566398119521).single())


def log1p(x: Real) -> Real:
    """log(1 + x): the logarithm of the rounded 1 + x, plus what rounding lost."""
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    lost = lost.where(u.magnitude().test("<", 1e10), 0.0)
    result = log(u) + lost.where(u.test(">", 0.0), 0.0)
    return x.where(x.magnitude().test("<", 1e-7), result)


_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
         -3.33332819422e-1)  # fmt: skip


def tanh(x: Real) -> Real:
    """An odd polynomial near zero (Cephes, tanhf), 1 - 2 / (e**2x + 1) elsewhere."""
    magnitude = x.magnitude()
    z = x * x
    near = (z.polynomial(_TANH) * z).fma(x, x)
    far = (1.0 - 2.0 / (exp(magnitude + magnitude) + 1.0)).with_sign_of(x)
    return near.where(magnitude.test("<", 0.625), far).with_sign_of(x)


_ERF_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1,
             1.28379166e-1)  # fmt: skip


def _erf_exponent(t: Real) -> Real:
    """log(1 - erf(t)) for t > 0.9277, a polynomial of degree 6."""
    s = t * t
    r = t.fma(-1.72853470e-5, 3.83197126e-4)
    u = t.fma(-3.88396438e-3, 2.42546219e-2)
    r = r.fma(s, u)
    for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = r.fma(t, c)
    return r.fma(t, -t)


def erf(x: Real) -> Real:
    """Two polynomials, of x and of log(1 - erf) (N. Juffa, "Fast, accurate erff", 2015)."""
    magnitude = x.magnitude()
    far = (1.0 - exp(_erf_exponent(magnitude))).with_sign_of(x)
    near = (x * x).polynomial(_ERF_NEAR).fma(x, x)
    return far.where(magnitude.test(">", 0.927734375), near)


# Minimax polynomials of sin and cos on |r| <= pi/4, in float64 (FreeBSD msun, k_sinf.c, k_cosf.c).
_SIN = (0.0000027183114939898219064, -0.000198393348360966317347, 0.0083333293858894631756,
        -0.166666666416265235595)  # fmt: skip
_COS = (0.0000243904487962774090654, -0.00138867637746099294692, 0.0416666233237390631894,
        -0.499999997251031003120, 1.0)  # fmt: skip


def _circular(x: Real, quarter: int) -> Real:
    """sin(x + quarter pi/2), reduced in float64."""
    b = x.builder
    wide = x.double()
    n = (wide * 0.63661977236758134308).rounded()
    r = n.fma(-1.57079632679489655800, wide)
    r = n.fma(-6.12323399573676603587e-17, r)
    z = r * r
    sine = (z.polynomial(_SIN) * z).fma(r, r)
    cosine = z.polynomial(_COS)
    near = n.where(n.magnitude().test("<", 2.0**31 - 2), 0.0)
    turn = b.add(near.integer(), I32(quarter))
    odd = b.icmp_signed("!=", b.and_(turn, I32(1)), I32(0))
    negative = b.icmp_signed("!=", b.and_(turn, I32(2)), I32(0))
    value = cosine.where(odd, sine)
    return (-value).where(negative, value).single()


def sin(x: Real) -> Real:
    """Sine; -0 stays -0."""
    result = _circular(x, 0)
    return x.where(x.magnitude().test("<", 1e-4), result)


def cos(x: Real) -> Real:
    """Cosine."""
    return _circular(x, 1)


def tan(x: Real) -> Real:
    """Tangent."""
    return sin(x) / cos(x)


def _log2_wide(x: Real) -> Real:
    """log2 of a positive float32 with about 45 bits."""
    b = x.builder
    bits = b.bitcast(x.double().value, I64)
    offset = 0x3FE6A09E667F3BCD  # sqrt(1/2)
    shifted = b.sub(bits, I64(offset))
    k = b.ashr(shifted, I64(52))
    mantissa = b.sub(bits, b.shl(k, I64(52)))
    f = Real(b, b.bitcast(mantissa, F64))
    s = (f - 1.0) / (f + 1.0)
    z = s * s
    # 2 atanh(s) / ln 2 = 2 / ln 2 (s + s**3 / 3 + ...), |s| <= 0.1716
    series = z.polynomial([2.8853900817779268 / n for n in (17, 15, 13, 11, 9, 7, 5, 3, 1)])
    return real(b, b.trunc(k, I32), F64) + s * series


def _exp2_wide(t: Real) -> Real:
    """2**t for a float64 t within float32's exponents."""
    b = t.builder
    n = t.rounded()
    r = (t - n) * 0.69314718055994530942
    p = r.polynomial([1.0 / math.factorial(k) for k in range(10, -1, -1)])
    biased = b.add(b.sext(n.integer(), I64), I64(1023))
    return p * Real(b, b.bitcast(b.shl(biased, I64(52)), F64))


def pow(x: Real, y: Real) -> Real:
    """x**y = 2**(y log2 |x|) in float64, with the sign and the corners that C99 prescribes."""
    b = x.builder
    magnitude = x.magnitude()
    t = y.double() * _log2_wide(magnitude)
    t = Real(b, t.of(160.0)).where(t.test(">", 160.0), t)
    t = Real(b, t.of(-200.0)).where(t.test("<", -200.0), t)
    result = _exp2_wide(t).single()
    grows = b.xor(magnitude.test(">", 1.0), y.test("<", 0.0))
    zero_or_inf = b.or_(magnitude.test("==", 0.0), magnitude.test("==", _INF))
    extreme = Real(b, b.select(grows, x.of(_INF), x.of(0.0)))
    result = extreme.where(b.or_(zero_or_inf, y.magnitude().test("==", _INF)), result)
    one = Real(b, x.of(1.0))
    result = one.where(b.and_(magnitude.test("==", 1.0), y.magnitude().test("==", _INF)), result)
    half = y * 0.5
    whole = y.call("floor").test("==", y)
    odd = b.and_(whole, b.not_(half.call("floor").test("==", half)))
    below = b.icmp_signed("<", b.bitcast(x.value, I32), I32(0))
    result = (-result).where(b.and_(below, odd), result)
    finite_below = b.and_(x.test("<", 0.0), x.test(">", -_INF))
    undefined = b.and_(finite_below, b.not_(whole))
    result = Real(b, x.of(math.nan)).where(undefined, result)
    result = (x + y).where(b.or_(x.is_nan(), y.is_nan()), result)
    return one.where(b.or_(y.test("==", 0.0), x.test("==", 1.0)), result)


def rsqrt(x: Real) -> Real:
    """1 / sqrt(x)."""
    return 1.0 / x.call("sqrt")

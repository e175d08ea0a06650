"""`math`, libdevice and the functions of `numba.cuda` on one thread's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from blutrain.device.cpu.interpret.numbers import CASTS, power, real


def _whole(value: Any) -> Any:
    """A function's result in its argument's precision."""
    return np.float32 if isinstance(value, np.float32) else np.float64


def _numpy(function: Any) -> Callable[..., Any]:
    return lambda *given: function(*map(real, given))


def _python(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of `math`'s that NumPy has not; outside of its domain it gives NaN, as CUDA's do."""

    def call(*given: Any) -> Any:
        kind = _whole(given[0])
        try:
            return kind(function(*map(float, given)))
        except ValueError:
            return kind(math.nan)
        except OverflowError:
            return kind(math.inf)

    return call


_NUMPY = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "fabs": "abs", "fmax": "fmax", "fmin": "fmin",
    **{name: name for name in (
        "ceil", "copysign", "cos", "cosh", "exp", "exp2", "expm1", "floor", "fmod", "hypot",
        "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "nextafter", "sin", "sinh",
        "sqrt", "tan", "tanh", "trunc", "cbrt", "rint", "ldexp",
    )},
    "degrees": "degrees", "radians": "radians",
}  # fmt: skip
MATH: dict[str, Callable[..., Any]] = {
    **{name: _numpy(getattr(np, numpy)) for name, numpy in _NUMPY.items()},
    **{name: _python(getattr(math, name)) for name in ("erf", "erfc", "gamma", "lgamma")},
    "pow": lambda x, y: power(real(x), real(y)),
    "ldexp": lambda x, n: np.ldexp(real(x), int(n)),
    "remainder": _python(math.remainder),
    "gcd": math.gcd,
}


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where float64 has the digits for it."""
    kind = np.result_type(*(x for x in map(real, (a, b, c)))).type
    return kind(np.float64(a) * np.float64(b) + np.float64(c))


def _extreme(pick: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """The least or the largest; of a number and NaN the number, as CUDA has it."""

    def choose(*given: Any) -> Any:
        found, *rest = given[0] if len(given) == 1 else given
        for value in rest:
            if found != found or pick(value, found):
                found = value
        return found

    return choose


def _leading_zeros(value: int) -> int:
    return (32 if -(1 << 31) <= value < 1 << 32 else 64) - int(value).bit_length()


CUDA: dict[str, Callable[..., Any]] = {
    "fma": fma,
    "popc": lambda x: (int(x) & (1 << 64) - 1).bit_count(),
    "clz": _leading_zeros,
    "ffs": lambda x: (int(x) & -int(x)).bit_length(),
    "brev": lambda x: CASTS["uint32"](int(f"{int(x) & 0xFFFFFFFF:032b}"[::-1], 2)),
    "selp": lambda test, a, b: a if test else b,
    "cbrt": MATH["cbrt"],
    "nanosleep": lambda ns: None,
}
BUILTINS: dict[Any, Callable[..., Any]] = {
    max: _extreme(lambda value, found: value > found),
    min: _extreme(lambda value, found: value < found),
    int: CASTS["int64"],
    float: CASTS["float64"],
    bool: bool,
}
_LIBDEVICE: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(real(x)),
    "fma": fma,
    "fast_fdividef": np.divide,
}


def libdevice(name: str) -> Callable[..., Any] | None:
    """The function for one of libdevice's, such as `fast_expf`; None where there is none."""
    if name in _LIBDEVICE:
        return _LIBDEVICE[name]
    plain = name.removeprefix("fast_")
    for candidate in (plain, plain.removesuffix("f")):
        if found := MATH.get(candidate) or _LIBDEVICE.get(candidate):
            return found
    return None

"""`math` as kernels mean it: outside of its domain a function gives NaN or infinity, no error."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

# NumPy's functions know infinity; what it lacks is defined for every number.
_NUMPY = {
    name: getattr(np, name)
    for name in (
        "acosh", "acos", "asin", "atanh", "cos", "cosh", "exp", "exp2", "expm1", "fmod", "log",
        "log10", "log1p", "log2", "pow", "remainder", "sin", "sinh", "sqrt", "tan",
    )
    if hasattr(np, name)
}  # fmt: skip
_MATH = SimpleNamespace(**{**vars(math), **_NUMPY})


def as_on_a_gpu(value: Any) -> Any:
    """What a global of a kernel's file means within the kernel.

    Example:
        >>> with np.errstate(all="ignore"):
        ...     float(as_on_a_gpu(math).log(0)), float(as_on_a_gpu(math.sqrt)(-1.0))
        (-inf, nan)
    """
    if value is math:
        return _MATH
    if getattr(value, "__module__", "") == "math":
        return _NUMPY.get(value.__name__, value)
    return value

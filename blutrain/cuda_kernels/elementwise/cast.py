"""Another element type: y = x rounded to the new dtype, dx = dy in the old one.

Floats become integers by truncation; anything but 0 becomes True. One read and one write.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.template import map_elements, same
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.dtypes import DType, as_dtype
from blutrain.errors import DTypeError
from blutrain.tensor import Tensor


@cuda.jit(device=True)
def _is_not_zero(x):
    return x != 0


def convert(t: Tensor, dtype: DType) -> Tensor:
    """`t` itself if it has that dtype, else a converted copy; not recorded."""
    if t.dtype is dtype:
        return t
    f = _is_not_zero if dtype is dtypes.bool_ else same
    return map_elements(f, "cast", [t], dtype)


def cast_forward(ctx: Any, x: Tensor, dtype: DType) -> Tensor:
    """y = x in another dtype."""
    ctx.dtype = x.dtype
    return convert(x, dtype)


def cast_backward(ctx: Any, dy: Tensor) -> Tensor:
    """dx = dy in x's dtype."""
    return convert(dy, ctx.dtype)


def samples(rng: np.random.Generator) -> list[Sample]:
    """To every floating dtype; the suite compares with the value rounded to float32."""
    return [
        Sample((rng.standard_normal(s),), {"dtype": "float32"}) for s in ((0,), (), (1,), (300, 3))
    ]


def errors() -> list[Invalid]:
    """A dtype that does not exist, a value that is no tensor."""
    return [
        Invalid((np.zeros(2),), DTypeError, "dtype: must be one of", {"dtype": "complex64"}),
        Invalid(([1.0],), DTypeError, "cast: x must be a tensor", {"dtype": "float32"}),
    ]


def cast(x: Tensor, dtype: Any) -> Tensor:
    """`x` with another element type; `x` itself where it has it already.

    Example:
        >>> import blutrain as bt
        >>> bt.cast(bt.tensor([1.7, -2.5]), "int32").tolist()
        [1, -2]
    """
    check_tensor("cast", "x", x)
    wanted = as_dtype(dtype)
    if wanted is x.dtype:
        return x
    result: Tensor = apply("cast", x, dtype=wanted)
    return result


register(
    Op(
        name="cast",
        forward=cast_forward,
        backward=cast_backward,
        reference=lambda x, dtype: x,
        samples=samples,
        errors=errors,
        call=cast,
        tolerance={"float64": (1e-6, 1e-6)},  # the samples go to float32
    )
)

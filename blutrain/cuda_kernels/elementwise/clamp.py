"""Limiting to a range: y = min(max(x, low), high), dx = dy where low <= x <= high, else 0.

One read and one write forward, two reads and one write backward.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.binary import Number, as_compute
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor


@cuda.jit(device=True)
def _clamp(x, low, high):
    return low if x < low else (high if x > high else x)  # in this order nan stays nan


@cuda.jit(device=True)
def _clamp_dx(x, dy, low, high):
    return type(dy)(0) if x < low or x > high else dy


def clamp_forward(ctx: Any, x: Tensor, low: Number, high: Number) -> Tensor:
    """y = min(max(x, low), high)."""
    ctx.limits = [as_compute(low, x.dtype), as_compute(high, x.dtype)]
    ctx.save(x)
    return map_elements(_clamp, "clamp_forward", [x], x.dtype, ctx.limits)


def clamp_backward(ctx: Any, dy: Tensor) -> Tensor:
    """dx = dy within the limits, else 0."""
    (x,) = ctx.saved
    return map_elements(_clamp_dx, "clamp_backward", [x, dy], dy.dtype, ctx.limits)


def reference(x: Any, low: float | None = None, high: float | None = None) -> Any:
    """NumPy's clip."""
    return np.clip(x, low, high)


def samples(rng: np.random.Generator) -> list[Sample]:
    """Either limit and both."""
    draw = rng.standard_normal
    return [
        Sample((draw(0),), {"low": -0.5, "high": 0.5}),
        Sample((draw(1),), {"low": 0.0}),
        Sample((draw((7, 43)),), {"high": 0.25}),
        Sample((draw(600),), {"low": -0.5, "high": 1.0}),
    ]


def errors() -> list[Invalid]:
    """No limit, limits the wrong way round, no tensor."""
    return [
        Invalid((np.ones(2),), ShapeError, "clamp: low or high must be given"),
        Invalid((np.ones(2), 2.0, 1.0), ShapeError, "clamp: low must not exceed high"),
        Invalid((3.0, 0.0), DTypeError, "clamp: x must be a tensor"),
    ]


def clamp(x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    """Each element limited to [low, high].

    Args:
        x: any shape.
        low: the least value; None for no limit.
        high: the greatest value; None for no limit.

    Raises:
        ShapeError: neither is given, or low > high.

    Example:
        >>> import blutrain as bt
        >>> bt.clamp(bt.tensor([-3.0, 0.5, 3.0]), -1.0, 1.0).tolist()
        [-1.0, 0.5, 1.0]
    """
    check_tensor("clamp", "x", x)
    if low is None and high is None:
        raise ShapeError(message("clamp", "low or high must be given"))
    if low is not None and high is not None and low > high:
        raise ShapeError(message("clamp", "low must not exceed high", f"{low} > {high}"))
    least: Number = -math.inf if x.dtype.is_floating else -(2**63)
    most: Number = math.inf if x.dtype.is_floating else 2**63 - 1
    result: Tensor = apply(
        "clamp", x, low=least if low is None else low, high=most if high is None else high
    )
    return result


register(
    Op(
        name="clamp",
        forward=clamp_forward,
        backward=clamp_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=clamp,
    )
)

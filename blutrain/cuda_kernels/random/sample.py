"""Tensors of random numbers: uniform, normal and integers.

Each thread makes four numbers from one Philox counter, so the numbers depend on the seed and their
place alone. Written once, nothing is read: memory-bound on the write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int64

from blutrain import dtypes, random
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.cuda_kernels.random.philox import philox_4x32, philox_reference, uniform
from blutrain.device import launch
from blutrain.dtypes import as_dtype
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, as_extents, empty


@cuda.jit
def uniform_kernel(
    out,  # (n,)
    seed,
    offset,
    low,
    width,
):
    i = cuda.grid(1)
    if 4 * i < out.size:
        w0, w1, w2, w3 = philox_4x32(offset + i, seed)
        out[4 * i] = low + width * uniform(w0)
        if 4 * i + 1 < out.size:
            out[4 * i + 1] = low + width * uniform(w1)
        if 4 * i + 2 < out.size:
            out[4 * i + 2] = low + width * uniform(w2)
        if 4 * i + 3 < out.size:
            out[4 * i + 3] = low + width * uniform(w3)


@cuda.jit(device=True)
def _radius(word):
    # 1 - u lies in (0, 1]: its logarithm is finite.
    return math.sqrt(float32(-2.0) * math.log(float32(1.0) - uniform(word)))


@cuda.jit
def normal_kernel(
    out,  # (n,)
    seed,
    offset,
    mean,
    std,
):
    # Box and Muller (1958): two uniform words give two normal numbers.
    i = cuda.grid(1)
    if 4 * i < out.size:
        w0, w1, w2, w3 = philox_4x32(offset + i, seed)
        r0, a0 = _radius(w0), float32(6.283185307179586) * uniform(w1)
        r1, a1 = _radius(w2), float32(6.283185307179586) * uniform(w3)
        out[4 * i] = mean + std * r0 * math.cos(a0)
        if 4 * i + 1 < out.size:
            out[4 * i + 1] = mean + std * r0 * math.sin(a0)
        if 4 * i + 2 < out.size:
            out[4 * i + 2] = mean + std * r1 * math.cos(a1)
        if 4 * i + 3 < out.size:
            out[4 * i + 3] = mean + std * r1 * math.sin(a1)


@cuda.jit
def integers_kernel(
    out,  # (n,)
    seed,
    offset,
    low,
    count,
):
    i = cuda.grid(1)
    if 4 * i < out.size:
        w0, w1, w2, w3 = philox_4x32(offset + i, seed)
        # The high half of word * count is within [0, count), uneven by at most count / 2**32.
        out[4 * i] = low + ((int64(w0) * count) >> 32)
        if 4 * i + 1 < out.size:
            out[4 * i + 1] = low + ((int64(w1) * count) >> 32)
        if 4 * i + 2 < out.size:
            out[4 * i + 2] = low + ((int64(w2) * count) >> 32)
        if 4 * i + 3 < out.size:
            out[4 * i + 3] = low + ((int64(w3) * count) >> 32)


def _forward(kernel: Any) -> Callable[..., Tensor]:
    def forward(ctx: Any, out: Tensor, a: Any, b: Any) -> Tensor:
        seed, offset = random.next_offset(out.size)
        if out.size:
            grid = blocks_for(blocks_for(out.size, 4))
            launch(kernel, grid, BLOCK, out.array(out.size), seed, offset, a, b)
        return out

    return forward


def _words(n: int) -> Any:
    seed, offset = random.get_state()
    return philox_reference(offset, seed, (n + 3) // 4)


def uniform_reference(shape: Any, low: float = 0.0, high: float = 1.0) -> Any:
    """The numbers that the next call of `uniform` makes."""
    n = math.prod(shape)
    u = (_words(n) >> 8).astype(np.float64).reshape(-1)[:n] / 2**24
    return (low + (high - low) * u).reshape(shape)


def normal_reference(shape: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    """The numbers that the next call of `randn` makes."""
    n = math.prod(shape)
    u = (_words(n) >> 8).astype(np.float64).reshape(-1, 2) / 2**24
    radius, angle = np.sqrt(-2 * np.log(1 - u[:, 0])), 2 * np.pi * u[:, 1]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return (mean + std * pairs.reshape(-1)[:n]).reshape(shape)


def integers_reference(low: int, high: int, shape: Any) -> Any:
    """The numbers that the next call of `randint` makes."""
    n = math.prod(shape)
    words = _words(n).astype(np.int64).reshape(-1)[:n]
    return (low + ((words * (high - low)) >> 32)).reshape(shape)


def rand(shape: Any, low: float = 0.0, high: float = 1.0, dtype: Any = "float32") -> Tensor:
    """Uniform numbers in [low, high).

    Args:
        shape: extents.
        low: the least value.
        high: the bound above; rounding to a half may reach it.
        dtype: a floating dtype.

    Raises:
        DTypeError: the dtype is not floating.
        ShapeError: high < low.

    Example:
        >>> import blutrain as bt
        >>> bt.manual_seed(0)
        >>> bt.rand((2, 3)).shape
        (2, 3)
    """
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise DTypeError(message("rand", "dtype must be floating", kind))
    if not low <= high:
        raise ShapeError(message("rand", "low must not exceed high", f"{low} > {high}"))
    out = empty(as_extents("rand", shape), kind)
    result: Tensor = apply("rand", out, a=float(low), b=float(high - low))
    return result


def randn(shape: Any, mean: float = 0.0, std: float = 1.0, dtype: Any = "float32") -> Tensor:
    """Normal numbers.

    Args:
        shape: extents.
        mean: the distribution's mean.
        std: its standard deviation, not negative.
        dtype: a floating dtype.

    Raises:
        DTypeError: the dtype is not floating.
        ShapeError: std < 0.

    Example:
        >>> import blutrain as bt
        >>> bt.manual_seed(0)
        >>> abs(bt.randn(10000).mean().item()) < 0.05
        True
    """
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise DTypeError(message("randn", "dtype must be floating", kind))
    if not std >= 0:
        raise ShapeError(message("randn", "std must not be negative", std))
    out = empty(as_extents("randn", shape), kind)
    result: Tensor = apply("randn", out, a=float(mean), b=float(std))
    return result


def randint(low: int, high: int, shape: Any, dtype: Any = "int64") -> Tensor:
    """Integers in [low, high), each as likely as the next to within (high - low) / 2**32.

    Args:
        low: the least value.
        high: the bound above, at most 2**31 beyond `low`.
        shape: extents.
        dtype: an integer dtype.

    Raises:
        DTypeError: the dtype is not an integer's.
        ShapeError: the range is empty or too long.

    Example:
        >>> import blutrain as bt
        >>> bt.randint(5, 6, 3).tolist()
        [5, 5, 5]
    """
    kind = as_dtype(dtype)
    if kind.kind not in "iu":
        raise DTypeError(message("randint", "dtype must be an integer dtype", kind))
    if not 0 < high - low <= 2**31:
        got = f"[{low}, {high})"
        raise ShapeError(message("randint", "the range must hold 1 to 2**31 integers", got))
    out = empty(as_extents("randint", shape), kind)
    result: Tensor = apply("randint", out, a=int(low), b=int(high - low))
    return result


_SHAPES = ((0,), (), (1,), (5,), (1023,), (3, 700))

register(
    Op(
        name="rand",
        forward=_forward(uniform_kernel),
        backward=None,
        reference=uniform_reference,
        samples=lambda rng: [
            *(Sample((s,)) for s in _SHAPES),
            Sample(((40,), -2.0, 5.0), dtypes=(dtypes.float32,)),
        ],
        errors=lambda: [Invalid(((2,), 1.0, 0.0), ShapeError, "rand: low must not exceed high")],
        call=rand,
        dtypes=(dtypes.float32,),
        differentiable=False,
    )
)
register(
    Op(
        name="randn",
        forward=_forward(normal_kernel),
        backward=None,
        reference=normal_reference,
        samples=lambda rng: [*(Sample((s,)) for s in _SHAPES), Sample(((40,), 3.0, 0.5))],
        errors=lambda: [Invalid(((2,), 0.0, -1.0), ShapeError, "randn: std must not be negative")],
        call=randn,
        dtypes=(dtypes.float32,),
        differentiable=False,
        # log, sqrt and cos each round: a few units in the last place of the largest.
        tolerance={"float32": (1e-5, 1e-5)},
    )
)
register(
    Op(
        name="randint",
        forward=_forward(integers_kernel),
        backward=None,
        reference=integers_reference,
        samples=lambda rng: [Sample((-3, 9, s)) for s in _SHAPES],
        errors=lambda: [Invalid((3, 3, (2,)), ShapeError, "randint: the range must hold")],
        call=randint,
        dtypes=(dtypes.float32,),
        differentiable=False,
    )
)

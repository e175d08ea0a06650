"""Tensors of one value, and evenly spaced ones. Written once, nothing is read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.primitives import provide
from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.cuda_kernels.elementwise.binary import Number, as_compute
from blutrain.cuda_kernels.elementwise.copy import copy_into
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.cuda_kernels.reduction.sum import sum_axes
from blutrain.device import launch
from blutrain.dtypes import as_dtype
from blutrain.errors import ShapeError, message
from blutrain.tensor import Tensor, empty, from_numpy


@cuda.jit
def fill_kernel(
    out,  # (n,)
    value,
):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = value


@cuda.jit
def arange_kernel(
    out,  # (n,)
    start,
    step,
):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = start + i * step


def fill(t: Tensor, value: Number) -> None:
    """Write `value` into every element; not recorded."""
    if not t.size:
        return
    if t.is_contiguous:
        scalar = as_compute(value, t.dtype)
        launch(fill_kernel, blocks_for(t.size), BLOCK, t.array(t.size), scalar)
    else:
        copy_into(t, from_numpy(np.asarray(value), t.dtype))


def full(shape: Any, value: Number, dtype: Any = None) -> Tensor:
    """A tensor with `value` in every element.

    Args:
        shape: extents.
        value: a number.
        dtype: the element type; None for the number's own (float32, int64 or bool).

    Example:
        >>> import blutrain as bt
        >>> bt.full(2, 7).tolist()
        [7, 7]
    """
    t = empty(shape, type(value) if dtype is None else dtype)
    fill(t, value)
    return t


def ones(shape: Any, dtype: Any = dtypes.float32) -> Tensor:
    """A tensor of ones."""
    return full(shape, 1, dtype)


provide("ones", ones)


def arange(
    start: Number, stop: Number | None = None, step: Number = 1, dtype: Any = None
) -> Tensor:
    """start, start + step, ... up to, not including, stop; from 0 with one argument.

    Raises:
        ShapeError: the step is 0.

    Example:
        >>> import blutrain as bt
        >>> bt.arange(2, 8, 3).tolist()
        [2, 5]
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ShapeError(message("arange", "step must not be 0", step))
    floating = any(isinstance(v, float) for v in (start, stop, step))
    wanted = as_dtype((float if floating else int) if dtype is None else dtype)
    n = max(0, int(np.ceil((stop - start) / step)))
    out = empty(n, wanted)
    if n:
        first, by = as_compute(start, wanted), as_compute(step, wanted)
        launch(arange_kernel, blocks_for(n), BLOCK, out.array(n), first, by)
    return out


@cuda.jit(device=True)
def _is_finite(x):
    return x - x == 0  # inf - inf and nan - nan are nan


def all_finite(t: Tensor) -> bool:
    """Whether no element is inf or nan; waits for the device."""
    finite = map_elements(_is_finite, "is_finite", [t], dtypes.bool_)
    return int(sum_axes(finite, tuple(range(t.ndim))).item()) == t.size


provide("all_finite", all_finite)

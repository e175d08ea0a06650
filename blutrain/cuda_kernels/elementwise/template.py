"""The kernels that all elementwise ops share.

`out[i] = f(x[i], ...)` for a small device function `f`. There are three kernels an arity:

- dense: all operands contiguous, one thread an element;
- rows: operands of up to four dimensions with any strides (0 where broadcast); a block takes a
  run of the innermost dimension, so that the outer indices are the same for all its threads;
- cells: the same where the innermost dimension is short; every thread works out its indices.

`map_elements` chooses among them after merging dimensions that step together. A kernel reads every
operand once and writes every result once, nothing else: memory-bound.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import cuda

from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.device import launch
from blutrain.device.array import Array
from blutrain.dtypes import DType
from blutrain.tensor import Tensor, allocate

MAX_DIMS = 4
SHORT_ROW = 64  # an innermost extent under this leaves most of a block of the rows kernel idle


def _named(function: Callable[..., Any], name: str, what: str) -> Any:
    """`function` as a kernel that profilers show as `name`_`what`_kernel."""
    function.__name__ = function.__qualname__ = f"{name}_{what}_kernel"
    return cuda.jit(function)


@functools.cache
def dense_kernel(f: Any, name: str, n_inputs: int, n_scalars: int) -> Any:
    """The kernel over contiguous operands."""

    def map1(x, out):  # (n,), (n,)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = f(x[i])

    def map1_scalar(x, a, out):  # (n,), a: scalar, (n,)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = f(x[i], a)

    def map1_two_scalars(x, a, b, out):  # (n,), a, b: scalars, (n,)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = f(x[i], a, b)

    def map2(x, y, out):  # (n,), (n,), (n,)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = f(x[i], y[i])

    def map2_scalar(x, y, a, out):  # (n,), (n,), a: scalar, (n,)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = f(x[i], y[i], a)

    def map2_two_scalars(x, y, a, b, out):  # (n,), (n,), a, b: scalars, (n,)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = f(x[i], y[i], a, b)

    def map3(x, y, z, out):  # (n,), (n,), (n,), (n,)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = f(x[i], y[i], z[i])

    kernels: dict[tuple[int, int], Callable[..., Any]] = {
        (1, 0): map1,
        (1, 1): map1_scalar,
        (1, 2): map1_two_scalars,
        (2, 0): map2,
        (2, 1): map2_scalar,
        (2, 2): map2_two_scalars,
        (3, 0): map3,
    }
    return _named(kernels[n_inputs, n_scalars], name, "dense")


@cuda.jit(device=True)
def _row_and_column(out, blocks_per_row):
    """(outer indices, inner index) of a thread of the rows kernel."""
    row = cuda.blockIdx.x // blocks_per_row
    column = (cuda.blockIdx.x % blocks_per_row) * BLOCK + cuda.threadIdx.x
    k = row % out.shape[2]
    j = (row // out.shape[2]) % out.shape[1]
    i = row // (out.shape[2] * out.shape[1])
    return i, j, k, column


@functools.cache
def rows_kernel(f: Any, name: str, n_inputs: int) -> Any:
    """The kernel over strided operands with a long innermost dimension."""

    def map1(x, out, blocks_per_row):  # (a, b, c, n) all
        i, j, k, column = _row_and_column(out, blocks_per_row)
        if column < out.shape[3]:
            out[i, j, k, column] = f(x[i, j, k, column])

    def map2(x, y, out, blocks_per_row):  # (a, b, c, n) all
        i, j, k, column = _row_and_column(out, blocks_per_row)
        if column < out.shape[3]:
            out[i, j, k, column] = f(x[i, j, k, column], y[i, j, k, column])

    def map3(x, y, z, out, blocks_per_row):  # (a, b, c, n) all
        i, j, k, column = _row_and_column(out, blocks_per_row)
        if column < out.shape[3]:
            out[i, j, k, column] = f(x[i, j, k, column], y[i, j, k, column], z[i, j, k, column])

    return _named((map1, map2, map3)[n_inputs - 1], name, "rows")


@cuda.jit(device=True)
def _cell(out):
    """The four indices of a thread of the cells kernel."""
    n = cuda.grid(1)
    column = n % out.shape[3]
    n //= out.shape[3]
    k = n % out.shape[2]
    n //= out.shape[2]
    return n // out.shape[1], n % out.shape[1], k, column


@functools.cache
def cells_kernel(f: Any, name: str, n_inputs: int) -> Any:
    """The kernel over strided operands with a short innermost dimension."""

    def map1(x, out):  # (a, b, c, n) all
        if cuda.grid(1) < out.size:
            i, j, k, column = _cell(out)
            out[i, j, k, column] = f(x[i, j, k, column])

    def map2(x, y, out):  # (a, b, c, n) all
        if cuda.grid(1) < out.size:
            i, j, k, column = _cell(out)
            out[i, j, k, column] = f(x[i, j, k, column], y[i, j, k, column])

    def map3(x, y, z, out):  # (a, b, c, n) all
        if cuda.grid(1) < out.size:
            i, j, k, column = _cell(out)
            out[i, j, k, column] = f(x[i, j, k, column], y[i, j, k, column], z[i, j, k, column])

    return _named((map1, map2, map3)[n_inputs - 1], name, "cells")


def merge_dimensions(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Fewer dimensions over the same elements: neighbours that step together become one.

    Args:
        shape: common extents, all positive.
        strides: for each operand, a step a dimension.

    Returns:
        (shape, strides of each operand), extents of 1 left out.

    Example:
        >>> merge_dimensions((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
        ((2, 12), [(12, 1), (0, 1)])
    """
    new_shape: list[int] = []
    new_strides: list[list[int]] = [[] for _ in strides]
    for d, extent in enumerate(shape):
        if extent == 1:
            continue
        if new_shape and all(s[-1] == t[d] * extent for s, t in zip(new_strides, strides)):
            new_shape[-1] *= extent
            for s, t in zip(new_strides, strides):
                s[-1] = t[d]
        else:
            new_shape.append(extent)
            for s, t in zip(new_strides, strides):
                s.append(t[d])
    return tuple(new_shape), [tuple(s) for s in new_strides]


def broadcast_strides(t: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The steps of `t` seen with `shape`: 0 where an extent of 1 (or none) is repeated."""
    if t.shape == shape:
        return t.strides
    extra = len(shape) - t.ndim
    return (0,) * extra + tuple(
        [s if n == m else 0 for s, n, m in zip(t.strides, t.shape, shape[extra:])]
    )


def map_elements(
    f: Any,
    name: str,
    inputs: Sequence[Tensor],
    dtype: DType,
    scalars: Sequence[np.generic] = (),
    out: Tensor | None = None,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """`out[i] = f(inputs[0][i], ..., *scalars)`, with broadcasting.

    Args:
        f: a device function.
        name: the op's, for the kernels' names.
        inputs: one to three tensors whose shapes broadcast to `shape`.
        dtype: the result's.
        scalars: up to two, already in the compute type; `f` takes them last.
        out: where to write instead of a new tensor; may be one of the inputs.
        shape: the result's; the first input's when None.
    """
    if shape is None:
        shape = inputs[0].shape
    if out is None:
        out = allocate(shape, dtype)
    n = out.size
    if n == 0:
        return out
    dense = out.is_contiguous
    for t in inputs:
        dense = dense and t.is_contiguous and t.shape == shape
    if dense:
        kernel = dense_kernel(f, name, len(inputs), len(scalars))
        arrays = [t.array(n) for t in inputs]
        launch(kernel, blocks_for(n), BLOCK, *arrays, *scalars, out.array(n))
        return out
    if scalars:
        packed = [_packed(t, shape) for t in inputs]
        result = map_elements(f, name, packed, dtype, scalars)
        return map_elements(same, "copy", [result], out.dtype, out=out, shape=shape)
    _launch_strided(f, name, inputs, out, shape)
    return out


def _launch_strided(
    f: Any, name: str, inputs: Sequence[Tensor], out: Tensor, shape: tuple[int, ...]
) -> None:
    operands = [*inputs, out]
    merged, strides = merge_dimensions(shape, [broadcast_strides(t, shape) for t in operands])
    if len(merged) > MAX_DIMS:
        # Rare: fold the outermost dimension into a loop on the host.
        for k in range(merged[0]):
            slices = [
                Tensor(t.storage, merged[1:], s[1:], t.offset + k * s[0], t.dtype)
                for t, s in zip(operands, strides)
            ]
            _launch_strided(f, name, slices[:-1], slices[-1], merged[1:])
        return
    pad = MAX_DIMS - len(merged)
    full = (1,) * pad + merged
    arrays = [
        Array(
            t.pointer, full, (0,) * pad + tuple([q * t.dtype.itemsize for q in s]), t.dtype, "A", t
        )
        for t, s in zip(operands, strides)
    ]
    inner = full[-1]
    if inner >= SHORT_ROW:
        per_row = blocks_for(inner)
        n_blocks = full[0] * full[1] * full[2] * per_row
        launch(rows_kernel(f, name, len(inputs)), n_blocks, BLOCK, *arrays, per_row)
    else:
        launch(cells_kernel(f, name, len(inputs)), blocks_for(out.size), BLOCK, *arrays)


@cuda.jit(device=True)
def same(x):
    """The identity: copies and casts."""
    return x


def _packed(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    if t.is_contiguous and t.shape == shape:
        return t
    return map_elements(same, "copy", [t], t.dtype, shape=shape)

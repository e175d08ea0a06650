"""A product's batches, and its long sums in chunks, as the kernels on CUDA cores take them.

Those kernels multiply four-dimensional arrays, (outer, inner, rows, columns). Where the tiles are
too few to fill a device and K is long, chunks of K run as a batch and a second kernel adds up their
results, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from numba import cuda

from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.device import TARGET, launch
from blutrain.device.array import Array
from blutrain.tensor import Tensor, empty


class Tile(NamedTuple):
    """How the work is cut: a block's tile of `out`, its step along K, and a thread's share."""

    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.m * self.n // (self.thread_m * self.thread_n)


LARGE = Tile(128, 128, 16, 8, 8)
SMALL = Tile(64, 64, 16, 4, 4)

# Fewer large tiles than this leave too many of a big GPU's processors idle: small ones then.
ENOUGH_TILES = 64
# A long sum over few tiles (a weight's gradient) is cut into chunks of K that run side by side.
MIN_CHUNK = 512
# What the number of chunks weighs: a tile's share of a multiprocessor (FLOPs a second), and adding
# up the chunks' results (bytes a second, and the launch in seconds).
TILE_FLOPS, ADDING_BYTES, LAUNCH = 1.2e11, 3e12, 4e-6


# What starts the product of one batch: (a, b, out, bias).
Start = Callable[[Array, Array, Array, "Tensor | None"], None]


@cuda.jit
def sum_chunks_kernel(
    partial,  # (n_chunks, M, N)
    out,  # (1, 1, M, N)
):
    """One thread an element: add the chunks' products in order."""
    i = cuda.grid(1)
    n_chunks, n_rows, n_cols = partial.shape
    if i >= n_rows * n_cols:
        return
    row = i // n_cols
    col = i % n_cols
    total = partial[0, row, col]
    for chunk in range(1, n_chunks):
        total += partial[chunk, row, col]
    out[0, 0, row, col] = total


def multiply_batches(p: Problem, start: Start) -> None:
    """Give `start` the problem's batches, as four-dimensional arrays, and long sums in chunks."""
    a, b, out, bias, transpose_a, transpose_b = p
    if out.size == 0:
        return
    if a.ndim == b.ndim == out.ndim == 2:  # the common case, at a third of the host's time
        x, y, z = (_window(*pair) for pair in ((a, transpose_a), (b, transpose_b), (out, False)))
        _multiply(x, y, z, bias, start)
        return
    extents, steps = merged_batch((a, b, out))
    matrices = (matrix_of(a, transpose_a), matrix_of(b, transpose_b), matrix_of(out, False))
    for index in product(*map(range, extents[:-2])):
        windows = []
        for t, step, (shape, strides) in zip((a, b, out), steps, matrices):
            itemsize = t.dtype.itemsize
            pointer = t.pointer + itemsize * sum(i * s for i, s in zip(index, step))
            in_bytes = tuple([s * itemsize for s in (*step[-2:], *strides)])
            windows.append(Array(pointer, (*extents[-2:], *shape), in_bytes, t.dtype, "A", t))
        _multiply(windows[0], windows[1], windows[2], bias, start)


def _window(t: Tensor, transpose: bool) -> Array:
    """One matrix as a batch of one."""
    (n, m), (s, r) = matrix_of(t, transpose)
    size = t.dtype.itemsize
    return Array(t.pointer, (1, 1, n, m), (0, 0, s * size, r * size), t.dtype, "A", t)


def matrix_of(t: Tensor, transpose: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The last two extents and strides, swapped on demand."""
    if transpose:
        return t.shape[:-3:-1], t.strides[:-3:-1]
    return t.shape[-2:], t.strides[-2:]


def merged_batch(operands: Sequence[Tensor]) -> tuple[list[int], list[list[int]]]:
    """The batch's extents and each operand's strides along them, in as few dimensions as can be.

    Returns:
        At least two extents; for every operand as many strides, 0 where it is broadcast.
    """
    batch = operands[-1].shape[:-2]
    steps = []
    for t in operands:
        own = [0 if n == 1 else s for n, s in zip(t.shape[:-2], t.strides)]
        steps.append([0] * (len(batch) - len(own)) + own)
    extents: list[int] = [1, 1]
    merged: list[list[int]] = [[0, 0] for _ in operands]
    for d, n in enumerate(batch):
        if n == 1:
            continue
        if extents[-1] > 1 and all(m[-1] == s[d] * n for m, s in zip(merged, steps)):
            extents[-1] *= n
            for m, s in zip(merged, steps):
                m[-1] = s[d]
        else:
            extents.append(n)
            for m, s in zip(merged, steps):
                m.append(s[d])
    first = min(len(extents) - 2, 2)  # drop the two of extent 1 as far as others stand in
    return extents[first:], [m[first:] for m in merged]


def _multiply(a: Array, b: Array, out: Array, bias: Tensor | None, start: Start) -> None:
    """One batch of products, with K in chunks where that fills the device better."""
    n_chunks = 1 if bias is not None else _n_chunks(out.shape, a.shape[3])
    if n_chunks == 1:
        start(a, b, out, bias)
        return
    n_rows, n_cols = out.shape[2:]
    partial = empty((n_chunks, n_rows, n_cols), a.dtype.compute)
    chunks = partial.array(1, n_chunks, n_rows, n_cols)
    start(_chunked(a, 3, n_chunks), _chunked(b, 2, n_chunks), chunks, None)
    launch(sum_chunks_kernel, blocks_for(n_rows * n_cols), BLOCK, partial, out)


def _n_chunks(shape: tuple[int, ...], n_inner: int) -> int:
    """Into how many equal chunks to cut K: a power of two, 1 where the tiles are enough."""
    n_rows, n_cols = shape[2:]
    if shape[0] * shape[1] > 1:
        return 1
    n_tiles, places = n_tiles_of(shape, LARGE), _tiles_at_a_time()
    tile_seconds = 2 * LARGE.m * LARGE.n * n_inner / TILE_FLOPS

    def seconds(n_chunks: int) -> float:
        rounds = blocks_for(n_tiles * n_chunks, places)
        adding = (n_chunks + 1) * n_rows * n_cols * 4 / ADDING_BYTES + LAUNCH if n_chunks > 1 else 0
        return rounds * tile_seconds / n_chunks + adding

    choices = [1]
    while n_inner % (2 * choices[-1]) == 0 and n_inner // (2 * choices[-1]) >= MIN_CHUNK:
        choices.append(2 * choices[-1])
    return min(choices, key=seconds)


@cache
def _tiles_at_a_time() -> int:
    """Tiles that the device works on at the same time: two a multiprocessor."""
    if TARGET != "cuda":
        return ENOUGH_TILES
    from blutrain.device.cuda import driver

    return 2 * driver.properties().n_multiprocessors


def _chunked(t: Array, axis: int, n_chunks: int) -> Array:
    """The one matrix of `t` as a batch: its `axis` in `n_chunks` equal parts, the parts inner."""
    size = t.shape[axis] // n_chunks
    shape = [t.shape[0], n_chunks, *t.shape[2:]]
    strides = [t.strides[0], size * t.strides[axis], *t.strides[2:]]
    shape[axis] = size
    return Array(t.pointer, tuple(shape), tuple(strides), t.dtype, "A", t.owner)


def n_tiles_of(shape: tuple[int, ...], tile: Tile) -> int:
    outer, inner, n_rows, n_cols = shape
    return outer * inner * blocks_for(n_rows, tile.m) * blocks_for(n_cols, tile.n)

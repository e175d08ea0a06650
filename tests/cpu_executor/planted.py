"""Kernels with a bug each, and each without it. A line that has part in the bug ends in `# BUG`.

Nothing in here knows how they will be run, or what will look for the bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint8

FULL = 0xFFFFFFFF
N = 64


@dataclass(frozen=True)
class Planted:
    """A bug and how it shows.

    Attributes:
        kind: what a KernelFault calls it.
        bug, right: the kernel with it and without.
        arguments: makes the arguments.
        grid, block: blocks and threads.
        array: the array that it concerns; "" for none.
        shared: bytes of dynamic shared memory.
    """

    kind: str
    bug: Any
    right: Any
    arguments: Callable[[], tuple[Any, ...]]
    grid: Any = 1
    block: Any = N
    array: str = ""
    shared: int = 0


def floats(n: int = N) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def integers(n: int = N) -> np.ndarray:
    return np.zeros(n, np.int32)


# Out of bounds -----------------------------------------------------------------------------------


@cuda.jit
def no_guard(x):
    i = cuda.grid(1)
    x[i] = i  # BUG


@cuda.jit
def with_guard(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = i


@cuda.jit
def off_by_one(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i + 1] - x[i]  # BUG


@cuda.jit
def not_off(x, y):
    i = cuda.grid(1)
    if i + 1 < x.size:
        y[i] = x[i + 1] - x[i]


@cuda.jit
def axes_swapped(x):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[j, i] = 1.0  # BUG


@cuda.jit
def axes_right(x):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[i, j] = 1.0


@cuda.jit(device=True)
def left_neighbour(s, t):
    return s[t - 1 - N]  # BUG


@cuda.jit(device=True)
def left_neighbour_or_self(s, t):
    return s[max(t - 1, 0)]


@cuda.jit
def before_the_start(y):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    y[t] = left_neighbour(s, t)


@cuda.jit
def within(y):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    y[t] = left_neighbour_or_self(s, t)


@cuda.jit
def dynamic_too_small(y):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t + 1] = t  # BUG
    cuda.syncthreads()
    y[t] = s[t + 1]


@cuda.jit
def dynamic_enough(y):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    y[t] = s[t]


# Uninitialised memory ----------------------------------------------------------------------------


@cuda.jit
def sums_into_nothing(x, total):
    s = cuda.shared.array(1, float32)
    cuda.atomic.add(s, 0, x[cuda.threadIdx.x])  # BUG
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        total[0] = s[0]


@cuda.jit
def sums_into_zero(x, total):
    s = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        s[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, 0, x[cuda.threadIdx.x])
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        total[0] = s[0]


@cuda.jit
def partly_loaded(x, y):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    if t < x.size:
        s[t] = x[t]
    cuda.syncthreads()
    y[t] = s[N - 1 - t]  # BUG


@cuda.jit
def padded(x, y):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = x[t] if t < x.size else 0.0
    cuda.syncthreads()
    y[t] = s[N - 1 - t]


@cuda.jit
def local_not_zeroed(x, y):
    acc = cuda.local.array(4, float32)
    t = cuda.threadIdx.x
    for k in range(4):
        acc[k] += x[t] * k  # BUG
    y[t] = acc[3]


@cuda.jit
def local_zeroed(x, y):
    acc = cuda.local.array(4, float32)
    t = cuda.threadIdx.x
    for k in range(4):
        acc[k] = 0.0
    for k in range(4):
        acc[k] += x[t] * k
    y[t] = acc[3]


# Races in a block --------------------------------------------------------------------------------


@cuda.jit
def reverse_at_once(x):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    s[t] = s[t] + s[N - 1 - t]  # BUG
    cuda.syncthreads()
    x[t] = s[t]


@cuda.jit
def reverse_in_turn(x):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    v = s[t] + s[N - 1 - t]
    cuda.syncthreads()
    s[t] = v
    cuda.syncthreads()
    x[t] = s[t]


@cuda.jit
def tree_without_barrier(x, out):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    k = N // 2
    while k > 0:
        if t < k:
            s[t] += s[t + k]  # BUG
        k //= 2
    if t == 0:
        out[0] = s[0]


@cuda.jit
def tree_with_barrier(x, out):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    k = N // 2
    while k > 0:
        if t < k:
            s[t] += s[t + k]
        cuda.syncthreads()
        k //= 2
    if t == 0:
        out[0] = s[0]


@cuda.jit
def tile_reused(x, y):
    tile = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    acc = float32(0)
    for k in range(2):
        tile[t] = x[k * N + t]  # BUG
        cuda.syncthreads()
        acc += tile[(t + 40) % N]  # BUG
    y[t] = acc


@cuda.jit
def tile_awaited(x, y):
    tile = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    acc = float32(0)
    for k in range(2):
        tile[t] = x[k * N + t]
        cuda.syncthreads()
        acc += tile[(t + 40) % N]
        cuda.syncthreads()
    y[t] = acc


@cuda.jit
def double_buffer_same_half(x, y):
    tiles = cuda.shared.array((2, N), float32)
    t = cuda.threadIdx.x
    tiles[0, t] = x[t]
    acc = float32(0)
    for k in range(3):
        cuda.syncthreads()
        if k < 2:
            tiles[k % 2, t] = x[(k + 1) * N + t]  # BUG
        acc += tiles[k % 2, N - 1 - t]  # BUG
    y[t] = acc


@cuda.jit
def double_buffer(x, y):
    tiles = cuda.shared.array((2, N), float32)
    t = cuda.threadIdx.x
    tiles[0, t] = x[t]
    acc = float32(0)
    for k in range(3):
        cuda.syncthreads()
        if k < 2:
            tiles[(k + 1) % 2, t] = x[(k + 1) * N + t]
        acc += tiles[k % 2, N - 1 - t]
    y[t] = acc


@cuda.jit
def lockstep_assumed(x, y):
    s = cuda.shared.array(32, float32)
    lane = cuda.laneid
    s[lane] = x[lane]  # BUG
    y[lane] = s[lane ^ 1]  # BUG


@cuda.jit
def warp_synchronised(x, y):
    s = cuda.shared.array(32, float32)
    lane = cuda.laneid
    s[lane] = x[lane]
    cuda.syncwarp()
    y[lane] = s[lane ^ 1]


@cuda.jit
def shuffle_for_barrier(x, y):
    s = cuda.shared.array(32, float32)
    lane = cuda.laneid
    v = x[lane]
    s[lane] = v  # BUG
    v = cuda.shfl_xor_sync(FULL, v, 1)
    y[lane] = s[lane ^ 2] + v  # BUG


@cuda.jit
def shuffle_and_barrier(x, y):
    s = cuda.shared.array(32, float32)
    lane = cuda.laneid
    v = x[lane]
    s[lane] = v
    cuda.syncwarp()
    v = cuda.shfl_xor_sync(FULL, v, 1)
    y[lane] = s[lane ^ 2] + v


@cuda.jit
def everybody_writes(x, out):
    t = cuda.threadIdx.x
    if x[t] > 60.0:
        out[0] = t  # BUG


@cuda.jit
def everybody_writes_one(x, out):
    t = cuda.threadIdx.x
    if x[t] > 60.0:
        out[0] = 1


@cuda.jit
def neighbours_in_place(x):
    t = cuda.threadIdx.x
    if t > 0:
        x[t] = x[t] + x[t - 1]  # BUG


@cuda.jit
def neighbours_in_turn(x):
    t = cuda.threadIdx.x
    v = x[t]
    if t > 0:
        v += x[t - 1]
    cuda.syncthreads()
    x[t] = v


# Races between blocks ----------------------------------------------------------------------------


@cuda.jit
def blocks_add(x, total):
    v = x[cuda.blockIdx.x]
    if cuda.threadIdx.x == 0:
        total[0] += v  # BUG


@cuda.jit
def blocks_add_atomically(x, total):
    v = x[cuda.blockIdx.x]
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(total, 0, v)


@cuda.jit
def halo_in_place(x, y):
    i = cuda.grid(1)
    v = float32(0)
    if i + 1 < x.size:
        v = x[i + 1]  # BUG
    cuda.syncthreads()  # of the block alone: the neighbour's first element may be written already
    x[i] = v  # BUG


@cuda.jit
def halo_apart(x, y):
    i = cuda.grid(1)
    v = float32(0)
    if i + 1 < x.size:
        v = x[i + 1]
    y[i] = v


@cuda.jit
def atomic_and_plain(x, count):
    t = cuda.grid(1)
    if t == 0:
        count[0] = 0  # BUG
    cuda.atomic.add(count, 0, int32(x[t]))  # BUG


@cuda.jit
def atomic_alone(x, count):
    t = cuda.grid(1)
    cuda.atomic.add(count, 0, int32(x[t]))


@cuda.jit
def no_fence(x, part, arrived, out):
    """The last block to arrive adds up what the others found."""
    if cuda.threadIdx.x == 0:
        part[cuda.blockIdx.x] = x[cuda.blockIdx.x]  # BUG
        if cuda.atomic.add(arrived, 0, 1) == cuda.gridDim.x - 1:
            total = float32(0)
            for b in range(cuda.gridDim.x):
                total += part[b]  # BUG
            out[0] = total


@cuda.jit
def with_fence(x, part, arrived, out):
    if cuda.threadIdx.x == 0:
        part[cuda.blockIdx.x] = x[cuda.blockIdx.x]
        cuda.threadfence()
        if cuda.atomic.add(arrived, 0, 1) == cuda.gridDim.x - 1:
            total = float32(0)
            for b in range(cuda.gridDim.x):
                total += part[b]
            out[0] = total


# Barriers and warps ------------------------------------------------------------------------------


@cuda.jit
def barrier_in_branch(x):
    t = cuda.threadIdx.x
    if t < 40:
        x[t] += 1
        cuda.syncthreads()  # BUG
        x[t] += 1


@cuda.jit
def barrier_outside(x):
    t = cuda.threadIdx.x
    if t < 40:
        x[t] += 1
    cuda.syncthreads()
    if t < 40:
        x[t] += 1


@cuda.jit
def barrier_in_uneven_loop(x):
    t = cuda.threadIdx.x
    for _ in range(1 + t // 32):
        x[t] += 1
        cuda.syncthreads()  # BUG


@cuda.jit
def barrier_in_even_loop(x):
    t = cuda.threadIdx.x
    for k in range(2):
        if k <= t // 32:
            x[t] += 1
        cuda.syncthreads()


@cuda.jit
def two_barriers(x):
    t = cuda.threadIdx.x
    if t < 32:
        cuda.syncthreads()  # BUG
    else:
        x[t] = 0
        cuda.syncthreads()  # BUG


@cuda.jit
def one_barrier(x):
    t = cuda.threadIdx.x
    if t >= 32:
        x[t] = 0
    cuda.syncthreads()


@cuda.jit
def shuffle_in_branch(x):
    t = cuda.threadIdx.x
    v = x[t]
    if t < 16:
        v += cuda.shfl_down_sync(FULL, v, 8)  # BUG
    cuda.syncthreads()  # BUG
    x[t] = v


@cuda.jit
def shuffle_outside(x):
    t = cuda.threadIdx.x
    v = x[t]
    w = cuda.shfl_down_sync(FULL, v, 8)
    if t < 16:
        v += w
    cuda.syncthreads()
    x[t] = v


@cuda.jit
def reads_absent_lane(x):
    t = cuda.threadIdx.x
    v = x[t]
    if t < 16:
        v += cuda.shfl_down_sync(0xFFFF, v, 8)  # BUG
    x[t] = v


@cuda.jit
def reads_present_lane(x):
    t = cuda.threadIdx.x
    v = x[t]
    if t < 16:
        v += cuda.shfl_xor_sync(0xFFFF, v, 8)
    x[t] = v


@cuda.jit
def not_in_its_mask(x):
    t = cuda.threadIdx.x
    x[t] = cuda.shfl_xor_sync(0xFFFF, x[t], 1)  # BUG


@cuda.jit
def in_its_mask(x):
    t = cuda.threadIdx.x
    x[t] = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 1)


@cuda.jit
def vote_in_branch(x, out):
    t = cuda.threadIdx.x
    if x[t] > 10.0:
        out[t] = cuda.popc(cuda.ballot_sync(FULL, x[t] > 20.0))  # BUG
    cuda.syncwarp()  # BUG


@cuda.jit
def vote_of_those_there(x, out):
    t = cuda.threadIdx.x
    mask = cuda.ballot_sync(FULL, x[t] > 10.0)
    if x[t] > 10.0:
        out[t] = cuda.popc(cuda.ballot_sync(mask, x[t] > 20.0))
    cuda.syncwarp()


# Addresses and indices ---------------------------------------------------------------------------


@cuda.jit
def misaligned_view(y):
    raw = cuda.shared.array(0, uint8)
    t = cuda.threadIdx.x
    pairs = raw[4 : 8 * N + 4].view(float64)
    pairs[t] = t  # BUG
    cuda.syncthreads()
    y[t] = pairs[t]


@cuda.jit
def aligned_view(y):
    raw = cuda.shared.array(0, uint8)
    t = cuda.threadIdx.x
    pairs = raw[8 : 8 * N + 8].view(float64)
    pairs[t] = t
    cuda.syncthreads()
    y[t] = pairs[t]


@cuda.jit
def int32_product(x, n_cols):
    i = cuda.grid(1)
    at = int32((i + 1) * n_cols)
    x[at] = 1.0  # BUG


@cuda.jit
def int64_product(x, n_cols):
    i = cuda.grid(1)
    at = int64(i + 1) * n_cols
    if at < x.size:
        x[at] = 1.0


@cuda.jit
def product_beyond_int64(x, stride):
    i = cuda.grid(1)
    x[stride * stride * i] = 1.0  # BUG


@cuda.jit
def hash_of_product(x, stride):
    """A hash overflows on purpose, and its remainder is a fine index."""
    i = cuda.grid(1)
    x[(stride * stride * i) % x.size] = 1.0


BUGS = {
    "no guard": Planted("out of bounds", no_guard, with_guard, lambda: (floats(100),), 2,
                        array="x"),
    "off by one": Planted("out of bounds", off_by_one, not_off, lambda: (floats(), floats()),
                          array="x"),
    "axes swapped": Planted("out of bounds", axes_swapped, axes_right,
                            lambda: (np.zeros((4, 8), np.float32),), 1, (4, 8), "x"),
    "before the start": Planted("out of bounds", before_the_start, within, lambda: (floats(),),
                                array="s"),
    "dynamic too small": Planted("out of bounds", dynamic_too_small, dynamic_enough,
                                 lambda: (floats(),), array="s", shared=4 * N),
    "sum into nothing": Planted("uninitialised read", sums_into_nothing, sums_into_zero,
                                lambda: (floats(), floats(1)), array="s"),
    "partly loaded": Planted("uninitialised read", partly_loaded, padded,
                             lambda: (floats(50), floats()), array="s"),
    "local not zeroed": Planted("uninitialised read", local_not_zeroed, local_zeroed,
                                lambda: (floats(), floats()), array="acc"),
    "reverse at once": Planted("race", reverse_at_once, reverse_in_turn, lambda: (floats(),),
                               array="s"),
    "tree without barrier": Planted("race", tree_without_barrier, tree_with_barrier,
                                    lambda: (floats(), floats(1)), array="s"),
    "tile reused": Planted("race", tile_reused, tile_awaited, lambda: (floats(128), floats()),
                           array="tile"),
    "double buffer": Planted("race", double_buffer_same_half, double_buffer,
                             lambda: (floats(192), floats()), array="tiles"),
    "lockstep assumed": Planted("race", lockstep_assumed, warp_synchronised,
                                lambda: (floats(), floats()), 1, 32, "s"),
    "shuffle for a barrier": Planted("race", shuffle_for_barrier, shuffle_and_barrier,
                                     lambda: (floats(), floats()), 1, 32, "s"),
    "everybody writes": Planted("race", everybody_writes, everybody_writes_one,
                                lambda: (floats(), integers(1)), array="out"),
    "neighbours in place": Planted("race", neighbours_in_place, neighbours_in_turn,
                                   lambda: (floats(),), array="x"),
    "blocks add": Planted("race", blocks_add, blocks_add_atomically,
                          lambda: (floats(3) + 1, floats(1)), 3, 32, "total"),
    "halo in place": Planted("race", halo_in_place, halo_apart,
                             lambda: (floats(), floats()), 2, 32, "x"),
    "atomic and plain": Planted("race", atomic_and_plain, atomic_alone,
                                lambda: (floats(), integers(1)), 2, 32, "count"),
    "no fence": Planted("race", no_fence, with_fence,
                        lambda: (floats(3), floats(3), integers(1), floats(1)), 3, 32, "part"),
    "barrier in a branch": Planted("divergent barrier", barrier_in_branch, barrier_outside,
                                   lambda: (floats(),)),
    "barrier in an uneven loop": Planted("divergent barrier", barrier_in_uneven_loop,
                                         barrier_in_even_loop, lambda: (floats(),)),
    "two barriers": Planted("divergent barrier", two_barriers, one_barrier, lambda: (floats(),)),
    "shuffle in a branch": Planted("shuffle", shuffle_in_branch, shuffle_outside,
                                   lambda: (floats(),), 1, 32),
    "absent lane": Planted("shuffle", reads_absent_lane, reads_present_lane, lambda: (floats(),),
                           1, 32),
    "not in its mask": Planted("shuffle", not_in_its_mask, in_its_mask, lambda: (floats(),), 1,
                               32),
    "vote in a branch": Planted("shuffle", vote_in_branch, vote_of_those_there,
                                lambda: (floats(), integers()), 1, 32),
    "misaligned view": Planted("misaligned access", misaligned_view, aligned_view,
                               lambda: (np.zeros(N),), array="raw", shared=8 * N + 8),
    "int32 product": Planted("index overflow", int32_product, int64_product,
                             lambda: (floats(100), 1 << 31), 1, 4, "x"),
    "product beyond int64": Planted("index overflow", product_beyond_int64, hash_of_product,
                                    lambda: (floats(100), 1 << 32), 1, 4, "x"),
}  # fmt: skip

"""Positions sorted by the index that stands there: who looks up which row, in a fixed order.

The gradient of a lookup adds up, for every row, the positions that looked it up. Float atomics
would add them in any order; here the positions are sorted first, by keys

    index * 2³² + position

that are all different, so that every correct sort gives the same order, equal indices in the order
of their positions. The sort is bitonic: a network of compare-and-swap steps, each of them n / 2
independent pairs, log²n / 2 steps in all. Steps between neighbours closer than TILE happen in
shared memory, many in one launch; the few others are one launch each.

Source: Batcher, "Sorting networks and their applications", 1968.
"""

from __future__ import annotations

from numba import cuda, int64

from blutrain import dtypes
from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.device import launch
from blutrain.tensor import Tensor, empty

PAIRS = 4  # pairs that each thread compares in a step
TILE = 2 * PAIRS * BLOCK  # keys in shared memory: 16 KiB
HALF_TILE = TILE // 2
PADDING = 2**63 - 1  # sorts behind every key
HIGHEST = 2**31 - 1  # index that a key can hold


@cuda.jit(device=True)
def _lower_of_pair(pair, distance):
    """The smaller position of a step's pair; the other lies `distance` (a power of two) above."""
    return pair // distance * 2 * distance + pair % distance


@cuda.jit(device=True)
def _merge_in_tile(
    tile,  # (TILE,), shared
    first,  # global position of the tile
    run,  # length of the sorted runs that this merge makes
    distance,  # of the first step
):
    """The steps of one merge from `distance` down to 1, all within the tile."""
    while distance > 0:
        for k in range(PAIRS):
            low = _lower_of_pair(k * BLOCK + cuda.threadIdx.x, distance)
            a = tile[low]
            b = tile[low + distance]
            ascending = (first + low) & run == 0
            if (a > b) == ascending:
                tile[low] = b
                tile[low + distance] = a
        cuda.syncthreads()  # the next step pairs other threads' keys
        distance //= 2


@cuda.jit
def sort_tiles_kernel(
    indices,  # (n,), any integer type
    keys,  # (n_padded,), a multiple of TILE
):
    """One block a tile: make the keys and sort the tile, neighbouring tiles in opposite ways."""
    tile = cuda.shared.array(TILE, int64)
    first = cuda.blockIdx.x * TILE
    for k in range(2 * PAIRS):
        at = k * BLOCK + cuda.threadIdx.x
        key = int64(PADDING)
        if first + at < indices.size:
            # What no row has (in unchecked() alone) stays so, and must not overflow.
            index = min(max(int64(indices[first + at]), -1), HIGHEST)
            key = (index << 32) + first + at
        tile[at] = key
    cuda.syncthreads()  # the tile is loaded
    run = 2
    while run <= TILE:
        _merge_in_tile(tile, first, run, run // 2)
        run *= 2
    for k in range(2 * PAIRS):
        at = k * BLOCK + cuda.threadIdx.x
        keys[first + at] = tile[at]


@cuda.jit
def merge_step_kernel(
    keys,  # (n_padded,)
    run,
    distance,  # TILE or more
):
    """One step between tiles: a thread a pair."""
    low = _lower_of_pair(cuda.grid(1), distance)
    a = keys[low]
    b = keys[low + distance]
    if (a > b) == (low & run == 0):
        keys[low] = b
        keys[low + distance] = a


@cuda.jit
def merge_tiles_kernel(
    keys,  # (n_padded,)
    run,
):
    """One block a tile: the rest of a merge, once its steps stay within tiles."""
    tile = cuda.shared.array(TILE, int64)
    first = cuda.blockIdx.x * TILE
    for k in range(2 * PAIRS):
        at = k * BLOCK + cuda.threadIdx.x
        tile[at] = keys[first + at]
    cuda.syncthreads()  # the tile is loaded
    _merge_in_tile(tile, first, run, HALF_TILE)
    for k in range(2 * PAIRS):
        at = k * BLOCK + cuda.threadIdx.x
        keys[first + at] = tile[at]


def sorted_keys(indices: Tensor) -> Tensor:
    """The keys index * 2³² + position in ascending order.

    Args:
        indices: packed integers within [0, 2³¹), at least one.

    Returns:
        int64, of the next multiple of TILE that is a power of two; what is past
        `indices.size` is padding.
    """
    n = indices.size
    n_padded = max(TILE, 1 << (n - 1).bit_length())
    n_tiles = n_padded // TILE
    keys = empty((n_padded,), dtypes.int64)
    launch(sort_tiles_kernel, n_tiles, BLOCK, indices.array(n), keys)
    run = 2 * TILE
    while run <= n_padded:
        distance = run // 2
        while distance >= TILE:
            launch(merge_step_kernel, blocks_for(n_padded // 2), BLOCK, keys, run, distance)
            distance //= 2
        launch(merge_tiles_kernel, n_tiles, BLOCK, keys, run)
        run *= 2
    return keys

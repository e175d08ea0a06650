"""What the two sm_90 matrix-product kernels share: how a product is cut, and the order of tiles.

Both are persistent: one block an SM, which takes tiles until none is left. In a block one warp
keeps the copy engine busy, and two warpgroups multiply what it delivers, each 64 rows of the tile;
stages of shared memory pass between them by mbarriers. While the warpgroups store a tile, the
copies for the next one are already under way.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import cuda, int32

from blutrain.cuda_kernels.ptx.fragment import BUFFER

TILE_M = 128
N_GROUPS = 2  # warpgroups that multiply
THREADS = 128 * (1 + N_GROUPS)
# Registers a thread, once the copying warpgroup has handed over what it does not need: the block
# starts with 168 a thread, and 56 + 2 · 224 = 3 · 168.
COPY_REGISTERS, MULTIPLY_REGISTERS = 56, 224
# Neighbouring blocks share columns of B: tiles are numbered down strips of this many, so that what
# is in use at a time fits the L2 cache.
STRIP = 8
# Swizzled boxes repeat every 1,024 bytes, and dynamic shared memory may start between.
ALIGNMENT = 1024
ROW = 128  # bytes of a box's row: 32 float32 or 64 halves
BOX_ROWS = 64


class Cut(NamedTuple):
    """How a product is cut: the tile's columns, and the stages of shared memory."""

    n: int
    stages: int


def shared_bytes(stages: int, stage_bytes: int) -> int:
    """Dynamic shared memory of a block: stages, the warpgroups' buffers, three barriers a stage."""
    return ALIGNMENT + stages * (stage_bytes + 24) + N_GROUPS * BUFFER


@cuda.jit(device=True)
def tile_place(tile, tiles_m, tiles_n):
    """Which tile number `tile` is: (matrix of the batch, tile row, tile column)."""
    in_matrix = tile % (tiles_m * tiles_n)
    strip = in_matrix // (int32(STRIP) * tiles_n)
    in_strip = in_matrix % (int32(STRIP) * tiles_n)
    height = min(tiles_m - strip * int32(STRIP), int32(STRIP))
    tile_m = strip * int32(STRIP) + in_strip % height
    return tile // (tiles_m * tiles_n), tile_m, in_strip // height


@cuda.jit(device=True)
def blocks_of(n, size):
    """How many pieces of `size` cover `n`."""
    return (int32(n) + int32(size - 1)) // int32(size)

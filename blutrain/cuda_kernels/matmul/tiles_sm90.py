"""What the two sm_90 matrix-product kernels share: how a product is cut, and the order of tiles.

Both are persistent: one block an SM, which takes tiles until none is left. In a block one warp
keeps the copy engine busy, and two or three warpgroups multiply what it delivers, each 64 rows of
the tile; stages of shared memory pass between them by mbarriers. While the warpgroups store a tile,
the copies for the next one are already under way.

Where the tiles do not fill the SMs evenly the first of them, `n_shared`, are cut along K as well:
their steps, tile after tile, are dealt to the blocks in equal runs. A block whose run begins inside
a tile hands its sums for that tile over (see `ptx.partial_sums`); the block that has the tile's
beginning adds up all parts, in the order of k, and stores it. So the result is the same bits every
time. A block waits only for what blocks after it do first, so the wait is short; and where a grid
does not run as a whole, because another kernel holds some SMs, the blocks that do run end all but
the last of their tiles, and so make room for those that are waited for.

Source: Osama et al., "Stream-K: Work-centric parallel decomposition for dense matrix-matrix
multiplication on the GPU", 2023.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import cuda, int32, uint32

from blutrain.cuda_kernels.ptx.fragment import BUFFER
from blutrain.cuda_kernels.ptx.partial_sums import partial_bytes

# Registers a thread, once the copying warpgroup has handed over what it does not need, by the
# number of warpgroups that multiply: a block of three starts with 168 a thread, one of four with
# 128, and e.g. 56 + 2 · 224 = 3 · 168. No more than a product needs goes to those who multiply.
REGISTERS = {2: (72, 216), 3: (40, 152)}
# Neighbouring blocks share columns of B: tiles are numbered down strips of this many, so that what
# is in use at a time fits the L2 cache.
STRIP = 8
# Swizzled boxes repeat every 1,024 bytes, and dynamic shared memory may start between.
ALIGNMENT = 1024
ROW = 128  # bytes of a box's row: 32 float32 or 64 halves
BOX_ROWS = 64


class Cut(NamedTuple):
    """How a product is cut.

    Attributes:
        n: columns of a tile.
        stages: of shared memory.
        groups: warpgroups that multiply, 64 rows of the tile each.
    """

    n: int
    stages: int
    groups: int = 2

    @property
    def m(self) -> int:
        """Rows of a tile."""
        return 64 * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (1 + self.groups)

    @property
    def part(self) -> int:
        """Bytes of a block's sums, where it hands them over; a flag a warpgroup comes with them."""
        return self.groups * (partial_bytes(self.n) + 16)

    def shared_bytes(self, stage_bytes: int) -> int:
        """Dynamic shared memory: stages, a buffer a warpgroup, up to three barriers a stage."""
        return ALIGNMENT + self.stages * (stage_bytes + 24) + self.groups * BUFFER


# Numba widens 32-bit arithmetic to 64 bits, and a 64-bit division is a call: slow, and the callee
# holds all of the caller to the registers that a block starts with. Hence every cast below.
@cuda.jit(device=True)
def _divided(x, y):
    """(x // y, x % y) of numbers from 0 to 2³¹."""
    quotient = uint32(uint32(x) // uint32(y))
    return int32(quotient), int32(uint32(x) - uint32(quotient * uint32(y)))


@cuda.jit(device=True)
def tile_place(tile, tiles_m, tiles_n):
    """Which tile number `tile` is: (matrix of the batch, tile row, tile column)."""
    batch, in_matrix = _divided(tile, int32(int32(tiles_m) * int32(tiles_n)))
    strip, in_strip = _divided(in_matrix, int32(int32(STRIP) * int32(tiles_n)))
    first = int32(strip * int32(STRIP))
    col, row = _divided(in_strip, int32(min(int32(tiles_m - first), int32(STRIP))))
    return batch, int32(first + row), col


@cuda.jit(device=True)
def blocks_of(n, size):
    """How many pieces of `size` cover `n`."""
    return _divided(int32(n) + int32(size - 1), int32(size))[0]


@cuda.jit(device=True)
def share_start(block, share, extra):
    """Where a block's run of shared steps begins: `share` each, one more for the first `extra`."""
    return int32(int32(block) * int32(share) + min(int32(block), int32(extra)))


@cuda.jit(device=True)
def next_work(at, end, tile, n_steps):
    """A block's next piece of work: (tile, first step, step after the last).

    It has the shared steps [at, end) to do, then tile number `tile` and what follows.
    """
    if at >= end:
        return int32(tile), int32(0), int32(n_steps)
    shared, first = _divided(at, n_steps)
    return shared, first, int32(min(int32(n_steps), int32(first + end - at)))

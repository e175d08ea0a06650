"""How attention's operands lie in shared memory, for the tensor cores of sm_90.

The tensor cores multiply TF32 at half the rate of halves, and only along K in memory; attention
needs K and V, Q and dy along one direction and across it. A float16 has as many significant bits as
a TF32, 11, and lacks only the range. So float32 rows become float16, scaled by a power of two for
each tile of 64 rows that puts its largest magnitude between 2^14 and 2^15:

    x = 2^E (high + low)        high = x / 2^E rounded to float16, low = the rest, rounded too

`high` alone stands for TF32: rounded to nearest, and what is 2^29 times smaller than the largest of
its tile loses bits. `high` with `low` has 22 bits of x, or an absolute error of 2^-40 of the
tile's largest: three products give float32's precision (`ptx.tile_product`). Halves go as they are.

A scale may not shrink while sums over a stream of tiles are kept: E is the largest so far, and sums
are multiplied by 2^(E before - E) where it grows. A tile with an infinite element becomes NaN.

A block works on 128 or 256 rows at a time, the resident ones, 64 for each of the warpgroups that
multiply; past them goes a stream of tiles of 64 rows of two tensors. Other warps bring all of them
into shared memory (`loader_sm90.py`), where mbarriers hand them over.

Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022, for the
two parts; the division of labour follows Shah et al., "FlashAttention-3", 2024.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import cuda, int32

from blutrain.cuda_kernels.ptx.address import shared_address
from blutrain.cuda_kernels.ptx.barrier import mbarrier_init, mbarrier_init_fence, mbarrier_wait
from blutrain.cuda_kernels.ptx.scaled_halves import PART, TILE, arrive_as_warp
from blutrain.cuda_kernels.ptx.tile_product import Operand

HEAD = 64  # columns of a tile: smaller heads are padded with zeros
ALIGNMENT = 1024  # swizzled boxes repeat so, and dynamic shared memory may start between
WARPS = 4  # of a warpgroup
SLOTS = 2  # of float32 tiles on their way to a loading warpgroup
P_SHIFT = 15  # probabilities are multiplied by 2^15
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


class Crew(NamedTuple):
    """The warps of a block.

    Attributes:
        first: threads that load, before those that multiply.
        groups: warpgroups that multiply, 64 resident rows each.
        last: threads behind them, which load where there are none before.
        load_registers: registers of each that loads, once the block has dealt them out anew.
        multiply_registers: of each that multiplies.
    """

    first: int
    groups: int
    last: int
    load_registers: int
    multiply_registers: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.first + 128 * self.groups + self.last

    @property
    def rows(self) -> int:
        """Resident rows of a block."""
        return TILE * self.groups


WIDE = Crew(256, 2, 0, 56, 200)
# Halves come without conversion: one warp asks for them. Where the sums fit as well, four
# warpgroups multiply: some compute exponentials while the tensor cores are busy for others.
DEEP = Crew(0, 4, 128, 24, 112)


class Form(NamedTuple):
    """How numbers are stored and multiplied.

    Attributes:
        element: of the tensors: "float32", "bfloat16" or "float16".
        kind: of the products' operands: "f16" or "bf16".
        split: whether an operand is a high and a low part.
    """

    element: str
    kind: str
    split: bool

    @property
    def converted(self) -> bool:
        """Whether what is stored is not what is multiplied."""
        return self.element == "float32"

    @property
    def scaled(self) -> bool:
        """Whether tiles have scales."""
        return self.converted and self.kind == "f16"

    @property
    def element_bytes(self) -> int:
        """Of a stored number."""
        return 4 if self.converted else 2

    @property
    def tile_bytes(self) -> int:
        """Of a tile in shared memory."""
        return PART * (2 if self.split else 1)

    @property
    def along(self) -> Operand:
        """A tile as an operand whose K runs along its rows."""
        return Operand(TILE, False, PART if self.split else 0)

    @property
    def across(self) -> Operand:
        """A tile as an operand whose K runs down its rows."""
        return Operand(TILE, True, PART if self.split else 0)


class Shared(NamedTuple):
    """Where things are in a block's shared memory, in bytes from its first aligned address.

    Attributes:
        form: how numbers are stored.
        groups: warpgroups that multiply.
        n_resident: tensors that have resident rows.
        buffers: of resident tiles: with two the next block's arrive while this one's are used.
        stages: of the stream.
        vectors: whether two float32 vectors go with the stream's tiles.
    """

    form: Form
    groups: int
    n_resident: int
    buffers: int
    stages: int
    vectors: bool

    @property
    def raw(self) -> int:
        """float32 tiles on their way, for both loading warpgroups."""
        return 2 * SLOTS if self.form.converted else 0

    @property
    def stream(self) -> int:
        """The stream's tiles (stage, tensor), behind the resident ones (buffer, tensor, group)."""
        return self.buffers * self.n_resident * self.groups * self.form.tile_bytes

    @property
    def raw_tiles(self) -> int:
        """(warpgroup, slot) tiles of float32, each two boxes of 32 columns."""
        return self.stream + self.stages * 2 * self.form.tile_bytes

    @property
    def vector(self) -> int:
        """(stage, vector, TILE) float32."""
        return self.raw_tiles + self.raw * 2 * PART

    @property
    def resident_exponents(self) -> int:
        """(buffer, tensor, group) int32."""
        return self.vector + (self.stages * 2 * TILE * 4 if self.vectors else 0)

    @property
    def stream_exponents(self) -> int:
        """(stage, tensor) int32."""
        return self.resident_exponents + 4 * self.buffers * self.n_resident * self.groups

    @property
    def vector_magnitudes(self) -> int:
        """(stage, 2) float32: the larger of each two is the second vector's largest magnitude."""
        return self.stream_exponents + 4 * self.stages * 2

    @property
    def magnitudes(self) -> int:
        """(warpgroup, 2 turns, 4 warps) int32: a tile's largest magnitude on its way."""
        end = self.vector_magnitudes + 4 * self.stages * 2
        return -(-end // 16) * 16

    @property
    def resident_full(self) -> int:
        """Barriers (buffer, group)."""
        return self.magnitudes + 64

    @property
    def resident_empty(self) -> int:
        """Barriers (buffer, group)."""
        return self.resident_full + 8 * self.groups * self.buffers

    @property
    def stream_full(self) -> int:
        """Barriers (stage, tensor)."""
        return self.resident_empty + 8 * self.groups * self.buffers

    @property
    def stream_empty(self) -> int:
        """Barriers (stage, tensor)."""
        return self.stream_full + 16 * self.stages

    @property
    def raw_full(self) -> int:
        """Barriers (warpgroup, slot)."""
        return self.stream_empty + 16 * self.stages

    @property
    def n_bytes(self) -> int:
        """All of it, as a launch asks for it."""
        return ALIGNMENT + self.raw_full + 8 * self.raw


@cache
def opened(shared: Shared) -> Any:
    """A device function (memory) → base: what a block does first with its shared memory.

    `memory` is the dynamic array, `base` its first aligned address. All threads call it; thread 0
    makes the barriers, and all know of them when it returns.
    """
    buffers, stages, raw = shared.groups * shared.buffers, 2 * shared.stages, shared.raw
    resident_full, resident_empty = shared.resident_full, shared.resident_empty
    stream_full, stream_empty, raw_full = shared.stream_full, shared.stream_empty, shared.raw_full
    n_readers = shared.groups * WARPS
    # Who converts a tile arrives warp by warp; else one thread does for the copy engine.
    n_writers = WARPS if shared.form.converted else 1
    n_first_writers = n_writers
    if shared.vectors and not shared.form.converted:
        n_first_writers += WARPS  # those who bring the vectors

    @cuda.jit(device=True, forceinline=True)
    def make(base):
        for i in range(buffers):
            mbarrier_init(base + int32(resident_full + 8 * i), int32(n_writers))
            mbarrier_init(base + int32(resident_empty + 8 * i), int32(WARPS))
        for i in range(stages):
            n = n_first_writers if i % 2 == 0 else n_writers
            mbarrier_init(base + int32(stream_full + 8 * i), int32(n))
            mbarrier_init(base + int32(stream_empty + 8 * i), int32(n_readers))
        for i in range(raw):
            mbarrier_init(base + int32(raw_full + 8 * i), int32(1))
        mbarrier_init_fence()

    @cuda.jit(device=True, forceinline=True)
    def open_memory(memory):
        base = (shared_address(memory, 0) + int32(ALIGNMENT - 1)) & int32(-ALIGNMENT)
        if int32(cuda.threadIdx.x) == int32(0):
            make(base)
        cuda.syncthreads()  # all know of the barriers
        return base

    return open_memory


@cache
def passed_over(shared: Shared) -> Any:
    """A device function (base, stage, parity) for warps that a tile of the stream does not concern.

    They wait for it all the same, and give it back: a stage is free when all have done so.
    """
    stream_full, stream_empty = shared.stream_full, shared.stream_empty

    @cuda.jit(device=True, forceinline=True)
    def pass_over(base, stage, parity):
        for i in range(2):
            place = int32(stage * int32(2) + int32(i))
            mbarrier_wait(base + int32(stream_full) + place * int32(8), parity)
            arrive_as_warp(base + int32(stream_empty) + place * int32(8))

    return pass_over

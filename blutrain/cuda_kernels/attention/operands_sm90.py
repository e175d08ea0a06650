"""How attention's operands reach the tensor cores of sm_90: tiles of 16-bit numbers.

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

A block of three warpgroups works on 128 rows at a time, the resident ones, 64 for each of the two
warpgroups that multiply; past them goes a stream of tiles of 64 rows of two tensors. The third
warpgroup loads all tiles from global memory into registers, converts them, and writes them to
shared memory, where mbarriers hand them over; the next tile's loads are under way meanwhile.

Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022, for the
two parts; the division of labour follows Shah et al., "FlashAttention-3", 2024.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.ptx.barrier import (
    fence_async_shared,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait,
)
from blutrain.cuda_kernels.ptx.half_pairs import (
    barrier_of_loaders,
    bits_of,
    float_of,
    high_of_f16,
    larger_magnitude,
    largest_of_warp,
    load_quad_if,
    load_shared_words,
    load_words_if,
    low_of_f16,
    store_shared_word,
    store_shared_words,
)
from blutrain.cuda_kernels.ptx.mma import pack_bf16, pack_f16
from blutrain.cuda_kernels.ptx.tile_product import Operand

HEAD = 64  # columns of a tile: smaller heads are padded with zeros
TILE = 64  # rows of a tile
BLOCK_ROWS = 2 * TILE  # resident rows of a block
PART = TILE * 128  # bytes of a tile's high or low part
BUFFERS = 2  # of resident tiles: the next block's arrive while this one's are used
N_LOADERS = 256  # threads that load; 2 · 128 threads multiply
THREADS = 512
LOAD_REGISTERS, MULTIPLY_REGISTERS = 80, 176
ALIGNMENT = 1024
PRODUCER_BARRIER = 1
WARPS_OF_CONSUMERS = 8
LOWEST_EXPONENT = -112  # of a scale: 2^-E stays finite, and all-zero tiles get this one
P_SHIFT = 15  # probabilities are multiplied by 2^15
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


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
    def scaled(self) -> bool:
        """Whether tiles have scales."""
        return self.element == "float32" and self.kind == "f16"

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
        n_resident: tensors that have resident rows.
        stages: of the stream.
        vectors: whether two float32 vectors go with the stream's tiles.
    """

    form: Form
    n_resident: int
    stages: int
    vectors: bool

    @property
    def stream(self) -> int:
        """The stream's tiles: (stage, tensor); before them (buffer, tensor, half) resident ones."""
        return BUFFERS * self.n_resident * 2 * self.form.tile_bytes

    @property
    def vector(self) -> int:
        """(stage, vector, TILE) float32."""
        return self.stream + self.stages * 2 * self.form.tile_bytes

    @property
    def resident_exponents(self) -> int:
        """(buffer, tensor, half) int32."""
        return self.vector + (self.stages * 2 * TILE * 4 if self.vectors else 0)

    @property
    def stream_exponents(self) -> int:
        """(stage, tensor) int32."""
        return self.resident_exponents + 4 * BUFFERS * self.n_resident * 2

    @property
    def vector_magnitudes(self) -> int:
        """(stage, 2) float32: the larger of each two is the second vector's largest magnitude."""
        return self.stream_exponents + 4 * self.stages * 2

    @property
    def magnitudes(self) -> int:
        """(4 turns, 8 warps) int32: where the loading warps find a tile's largest magnitude."""
        end = self.vector_magnitudes + 4 * self.stages * 2
        return -(-end // 16) * 16

    @property
    def barriers(self) -> int:
        """Resident full (buffer, half), empty; stream full (stage, tensor), empty."""
        return self.magnitudes + 128

    @property
    def resident_empty(self) -> int:
        """From `barriers` on."""
        return 8 * BUFFERS * 2

    @property
    def stream_full(self) -> int:
        """From `barriers` on."""
        return 16 * BUFFERS * 2

    @property
    def stream_empty(self) -> int:
        """From `barriers` on."""
        return self.stream_full + 16 * self.stages

    @property
    def n_bytes(self) -> int:
        """All of it, as a launch asks for it."""
        return ALIGNMENT + self.barriers + self.stream_empty + 16 * self.stages


@cuda.jit(device=True, forceinline=True)
def power_of_two(e):
    """2^e as float32, for e from -126 to 127; the nearest of these beyond."""
    return float_of((min(max(e, int32(-126)), int32(127)) + int32(127)) << int32(23))


@cuda.jit(device=True, forceinline=True)
def exponent_of(x):
    """E for the largest magnitude x: 2^14 ≤ x / 2^E < 2^15."""
    return max((bits_of(x) >> int32(23)) - int32(127 + 14), int32(LOWEST_EXPONENT))


@cuda.jit(device=True, forceinline=True)
def block_at(turn, n_blocks, n_parts):
    """(matrix, block of rows) of a turn, the block -1 where there is none.

    With two parts a turn takes a block from the end and the one as far from the start: causal
    blocks are of different lengths, and these pairs are not.
    """
    n_pairs = (n_blocks + n_parts - int32(1)) // n_parts
    pair = turn // n_parts
    first = pair % n_pairs
    last = n_blocks - int32(1) - first
    if turn % n_parts == int32(0):
        return pair // n_pairs, last
    return pair // n_pairs, first if first != last else int32(-1)


@cuda.jit(device=True, forceinline=True)
def turns_of(n_matrices, n_blocks, n_parts):
    """How many turns there are."""
    return n_matrices * ((n_blocks + n_parts - int32(1)) // n_parts) * n_parts


@cuda.jit(device=True, forceinline=True)
def next_turn(turn, n_parts):
    """The turn of this block after `turn`: the other part, or a pair further on."""
    if (turn + int32(1)) % n_parts != int32(0):
        return turn + int32(1)
    return (turn // n_parts + int32(cuda.gridDim.x)) * n_parts


@cache
def shared_barriers(shared: Shared) -> Any:
    """A device function (base) by which thread 0 makes the barriers."""
    n_resident = BUFFERS * 2
    n_stream = shared.stages * 2
    at = shared.barriers

    @cuda.jit(device=True, forceinline=True)
    def make(base):
        barrier = base + int32(at)
        for i in range(n_resident):
            mbarrier_init(barrier + int32(8 * i), int32(N_LOADERS // 32))
        for i in range(n_resident, 2 * n_resident):
            mbarrier_init(barrier + int32(8 * i), int32(4))
        for i in range(2 * n_resident, 2 * n_resident + n_stream):
            mbarrier_init(barrier + int32(8 * i), int32(N_LOADERS // 32))
        for i in range(2 * n_resident + n_stream, 2 * n_resident + 2 * n_stream):
            mbarrier_init(barrier + int32(8 * i), int32(WARPS_OF_CONSUMERS))
        mbarrier_init_fence()

    return make


@cuda.jit(device=True, forceinline=True)
def arrive_as_warp(barrier):
    """One arrival for the warp, after all of its lanes."""
    cuda.syncwarp()
    if cuda.threadIdx.x & 31 == 0:
        mbarrier_arrive(barrier)


@cache
def load_tile(form: Form) -> Any:
    """A device function by which the loaders start to load a tile into registers.

    load(x, source, pitch, n_rows, n_columns): x (32,) float32, or (16,) int32 for halves: the
    thread's 16-byte pieces t % 8 of rows t // 8 + 16 i. Rows and columns beyond are zeros.
    """
    if form.element == "float32":

        @cuda.jit(device=True, forceinline=True)
        def load(x, source, pitch, n_rows, n_columns):
            t = int32(cuda.threadIdx.x)
            row = t >> int32(3)
            column = (t & int32(7)) * int32(8)
            for i in range(2):
                r = row + int32(32 * i)
                valid = int32(r < n_rows and column < n_columns)
                at = source + int64(r) * pitch + int64(column * int32(4))
                a = load_quad_if(at, valid)
                x[8 * i], x[8 * i + 1], x[8 * i + 2], x[8 * i + 3] = a[0], a[1], a[2], a[3]
                b = load_quad_if(at + int64(16), valid)
                x[8 * i + 4], x[8 * i + 5], x[8 * i + 6], x[8 * i + 7] = b[0], b[1], b[2], b[3]

        return load

    @cuda.jit(device=True, forceinline=True)
    def load_halves(x, source, pitch, n_rows, n_columns):
        t = int32(cuda.threadIdx.x)
        row = t >> int32(3)
        column = (t & int32(7)) * int32(8)
        for i in range(2):
            r = row + int32(32 * i)
            valid = int32(r < n_rows and column < n_columns)
            a = load_words_if(source + int64(r) * pitch + int64(column * int32(2)), valid)
            x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3] = a[0], a[1], a[2], a[3]

    return load_halves


@cuda.jit(device=True, forceinline=True)
def largest_of_loaders(x, slots):
    """The largest of 128 threads' non-negative x; `slots` is the address of 4 words."""
    t = int32(cuda.threadIdx.x)
    largest = largest_of_warp(bits_of(x))
    if t & int32(31) == int32(0):
        store_shared_word(slots + (t >> int32(5)) * int32(4), largest)
    barrier_of_loaders(int32(PRODUCER_BARRIER))
    w = load_shared_words(slots)
    x = load_shared_words(slots + int32(16))
    return float_of(
        max(max(max(w[0], w[1]), max(w[2], w[3])), max(max(x[0], x[1]), max(x[2], x[3])))
    )


@cache
def write_tile(form: Form) -> Any:
    """A device function by which the loaders write a tile that they loaded.

    write(x, target, slots, running) → E: `running` is the least that E may be. The threads' writes
    are ordered before wgmma's reads.
    """
    split, scaled = form.split, form.scaled
    pack = pack_f16 if form.kind == "f16" else pack_bf16
    if form.element != "float32":

        @cuda.jit(device=True, forceinline=True)
        def write_halves(x, target, slots, running):
            t = int32(cuda.threadIdx.x)
            row = t >> int32(3)
            piece = ((t & int32(7)) ^ (row & int32(7))) << int32(4)
            at = target + row * int32(128) + piece
            for i in range(2):
                store_shared_words(
                    at + int32(4096 * i), x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]
                )
            fence_async_shared()
            return int32(0)

        return write_halves

    @cuda.jit(device=True, forceinline=True)
    def write(x, target, slots, running):
        t = int32(cuda.threadIdx.x)
        row = t >> int32(3)
        piece = ((t & int32(7)) ^ (row & int32(7))) << int32(4)
        at = target + row * int32(128) + piece
        exponent = int32(0)
        if scaled:
            largest = float32(0)
            for i in range(16):
                largest = larger_magnitude(largest, x[i])
            largest = largest_of_loaders(largest, slots)
            exponent = max(exponent_of(largest), running)
            factor = power_of_two(-exponent)
            # Nothing can be said of a tile with an infinite element.
            finite = bits_of(largest) < int32(0x7F800000)
            factor = factor if finite else float_of(int32(0x7FC00000))
            for i in range(16):
                x[i] *= factor
        high = cuda.local.array(4, int32)
        low = cuda.local.array(4, int32)
        for i in range(2):
            for j in range(4):
                high[j] = pack(x[8 * i + 2 * j], x[8 * i + 2 * j + 1])
            store_shared_words(at + int32(4096 * i), high[0], high[1], high[2], high[3])
            if split:
                for j in range(4):
                    low[j] = pack(
                        x[8 * i + 2 * j] - low_of_f16(high[j]),
                        x[8 * i + 2 * j + 1] - high_of_f16(high[j]),
                    )
                store_shared_words(at + int32(4096 * i + PART), low[0], low[1], low[2], low[3])
        fence_async_shared()
        return exponent

    return write

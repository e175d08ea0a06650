"""float32 tiles on their way to the tensor cores as scaled halves. sm_90.

    x = 2^E (high + low)        high = x / 2^E rounded to float16, low = the rest, rounded too

A float16 has as many significant bits as a TF32, 11; E, one for a tile of 64 rows of 64 numbers,
makes up for its range: it puts the tile's largest magnitude between 2^14 and 2^15. `high` with
`low` has 22 bits of x, or an absolute error of 2^-40 of the tile's largest. And the tensor cores
multiply halves at twice the rate of TF32, whichever way they lie in memory.

A float32 tile is two boxes of 64 rows by 32 columns as the copy engine writes them, a part of the
result one of 64 rows by 64 columns: rows of 128 bytes, 16-byte piece p of row r at p ^ (r % 8). A
warp's lanes take eight rows of four pieces at a time: no bank conflicts on either side.

Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32

from blutrain.cuda_kernels.ptx.barrier import (
    fence_async_shared,
    mbarrier_arrive,
    warpgroup_barrier,
)
from blutrain.cuda_kernels.ptx.copy import (
    load_shared_quad,
    load_shared_words,
    store_shared_word,
    store_shared_words,
)
from blutrain.cuda_kernels.ptx.half_pairs import high_of_f16, low_of_f16
from blutrain.cuda_kernels.ptx.mma import pack_bf16, pack_f16
from blutrain.cuda_kernels.ptx.scalar import (
    bits_of,
    float_of,
    larger_magnitude,
    largest_of_warp,
    same_again,
)

TILE = 64  # rows and columns of a tile
PART = TILE * 128  # bytes of a part of a tile
LOWEST_EXPONENT = -112  # of a scale: 2^-E stays finite, and all-zero tiles get this one


@cuda.jit(device=True, forceinline=True)
def arrive_as_warp(barrier):
    """One arrival for the warp, after all of its lanes."""
    cuda.syncwarp()
    if cuda.threadIdx.x & 31 == 0:
        mbarrier_arrive(barrier)


@cuda.jit(device=True, forceinline=True)
def power_of_two(e):
    """2^e as float32, for e from -126 to 127; the nearest of these beyond."""
    return float_of((min(max(e, int32(-126)), int32(127)) + int32(127)) << int32(23))


@cuda.jit(device=True, forceinline=True)
def exponent_of(x):
    """E for the largest magnitude x: 2^14 ≤ x / 2^E < 2^15."""
    return max((bits_of(x) >> int32(23)) - int32(127 + 14), int32(LOWEST_EXPONENT))


@cuda.jit(device=True, forceinline=True)
def read_tile(x, slot):  # x: (32,)
    """Thread's part of a float32 tile: piece lane / 8 (+ 4) of rows 16 warp + lane % 8 (+ 8)."""
    t = same_again(int32(cuda.threadIdx.x)) & int32(127)
    row = (t >> int32(5)) * int32(16) + (t & int32(7))
    piece = (t >> int32(3)) & int32(3)
    at = slot + row * int32(128)
    left = ((int32(2) * piece) ^ (t & int32(7))) << int32(4)
    right = left ^ int32(16)
    for i in range(4):
        box = int32(PART * (i // 2) + 1024 * (i % 2))
        a = load_shared_quad(at + box + left)
        x[8 * i], x[8 * i + 1], x[8 * i + 2], x[8 * i + 3] = a[0], a[1], a[2], a[3]
        b = load_shared_quad(at + box + right)
        x[8 * i + 4], x[8 * i + 5], x[8 * i + 6], x[8 * i + 7] = b[0], b[1], b[2], b[3]


@cache
def write_tile(kind: str, split: bool, low: int = PART) -> Any:
    """A device function (x, target, factor): what `read_tile` read, times factor, as operands.

    The low part is written `low` bytes behind the high one. The writes are ordered before wgmma's
    reads.
    """
    pack = pack_f16 if kind == "f16" else pack_bf16
    scaled, low_offset = kind == "f16", low

    @cuda.jit(device=True, forceinline=True)
    def write(x, target, factor):
        t = same_again(int32(cuda.threadIdx.x)) & int32(127)
        row = (t >> int32(5)) * int32(16) + (t & int32(7))
        piece = (((t >> int32(3)) & int32(3)) ^ (t & int32(7))) << int32(4)
        at = target + row * int32(128) + piece
        # The pieces 4 further on are at the place with the third bit turned.
        further = int32(64) - int32(2) * (piece & int32(64))
        high = cuda.local.array(4, int32)
        rest = cuda.local.array(4, int32)
        for i in range(4):
            place = at + int32(1024 * (i % 2))
            if i // 2 == 1:
                place += further
            for j in range(8):
                if scaled:
                    x[8 * i + j] *= factor
            for j in range(4):
                high[j] = pack(x[8 * i + 2 * j], x[8 * i + 2 * j + 1])
            store_shared_words(place, high[0], high[1], high[2], high[3])
            if split:
                for j in range(4):
                    rest[j] = pack(
                        x[8 * i + 2 * j] - low_of_f16(high[j]),
                        x[8 * i + 2 * j + 1] - high_of_f16(high[j]),
                    )
                store_shared_words(place + int32(low_offset), rest[0], rest[1], rest[2], rest[3])
        fence_async_shared()

    return write


@cuda.jit(device=True, forceinline=True)
def largest_of_warpgroup(x, slots, group):  # x: (32,)
    """The largest magnitude of 128 threads' x; `slots` is the address of 4 words."""
    t = int32(cuda.threadIdx.x) & int32(127)
    a, b = float32(0), float32(0)
    for i in range(16):
        a = larger_magnitude(a, x[i])
        b = larger_magnitude(b, x[16 + i])
    largest = largest_of_warp(bits_of(larger_magnitude(a, b)))
    if t & int32(31) == int32(0):
        store_shared_word(slots + (t >> int32(5)) * int32(4), largest)
    warpgroup_barrier(group + int32(1))
    w = load_shared_words(slots)
    return float_of(max(max(w[0], w[1]), max(w[2], w[3])))


@cuda.jit(device=True, forceinline=True)
def factor_of(largest, exponent):
    """What a tile is multiplied by: 2^-E, or NaN where its largest magnitude is infinite.

    Nothing can be said of such a tile: what is finite in it would vanish beside it.
    """
    finite = bits_of(largest) < int32(0x7F800000)
    return power_of_two(-exponent) if finite else float_of(int32(0x7FC00000))

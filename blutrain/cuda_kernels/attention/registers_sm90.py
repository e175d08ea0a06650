"""What a warpgroup of attention's sm_90 kernels does with tiles in its registers.

The layout is that of `ptx.wgmma`: element 4 j + 2 h + i of a tile of sums is row g + 8 h of the
warp's 16, column 8 j + 2 q + i, with g = lane / 4 and q = lane % 4. So a row lies in the four lanes
of a quad.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, int32, int64

from blutrain.cuda_kernels.common import FULL_MASK
from blutrain.cuda_kernels.ptx import copy
from blutrain.cuda_kernels.ptx.address import global_address
from blutrain.cuda_kernels.ptx.copy import load_pair_if, load_word_if, store_word
from blutrain.cuda_kernels.ptx.half_pairs import high_of_bf16, high_of_f16, low_of_bf16, low_of_f16
from blutrain.cuda_kernels.ptx.mma import pack_bf16, pack_f16
from blutrain.cuda_kernels.ptx.scalar import larger, quotient, same_again


@cuda.jit(device=True, forceinline=True)
def group_of_warp(n_first):
    """Which of the warpgroups that multiply; `n_first` threads come before them.

    The shuffle tells the compiler that it is the same for a whole warp: no product may be under way
    where it thinks that lanes part.
    """
    group = int32((cuda.threadIdx.x - int32(n_first)) >> int32(7))
    return int32(cuda.shfl_sync(FULL_MASK, group, 0))


@cuda.jit(device=True, forceinline=True)
def row_of_lane():
    """The first of the lane's two rows, in its warpgroup's 64."""
    t = same_again(int32(cuda.threadIdx.x))
    return int32(((t >> int32(5)) & int32(3)) * int32(16) + ((t & int32(31)) >> int32(2)))


@cuda.jit(device=True, forceinline=True)
def place_of(x):  # x: (B, H, T, D)
    """(address, batch, head and row steps in bytes) of a tensor."""
    steps = x.strides
    return global_address(x), int64(steps[0]), int64(steps[1]), int64(steps[2])


@cuda.jit(device=True, forceinline=True)
def matrix_start(place, matrix, n_heads):
    """The address of a head's first row; `place` as `place_of` gives it."""
    batch = quotient(matrix, n_heads)
    head = int32(matrix - batch * n_heads)
    return place[0] + int64(batch) * place[1] + int64(head) * place[2]


@cuda.jit(device=True, forceinline=True)
def sum_of_quad(x):
    """The sum over the four lanes that hold a row."""
    x += cuda.shfl_xor_sync(FULL_MASK, x, 1)
    return x + cuda.shfl_xor_sync(FULL_MASK, x, 2)


@cuda.jit(device=True, forceinline=True)
def max_of_quad(x):
    """The largest over the four lanes that hold a row."""
    x = larger(x, cuda.shfl_xor_sync(FULL_MASK, x, 1))
    return larger(x, cuda.shfl_xor_sync(FULL_MASK, x, 2))


@cache
def pack_left_operand(kind: str, split: bool) -> Any:
    """A device function (registers, sums): 32 sums as a left operand, 16 registers a part."""
    pack = pack_f16 if kind == "f16" else pack_bf16

    @cuda.jit(device=True, forceinline=True)
    def packed(registers, sums):
        for e in range(16):
            registers[e] = pack(sums[2 * e], sums[2 * e + 1])
            if split:
                registers[16 + e] = pack(
                    sums[2 * e] - low_of_f16(registers[e]),
                    sums[2 * e + 1] - high_of_f16(registers[e]),
                )

    return packed


@cache
def load_row_pair(element: str) -> Any:
    """A device function (address, valid) → two neighbours of a row as float32, or zeros."""
    if element == "float32":
        return load_pair_if
    low, high = (low_of_f16, high_of_f16) if element == "float16" else (low_of_bf16, high_of_bf16)

    @cuda.jit(device=True, forceinline=True)
    def load(address, valid):
        pair = load_word_if(address, valid)
        return low(pair), high(pair)

    return load


@cache
def store_row_pair(element: str) -> Any:
    """A device function (address, x, y): store two neighbours of a row as the tensor's element."""
    if element == "float32":
        return copy.store_pair
    pack = pack_f16 if element == "float16" else pack_bf16

    @cuda.jit(device=True, forceinline=True)
    def store(address, x, y):
        store_word(address, pack(x, y))

    return store

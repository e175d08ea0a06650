"""The forward kernel of attention on sm_90's tensor cores; its mathematics are in `attention.py`.

A warpgroup has 64 queries in registers and meets the keys 64 at a time: scores, their softmax as
the left operand of the product with the values, and y never leave registers. Two warpgroups take
turns by themselves: while one computes exponentials the tensor cores multiply for the other. The
sum over a tile's keys is added to the sum of older tiles in float32, outside of the tensor cores,
which truncate.

FLOPs: 4 B H Tq Tk D, half of it when causal, three times with split operands. Bytes: q and y once,
k and v once for each 128 queries, from the L2 cache. Bound by the tensor cores with split operands,
else by issuing: about 9 instructions for each score, of them one exponential.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.attention.loader_sm90 import (
    loader,
    matrix_start,
    place_of,
    stream_of,
)
from blutrain.cuda_kernels.attention.operands_sm90 import (
    ALIGNMENT,
    BLOCK_ROWS,
    BUFFERS,
    HEAD,
    LN_2,
    LOAD_REGISTERS,
    LOG2_E,
    MULTIPLY_REGISTERS,
    N_LOADERS,
    P_SHIFT,
    THREADS,
    TILE,
    Form,
    Shared,
    arrive_as_warp,
    block_at,
    next_turn,
    power_of_two,
    shared_barriers,
    turns_of,
)
from blutrain.cuda_kernels.attention.registers_sm90 import (
    pack_left_operand,
    group_of_warp,
    row_of_lane,
    store_row_pair,
    sum_of_quad,
    max_of_quad,
)
from blutrain.cuda_kernels.ptx.address import global_address, shared_address
from blutrain.cuda_kernels.ptx.barrier import mbarrier_wait, set_registers
from blutrain.cuda_kernels.ptx.copy import store_float as store_log
from blutrain.cuda_kernels.ptx.half_pairs import larger, load_shared_word
from blutrain.cuda_kernels.ptx.mma import exp2_approx
from blutrain.cuda_kernels.ptx.tile_product import hold, tile_product
from blutrain.cuda_kernels.ptx.wgmma import wgmma_wait

HIDDEN = -1e30  # a score that is not seen, and a maximum before any was: differences are numbers


def shared_of(form: Form) -> Shared:
    """The forward kernel's shared memory."""
    return Shared(form, 1, 4, False)


@cache
def forward_kernel_sm90(form: Form) -> Any:
    """The kernel for one form of numbers."""
    shared = shared_of(form)
    load_all, make_barriers = loader(shared), shared_barriers(shared)
    tiles_of = stream_of(False)
    split, kind, tile_bytes, stages = form.split, form.kind, form.tile_bytes, shared.stages
    n_left = 32 if split else 16
    scores = tile_product(TILE, HEAD, kind, form.along, form.along, split, True)
    values = tile_product(HEAD, TILE, kind, None, form.across, split, True)
    settle, wait = hold(32), wgmma_wait(0)
    pack_left = pack_left_operand(kind, split)
    store_pair = store_row_pair(form.element)
    give_registers = set_registers(LOAD_REGISTERS, False)
    take_registers = set_registers(MULTIPLY_REGISTERS, True)
    at_stream, at_exponents = shared.stream, shared.resident_exponents
    at_stream_exponents, at_full = shared.stream_exponents, shared.barriers
    at_empty = at_full + shared.resident_empty
    at_stream_full = at_full + shared.stream_full
    at_stream_empty = at_full + shared.stream_empty
    element_bytes = 4 if form.element == "float32" else 2

    @cuda.jit(launch_bounds=(THREADS, 1))
    def attention_forward_sm90_kernel(
        q,  # (B, H, Tq, D)
        k,  # (B, H, Tk, D)
        v,  # (B, H, Tk, D)
        y,  # (B, H, Tq, D), written
        lse,  # (B, H, Tq) float32, written
        scale,
        causal,
        n_parts,  # blocks of rows that a block takes at a time: 1 or 2
    ):
        memory = cuda.shared.array(0, float32)
        base = (shared_address(memory, 0) + int32(ALIGNMENT - 1)) & int32(-ALIGNMENT)
        t = int32(cuda.threadIdx.x)
        if t == int32(0):
            make_barriers(base)
        cuda.syncthreads()  # all know of the barriers
        n_parts = int32(n_parts)
        n_heads, n_queries = int32(q.shape[1]), int32(q.shape[2])
        n_keys, size = int32(k.shape[2]), int32(q.shape[3])
        n_matrices = int32(q.shape[0]) * n_heads
        offset = n_keys - n_queries if causal else int32(0)

        if t < int32(N_LOADERS):
            give_registers()
            sizes = (n_matrices, n_heads, n_queries, n_keys, size, offset, causal)
            queries = place_of(q)
            load_all(
                base, queries, queries, place_of(k), place_of(v), int64(0), int64(0), sizes, n_parts
            )
        else:
            take_registers()
            group = group_of_warp()
            quad = t & int32(3)
            in_group = row_of_lane()
            weights = cuda.local.array(n_left, int32)
            s = cuda.local.array(32, float32)
            part = cuda.local.array(32, float32)
            out = cuda.local.array(32, float32)
            most = cuda.local.array(2, float32)  # of a row's scores, times log2(e)
            total = cuda.local.array(2, float32)
            fade = cuda.local.array(2, float32)
            visible = cuda.local.array(2, int32)
            n_blocks = (n_queries + int32(BLOCK_ROWS - 1)) // int32(BLOCK_ROWS)
            n_turns = turns_of(n_matrices, n_blocks, n_parts)
            turn = int32(cuda.blockIdx.x) * n_parts
            buffer, buffer_parity = int32(0), int32(0)
            stage, parity = int32(0), int32(0)
            while turn < n_turns:
                matrix, block = block_at(turn, n_blocks, n_parts)
                if block >= int32(0):
                    row0 = block * int32(BLOCK_ROWS)
                    first_row = row0 + group * int32(TILE)
                    row = first_row + in_group
                    tile, end = tiles_of(row0, n_keys, offset, causal)
                    for h in range(2):
                        most[h], total[h] = float32(HIDDEN), float32(0)
                        visible[h] = n_keys
                        if causal:
                            visible[h] = min(n_keys, row + int32(8 * h) + offset + int32(1))
                    group_visible = n_keys
                    all_visible = n_keys
                    if causal:
                        group_visible = min(n_keys, first_row + int32(TILE) + offset)
                        all_visible = min(n_keys, first_row + offset + int32(1))
                    for e in range(32):
                        out[e] = float32(0)

                    place = buffer * int32(2) + group
                    queries = base + place * int32(tile_bytes)
                    used = base + int32(at_empty) + place * int32(8)
                    mbarrier_wait(base + int32(at_full) + place * int32(8), buffer_parity)
                    q_exponent = load_shared_word(base + int32(at_exponents) + place * int32(4))
                    q_factor = float32(scale) * float32(LOG2_E) * power_of_two(q_exponent)

                    out_exponent = int32(-126)
                    while tile < end:
                        place = stage * int32(2)
                        keys = base + int32(at_stream) + place * int32(tile_bytes)
                        exponents = base + int32(at_stream_exponents) + place * int32(4)
                        full = base + int32(at_stream_full) + place * int32(8)
                        empty = base + int32(at_stream_empty) + place * int32(8)
                        key0 = tile * int32(TILE)
                        seen = key0 < group_visible
                        mbarrier_wait(full, parity)
                        if seen:
                            # s = q kᵀ, in units of 1 / factor
                            scores(s, queries, keys)
                            wait()
                            settle(s)
                            factor = q_factor * power_of_two(load_shared_word(exponents))
                        arrive_as_warp(empty)
                        if seen:
                            if key0 + int32(TILE) > all_visible:
                                for j in range(8):
                                    for h in range(2):
                                        for i in range(2):
                                            e = 4 * j + 2 * h + i
                                            key = key0 + quad * int32(2) + int32(8 * j + i)
                                            x = s[e] * factor
                                            s[e] = x if key < visible[h] else float32(HIDDEN)
                                factor = float32(1)

                            # The largest score so far, and p = 2^(s - most) and its sum.
                            for h in range(2):
                                peak = larger(s[2 * h], s[2 * h + 1])
                                for j in range(1, 8):
                                    peak = larger(peak, s[4 * j + 2 * h])
                                    peak = larger(peak, s[4 * j + 2 * h + 1])
                                peak = larger(max_of_quad(peak) * factor, most[h])
                                fade[h] = exp2_approx(most[h] - peak)
                                most[h] = peak
                                shift = float32(P_SHIFT) - peak
                                total[h] *= fade[h]
                                for j in range(8):
                                    for i in range(2):
                                        e = 4 * j + 2 * h + i
                                        s[e] = exp2_approx(s[e] * factor + shift)
                                        total[h] += s[e]
                            pack_left(weights, s)
                        mbarrier_wait(full + int32(8), parity)
                        if seen:
                            # y = y fade + p v
                            values(part, weights, keys + int32(tile_bytes))
                            exponent = load_shared_word(exponents + int32(4))
                            less = power_of_two(out_exponent - exponent)
                            out_exponent = exponent
                            wait()
                            settle(part)
                        arrive_as_warp(empty + int32(8))
                        if seen:
                            for h in range(2):
                                keep = fade[h] * less
                                for j in range(8):
                                    for i in range(2):
                                        e = 4 * j + 2 * h + i
                                        out[e] = out[e] * keep + part[e]
                        stage += int32(1)
                        if stage == int32(stages):
                            stage = int32(0)
                            parity ^= int32(1)
                        tile += int32(1)
                    arrive_as_warp(used)
                    buffer += int32(1)
                    if buffer == int32(BUFFERS):
                        buffer = int32(0)
                        buffer_parity ^= int32(1)

                    target_of = place_of(y)
                    target = matrix_start(target_of, matrix, n_heads)
                    log_sums = global_address(lse) + int64(matrix) * int64(n_queries) * int64(4)
                    for h in range(2):
                        r = row + int32(8 * h)
                        whole = sum_of_quad(total[h])
                        inverse = power_of_two(out_exponent) / whole
                        if r < n_queries:
                            at = (
                                target
                                + int64(r) * target_of[3]
                                + int64(quad * int32(2 * element_bytes))
                            )
                            for j in range(8):
                                if int32(8 * j) < size:
                                    store_pair(
                                        at + int64(8 * j * element_bytes),
                                        out[4 * j + 2 * h] * inverse,
                                        out[4 * j + 2 * h + 1] * inverse,
                                    )
                            if quad == int32(0):
                                log2_sum = most[h] - float32(P_SHIFT)
                                value = log2_sum * float32(LN_2) + math.log(whole)
                                store_log(log_sums + int64(r) * int64(4), value)
                turn = next_turn(turn, n_parts)

    attention_forward_sm90_kernel.shared = shared.n_bytes
    attention_forward_sm90_kernel.case = f"{form.element}, {form.kind}, {1 + 2 * split} products"
    return attention_forward_sm90_kernel

"""The forward kernel of attention on sm_90's tensor cores; its mathematics are in `attention.py`.

A warpgroup has 64 queries in shared memory and meets the keys 64 at a time: scores, their softmax
as the left operand of the product with the values, and y never leave registers. The warpgroups, two
of them or four, take turns by themselves: while some compute exponentials the tensor cores multiply
for others. With scales, the sum over a tile's keys is added to the sum of older tiles in float32,
outside of the tensor cores, which truncate; halves are summed there throughout.

FLOPs: 4 B H Tq Tk D, half of it when causal, three times with split operands. Bytes: q and y once,
k and v once for each 128 queries, of halves for each 256, from the L2 cache. Bound by the tensor
cores with split operands, else by issuing, of which a score's one exponential is a part.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.attention.loader_sm90 import asker, loader
from blutrain.cuda_kernels.attention.operands_sm90 import (
    DEEP,
    HEAD,
    LN_2,
    LOG2_E,
    P_SHIFT,
    WIDE,
    Crew,
    Form,
    Shared,
    opened,
    passed_over,
)
from blutrain.cuda_kernels.attention.registers_sm90 import (
    group_of_warp,
    matrix_start,
    max_of_quad,
    pack_left_operand,
    place_of,
    row_of_lane,
    store_row_pair,
    sum_of_quad,
)
from blutrain.cuda_kernels.attention.turns_sm90 import (
    next_turn,
    stage_after,
    stream_of,
    turn_from,
    turns_of,
)
from blutrain.cuda_kernels.ptx.address import global_address
from blutrain.cuda_kernels.ptx.barrier import mbarrier_wait, set_registers
from blutrain.cuda_kernels.ptx.copy import load_shared_word, store_float
from blutrain.cuda_kernels.ptx.mma import exp2_approx
from blutrain.cuda_kernels.ptx.scalar import larger, same_again
from blutrain.cuda_kernels.ptx.scaled_halves import TILE, arrive_as_warp, power_of_two
from blutrain.cuda_kernels.ptx.tile_product import finish_first, hold, tile_product
from blutrain.cuda_kernels.ptx.wgmma import wgmma_wait

HIDDEN = -1e30  # a score that is not seen, and a maximum before any was: differences are numbers


def crew_of(form: Form) -> Crew:
    """The forward kernel's warps."""
    return WIDE if form.converted else DEEP


def shared_of(form: Form) -> Shared:
    """The forward kernel's shared memory."""
    return Shared(form, crew_of(form).groups, 1, 2, 3 if form.split else 4, False)


@cache
def forward_kernel_sm90(form: Form) -> Any:
    """The kernel for one form of numbers."""
    shared = shared_of(form)
    crew = crew_of(form)
    n_first, n_multiply, rows = crew.first, 128 * crew.groups, crew.rows
    groups = crew.groups
    tiles_of = stream_of(False, rows)
    load_all = loader(shared) if form.converted else asker(shared)
    open_memory, pass_over = opened(shared), passed_over(shared)
    converted = form.converted
    split, kind, tile_bytes = form.split, form.kind, form.tile_bytes
    n_left = 32 if split else 16
    scaled = form.scaled
    scores = tile_product(TILE, HEAD, kind, form.along, form.along, split, True)
    values = tile_product(HEAD, TILE, kind, None, form.across, split, scaled)
    settle, wait, wait_for_scores = hold(32), wgmma_wait(0), wgmma_wait(1)
    pack_left = pack_left_operand(kind, split)
    store_pair = store_row_pair(form.element)
    give_registers = set_registers(crew.load_registers, False)
    take_registers = set_registers(crew.multiply_registers, True)
    at_stream, at_exponents = shared.stream, shared.resident_exponents
    at_stream_exponents = shared.stream_exponents
    at_full, at_empty = shared.resident_full, shared.resident_empty
    at_stream_full, at_stream_empty = shared.stream_full, shared.stream_empty
    element_bytes = form.element_bytes
    next_stage, next_buffer = stage_after(shared.stages), stage_after(shared.buffers)

    @cuda.jit(device=True, forceinline=True)
    def soften(s, most, total, fade, factor):
        """p = 2^(s factor - most) in place of s, with the maxima, sums and what sums fade by."""
        for h in range(2):
            peak = larger(s[2 * h], s[2 * h + 1])
            for j in range(1, 8):
                peak = larger(peak, larger(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]))
            peak = larger(max_of_quad(peak) * factor, most[h])
            fade[h] = exp2_approx(most[h] - peak)
            most[h] = peak
            shift = float32(P_SHIFT) - peak
            for j in range(8):
                for i in range(2):
                    e = 4 * j + 2 * h + i
                    s[e] = exp2_approx(s[e] * factor + shift)
            even, odd = s[2 * h], s[2 * h + 1]
            for j in range(1, 8):
                even += s[4 * j + 2 * h]
                odd += s[4 * j + 2 * h + 1]
            total[h] = total[h] * fade[h] + (even + odd)

    @cuda.jit(device=True, forceinline=True)
    def scale_of(base, place):
        """2^E of a tile of the stream."""
        if scaled:
            at = base + int32(at_stream_exponents) + place * int32(4)
            return power_of_two(load_shared_word(at))
        return float32(1)

    @cuda.jit(device=True, forceinline=True)
    def hide(s, factor, key0, first_hidden, n_keys, all_visible, causal):
        """Where a tile has keys that not all see, hide them; the factor that is still to come."""
        if key0 + int32(TILE) <= all_visible:
            return factor
        quad = same_again(int32(cuda.threadIdx.x)) & int32(3)
        for h in range(2):
            end = n_keys
            if causal:
                end = min(end, int32(first_hidden + row_of_lane() + int32(8 * h)))
            left = int32(end - key0 - quad * int32(2))
            for j in range(8):
                for i in range(2):
                    e = 4 * j + 2 * h + i
                    x = s[e] * factor
                    s[e] = x if int32(8 * j + i) < left else float32(HIDDEN)
        return float32(1)

    @cuda.jit(device=True, forceinline=True)
    def add_part(out, part, keep, before, now):
        """out keep + part, where both are in units: out in 1 / before, part in 1 / now."""
        less = before / now
        for h in range(2):
            factor = keep[h] * less
            for j in range(8):
                for i in range(2):
                    e = 4 * j + 2 * h + i
                    out[e] = out[e] * factor + part[e]

    @cuda.jit(device=True, forceinline=True)
    def shrink(out, keep):
        """out keep, row by row."""
        for h in range(2):
            for j in range(8):
                for i in range(2):
                    out[4 * j + 2 * h + i] *= keep[h]

    @cuda.jit(launch_bounds=(crew.threads, 1))
    def attention_forward_sm90_kernel(
        map_q,  # tensor maps of (D, Tq, H, B) and (D, Tk, H, B)
        map_k,
        map_v,
        y,  # (B, H, Tq, D), written
        lse,  # (B, H, Tq) float32, written
        n_keys,
        scale,
        causal,
        n_parts,  # turns in a row of a block: 1 or 2
    ):
        memory = cuda.shared.array(0, float32)
        base = open_memory(memory)
        t = int32(cuda.threadIdx.x)
        n_parts, n_keys = int32(n_parts), int32(n_keys)
        n_heads, n_queries, size = int32(y.shape[1]), int32(y.shape[2]), int32(y.shape[3])
        n_matrices = int32(y.shape[0] * n_heads)
        offset = int32(n_keys - n_queries) if causal else int32(0)

        if t < int32(n_first) or t >= int32(n_first + n_multiply):
            give_registers()
            sizes = (n_matrices, n_heads, n_queries, n_keys, offset, causal)
            maps = (map_q, map_q, map_k, map_v)
            if converted:
                load_all(base, maps, int64(0), int64(0), sizes, n_parts)
            else:
                load_all(base, maps, sizes, n_parts)
        else:
            take_registers()
            group = group_of_warp(n_first)
            quad = t & int32(3)
            weights = cuda.local.array(n_left, int32)
            s = cuda.local.array(32, float32)
            part = cuda.local.array(32, float32)
            out = cuda.local.array(32, float32)
            most = cuda.local.array(2, float32)  # of a row's scores, times log2(e)
            total = cuda.local.array(2, float32)
            fade = cuda.local.array(2, float32)
            keep = cuda.local.array(2, float32)
            n_turns = turns_of(n_matrices, n_queries, n_parts, int32(rows))
            turn = int32(cuda.blockIdx.x * n_parts)
            buffer, buffer_parity = int32(0), int32(0)
            stage, parity = int32(0), int32(0)
            while turn < n_turns:
                base = same_again(base)
                turn, matrix, row0 = turn_from(turn, same_again(n_queries), n_parts, int32(rows))
                if turn >= n_turns:
                    break
                first_row = int32(row0 + group * int32(TILE))
                _, end = tiles_of(row0, n_keys, offset, causal)
                group_end = end  # of the tiles that this warpgroup sees
                all_visible = n_keys
                first_hidden = int32(first_row + offset + int32(1))  # from the first row, causal
                if causal:
                    seen = min(n_keys, int32(first_row + int32(TILE) + offset))
                    group_end = int32((seen + int32(TILE - 1)) >> int32(6))
                    all_visible = min(n_keys, first_hidden)
                for h in range(2):
                    most[h], total[h] = float32(HIDDEN), float32(0)
                for e in range(32):
                    out[e] = float32(0)

                # This warpgroup's queries.
                place = int32(buffer * int32(groups) + group)
                queries = base + place * int32(tile_bytes)
                used = base + int32(at_empty) + place * int32(8)
                mbarrier_wait(base + int32(at_full) + place * int32(8), buffer_parity)
                q_factor = float32(scale) * float32(LOG2_E)
                if scaled:
                    exponent_at = base + int32(at_exponents) + place * int32(4)
                    q_factor *= power_of_two(load_shared_word(exponent_at))

                # The scores of a tile are multiplied beside the values of the one before it.
                place = int32(stage * int32(2))
                mbarrier_wait(base + int32(at_stream_full) + place * int32(8), parity)
                scores(s, queries, base + int32(at_stream) + place * int32(tile_bytes))
                wait()
                settle(s)
                factor = q_factor * scale_of(base, place)
                arrive_as_warp(base + int32(at_stream_empty) + place * int32(8))
                factor = hide(s, factor, int32(0), first_hidden, n_keys, all_visible, causal)
                soften(s, most, total, keep, factor)
                pack_left(weights, s)
                out_scale = float32(0)
                v_stage, v_parity = stage, parity
                tile = int32(1)
                while tile < group_end:
                    base = same_again(base)
                    stage, parity = next_stage(stage, parity)
                    place = int32(stage * int32(2))
                    v_place = v_stage * int32(2) + int32(1)
                    mbarrier_wait(base + int32(at_stream_full) + place * int32(8), parity)
                    mbarrier_wait(base + int32(at_stream_full) + v_place * int32(8), v_parity)
                    if not scaled:
                        shrink(out, keep)
                    scores(s, queries, base + int32(at_stream) + place * int32(tile_bytes))
                    tile_v = base + int32(at_stream) + v_place * int32(tile_bytes)
                    if scaled:
                        values(part, weights, tile_v)
                    else:
                        values(out, weights, tile_v)
                    factor = q_factor * scale_of(base, place)
                    v_scale = scale_of(base, v_place)
                    wait_for_scores()
                    settle(s)
                    arrive_as_warp(base + int32(at_stream_empty) + place * int32(8))
                    factor = hide(
                        s, factor, tile * int32(TILE), first_hidden, n_keys, all_visible, causal
                    )
                    if scaled:
                        soften(s, most, total, fade, factor)
                    else:
                        soften(s, most, total, keep, factor)
                    finish_first(total[0] + total[1])
                    wait()
                    if scaled:
                        settle(part)
                    else:
                        settle(out)
                    arrive_as_warp(base + int32(at_stream_empty) + v_place * int32(8))
                    if scaled:
                        add_part(out, part, keep, out_scale, v_scale)
                    out_scale = v_scale
                    if scaled:
                        keep[0], keep[1] = fade[0], fade[1]
                    pack_left(weights, s)
                    v_stage, v_parity = stage, parity
                    tile = int32(tile + int32(1))
                v_place = v_stage * int32(2) + int32(1)
                mbarrier_wait(base + int32(at_stream_full) + v_place * int32(8), v_parity)
                tile_v = base + int32(at_stream) + v_place * int32(tile_bytes)
                v_scale = scale_of(base, v_place)
                if scaled:
                    values(part, weights, tile_v)
                    wait()
                    settle(part)
                    add_part(out, part, keep, out_scale, v_scale)
                else:
                    shrink(out, keep)
                    values(out, weights, tile_v)
                    wait()
                    settle(out)
                arrive_as_warp(base + int32(at_stream_empty) + v_place * int32(8))
                stage, parity = next_stage(stage, parity)
                arrive_as_warp(used)
                # Tiles that other warpgroups alone see.
                while tile < end:
                    pass_over(base, stage, parity)
                    stage, parity = next_stage(stage, parity)
                    tile = int32(tile + int32(1))
                buffer, buffer_parity = next_buffer(buffer, buffer_parity)

                row = int32(first_row + row_of_lane())
                place_y = place_of(y)
                target = matrix_start(place_y, matrix, n_heads)
                log_sums = global_address(lse) + int64(matrix) * int64(n_queries) * int64(4)
                for h in range(2):
                    r = row + int32(8 * h)
                    whole = sum_of_quad(total[h])
                    inverse = float32(1) / whole
                    if scaled:
                        inverse *= v_scale
                    if r < n_queries:
                        at = target + int64(r) * place_y[3] + int64(quad * int32(2 * element_bytes))
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
                            store_float(log_sums + int64(r) * int64(4), value)
                turn = next_turn(turn, n_parts)

    attention_forward_sm90_kernel.shared = shared.n_bytes
    attention_forward_sm90_kernel.threads = crew.threads
    attention_forward_sm90_kernel.rows = crew.rows
    attention_forward_sm90_kernel.case = f"{form.element}, {form.kind}, {1 + 2 * split} products"
    return attention_forward_sm90_kernel

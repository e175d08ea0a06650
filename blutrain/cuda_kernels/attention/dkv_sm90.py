"""dk and dv of attention on sm_90's tensor cores; the mathematics are in `attention.py`.

A warpgroup has 64 keys with their values in shared memory and meets the queries 64 at a time,
with their dy, log-sum-exps and deltas. It computes the transposes of scores and dp, so that p and
ds are left operands, in registers, of the products with dy and with the queries.

ds becomes float16 by a scale for the tile: |ds| ≤ 2 max(D 2^30 2^(E of v and dy), |delta|), for no
operand is above 2^15 2^E. Sums are float32 in units that follow the scales.

FLOPs: 8 B H Tq Tk D, half of it when causal, three times with split operands. Bytes: k, v, dk and
dv once, q and dy once for each 128 keys, from the L2 cache. Bound by the tensor cores with split
operands, else by issuing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.attention.dq_sm90 import DP_EXPONENT
from blutrain.cuda_kernels.attention.loader_sm90 import OUTSIDE, loader
from blutrain.cuda_kernels.attention.operands_sm90 import (
    HEAD,
    LOG2_E,
    P_SHIFT,
    WIDE,
    Form,
    Shared,
    opened,
    passed_over,
)
from blutrain.cuda_kernels.attention.registers_sm90 import (
    group_of_warp,
    matrix_start,
    pack_left_operand,
    place_of,
    row_of_lane,
    store_row_pair,
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
from blutrain.cuda_kernels.ptx.copy import load_shared_pair, load_shared_word
from blutrain.cuda_kernels.ptx.mma import exp2_approx
from blutrain.cuda_kernels.ptx.scalar import larger, same_again
from blutrain.cuda_kernels.ptx.scaled_halves import (
    LOWEST_EXPONENT,
    TILE,
    arrive_as_warp,
    exponent_of,
    power_of_two,
)
from blutrain.cuda_kernels.ptx.tile_product import finish_first, hold, tile_product
from blutrain.cuda_kernels.ptx.wgmma import wgmma_wait


def shared_of(form: Form) -> Shared:
    """The kernel's shared memory."""
    return Shared(form, WIDE.groups, 2, 1 if form.split else 2, 3 if form.split else 4, True)


@cache
def dkv_kernel_sm90(form: Form) -> Any:
    """The kernel for one form of numbers."""
    shared = shared_of(form)
    crew = WIDE
    n_first, rows = crew.first, crew.rows
    tiles_of = stream_of(True, rows)
    load_all, open_memory, pass_over = loader(shared), opened(shared), passed_over(shared)
    split, kind, tile_bytes = form.split, form.kind, form.tile_bytes
    scaled = form.scaled
    scores = tile_product(TILE, HEAD, kind, form.along, form.along, split, True)
    gradient = tile_product(HEAD, TILE, kind, None, form.across, split, split)
    settle, wait, wait_for_scores = hold(32), wgmma_wait(0), wgmma_wait(1)
    pack_left = pack_left_operand(kind, split)
    store_pair = store_row_pair(form.element)
    give_registers = set_registers(crew.load_registers, False)
    take_registers = set_registers(crew.multiply_registers, True)
    at_stream, at_exponents, at_vector = shared.stream, shared.resident_exponents, shared.vector
    at_stream_exponents = shared.stream_exponents
    at_full, at_empty = shared.resident_full, shared.resident_empty
    at_stream_full, at_stream_empty = shared.stream_full, shared.stream_empty
    at_magnitudes = shared.vector_magnitudes
    element_bytes = form.element_bytes
    next_stage, next_buffer = stage_after(shared.stages), stage_after(shared.buffers)
    p_shift = P_SHIFT if scaled else 0

    @cuda.jit(device=True, forceinline=True)
    def n_turns_of(dk, n_heads, n_keys, n_parts):
        """How many turns there are, counted anew each time: a register more would be spilled."""
        n_matrices = int32(dk.shape[0] * same_again(n_heads))
        return turns_of(n_matrices, same_again(n_keys), n_parts, int32(rows))

    @cuda.jit(launch_bounds=(crew.threads, 1))
    def attention_dkv_sm90_kernel(
        map_k,  # tensor maps of (D, Tk, H, B) and (D, Tq, H, B)
        map_v,
        map_q,
        map_dy,
        lse,  # (B, H, Tq) float32
        delta,  # (B, H, Tq) float32
        dk,  # (B, H, Tk, D), written
        dv,  # (B, H, Tk, D), written
        n_queries,
        scale,
        causal,
        n_parts,  # turns in a row of a block: 1 or 2
    ):
        memory = cuda.shared.array(0, float32)
        base = open_memory(memory)
        t = int32(cuda.threadIdx.x)
        n_parts, n_queries = int32(n_parts), int32(n_queries)
        n_heads, n_keys, size = int32(dk.shape[1]), int32(dk.shape[2]), int32(dk.shape[3])
        offset = int32(n_keys - n_queries) if causal else int32(0)

        if t < int32(n_first):
            give_registers()
            n_matrices = int32(dk.shape[0] * n_heads)
            sizes = (n_matrices, n_heads, n_keys, n_queries, offset, causal)
            maps = (map_k, map_v, map_q, map_dy)
            load_all(base, maps, global_address(lse), global_address(delta), sizes, n_parts)
        else:
            take_registers()
            group = group_of_warp(n_first)
            quad = t & int32(3)
            weights = cuda.local.array(32 if split else 16, int32)
            ds_weights = cuda.local.array(16, int32)
            s = cuda.local.array(32, float32)
            dp = cuda.local.array(32, float32)
            out_k = cuda.local.array(32, float32)
            out_v = cuda.local.array(32, float32)
            turn = int32(cuda.blockIdx.x * n_parts)
            buffer, buffer_parity = int32(0), int32(0)
            stage, parity = int32(0), int32(0)
            while turn < n_turns_of(dk, n_heads, n_keys, n_parts):
                base = same_again(base)
                turn, matrix, row0 = turn_from(turn, same_again(n_keys), n_parts, int32(rows))
                if turn >= n_turns_of(dk, n_heads, n_keys, n_parts):
                    break
                first_row = int32(row0 + group * int32(TILE))
                tile, end = tiles_of(row0, n_queries, offset, causal)
                # The first query that sees the warpgroup's first key, and the one that sees
                # all of its keys.
                group_first, all_first = int32(0), int32(0)
                if causal:
                    group_first = first_row - offset
                    all_first = first_row + int32(TILE - 1) - offset
                for e in range(32):
                    out_k[e] = float32(0)
                    out_v[e] = float32(0)

                place = int32(buffer * int32(4) + group)
                keys = base + place * int32(tile_bytes)
                full = base + int32(at_full) + (buffer * int32(2) + group) * int32(8)
                mbarrier_wait(full, buffer_parity)
                exponents = base + int32(at_exponents) + place * int32(4)
                k_exponent, v_exponent = int32(0), int32(0)
                if scaled:
                    k_exponent = load_shared_word(exponents)
                    v_exponent = load_shared_word(exponents + int32(8))
                k_factor = float32(scale) * float32(LOG2_E) * power_of_two(k_exponent)

                q_exponent = int32(LOWEST_EXPONENT)
                dy_exponent = int32(LOWEST_EXPONENT)
                unit = int32(LOWEST_EXPONENT)  # of ds: 2^unit
                empty_before = int32(0)
                # Tiles that the other warpgroup alone sees.
                while tile < end and int32(tile * int32(TILE) + int32(TILE)) <= group_first:
                    pass_over(base, stage, parity)
                    stage, parity = next_stage(stage, parity)
                    tile = int32(tile + int32(1))
                while tile < end:
                    base = same_again(base)
                    place = int32(stage * int32(2))
                    queries = base + int32(at_stream) + place * int32(tile_bytes)
                    exponents = base + int32(at_stream_exponents) + place * int32(4)
                    vectors = base + int32(at_vector) + stage * int32(2 * TILE * 4)
                    vectors += quad * int32(8)
                    full = base + int32(at_stream_full) + place * int32(8)
                    empty = int32(base + int32(at_stream_empty) + place * int32(8))
                    query0 = int32(tile * int32(TILE))
                    mbarrier_wait(full, parity)
                    mbarrier_wait(full + int32(8), parity)
                    # sᵀ = k qᵀ in units of 1 / factor, dpᵀ = v dyᵀ in units of 2^(E of v and dy)
                    scores(s, keys, queries)
                    scores(dp, keys + int32(2 * tile_bytes), queries + int32(tile_bytes))
                    q_now, dy_now = int32(0), int32(0)
                    if scaled:
                        q_now = load_shared_word(exponents)
                        dy_now = load_shared_word(exponents + int32(4))
                    factor = k_factor * power_of_two(q_now)
                    wait_for_scores()  # and for the last tile's gradients
                    settle(s)
                    if not scaled and empty_before != int32(0):
                        arrive_as_warp(empty_before)
                        arrive_as_warp(empty_before + int32(8))
                    if query0 < all_first:
                        key = first_row + row_of_lane()
                        for j in range(8):
                            for h in range(2):
                                for i in range(2):
                                    e = 4 * j + 2 * h + i
                                    query = query0 + quad * int32(2) + int32(8 * j + i)
                                    x = s[e] * factor
                                    first = key + int32(8 * h) - offset
                                    s[e] = x if query >= first else float32(-OUTSIDE)
                        factor = float32(1)
                    # p = 2^(s - lse), times 2^p_shift
                    for j in range(8):
                        log_sums = load_shared_pair(vectors + int32(32 * j))
                        for h in range(2):
                            e = 4 * j + 2 * h
                            shift = float32(p_shift) - log_sums[0]
                            s[e] = exp2_approx(s[e] * factor + shift)
                            shift = float32(p_shift) - log_sums[1]
                            s[e + 1] = exp2_approx(s[e + 1] * factor + shift)
                    pack_left(weights, s)
                    finish_first(s[29] + s[31])
                    wait()
                    settle(dp)

                    # ds = p (dp - delta), in units of 2^unit
                    before = int32(unit + q_exponent)
                    if scaled:
                        largest = base + int32(at_magnitudes) + stage * int32(8)
                        bounds = load_shared_pair(largest)
                        bound = int32(exponent_of(larger(bounds[0], bounds[1])) + int32(1))
                        least = int32(v_exponent + dy_now + int32(DP_EXPONENT - 14))
                        unit = max(unit, max(bound, least))
                    else:
                        unit = int32(0)
                    to_unit = power_of_two(v_exponent + dy_now - unit - int32(p_shift))
                    delta_unit = -power_of_two(-unit - int32(p_shift))
                    for j in range(8):
                        deltas = load_shared_pair(vectors + int32(32 * j + 4 * TILE))
                        for h in range(2):
                            e = 4 * j + 2 * h
                            s[e] *= dp[e] * to_unit + deltas[0] * delta_unit
                            s[e + 1] *= dp[e + 1] * to_unit + deltas[1] * delta_unit

                    # dv += pᵀ dy, dk += dsᵀ q
                    queries = same_again(base) + int32(at_stream) + place * int32(tile_bytes)
                    tile_dy = queries + int32(tile_bytes)
                    if split:
                        gradient(dp, weights, tile_dy)
                        less_v = power_of_two(dy_exponent - dy_now)
                        wait()
                        settle(dp)
                        for e in range(32):
                            out_v[e] = out_v[e] * less_v + dp[e]
                        pack_left(weights, s)
                        gradient(dp, weights, queries)
                        less_k = power_of_two(before - unit - q_now)
                        wait()
                        settle(dp)
                        for e in range(32):
                            out_k[e] = out_k[e] * less_k + dp[e]
                    else:
                        less_v = power_of_two(dy_exponent - dy_now)
                        less_k = power_of_two(before - unit - q_now)
                        if scaled and (less_v != float32(1) or less_k != float32(1)):
                            for e in range(32):
                                out_v[e] *= less_v
                                out_k[e] *= less_k
                        gradient(out_v, weights, tile_dy)
                        pack_left(ds_weights, s)
                        gradient(out_k, ds_weights, queries)
                        if scaled:
                            wait()
                            settle(out_v)
                            settle(out_k)
                    q_exponent, dy_exponent = q_now, dy_now
                    if scaled:
                        arrive_as_warp(empty + int32(8))
                        arrive_as_warp(empty)
                    empty_before = empty
                    stage, parity = next_stage(stage, parity)
                    tile = int32(tile + int32(1))
                if not scaled:  # the last gradients ran on beside the next tile's scores
                    wait()
                    settle(out_v)
                    settle(out_k)
                    if empty_before != int32(0):
                        arrive_as_warp(empty_before)
                        arrive_as_warp(empty_before + int32(8))
                arrive_as_warp(base + int32(at_empty) + (buffer * int32(2) + group) * int32(8))
                buffer, buffer_parity = next_buffer(buffer, buffer_parity)

                row = int32(first_row + row_of_lane())  # a key
                place_dk, place_dv = place_of(dk), place_of(dv)
                column = int64(quad * int32(2 * element_bytes))
                v_unit = power_of_two(dy_exponent - int32(p_shift))
                k_unit, ds_unit = float32(scale) * power_of_two(q_exponent), power_of_two(unit)
                for h in range(2):
                    r = row + int32(8 * h)
                    if r < n_keys:
                        at_k = matrix_start(place_dk, matrix, n_heads) + column
                        at_k += int64(r) * place_dk[3]
                        at_v = matrix_start(place_dv, matrix, n_heads) + column
                        at_v += int64(r) * place_dv[3]
                        for j in range(8):
                            if int32(8 * j) < size:
                                e = 4 * j + 2 * h
                                place_j = int64(8 * j * element_bytes)
                                store_pair(
                                    at_k + place_j,
                                    out_k[e] * ds_unit * k_unit,
                                    out_k[e + 1] * ds_unit * k_unit,
                                )
                                store_pair(at_v + place_j, out_v[e] * v_unit, out_v[e + 1] * v_unit)
                turn = next_turn(turn, n_parts)

    attention_dkv_sm90_kernel.shared = shared.n_bytes
    attention_dkv_sm90_kernel.threads = crew.threads
    attention_dkv_sm90_kernel.rows = crew.rows
    attention_dkv_sm90_kernel.case = f"{form.element}, {form.kind}, {1 + 2 * split} products"
    return attention_dkv_sm90_kernel

"""dq and delta of attention on sm_90's tensor cores; the mathematics are in `attention.py`.

A warpgroup has 64 queries with their dy in shared memory and meets the keys 64 at a time: scores
and dp come from there, ds goes as the left operand, in registers, into the product with the keys.
Before that it sums delta = Σ_d dy y of its rows, which the kernel for dk and dv needs as well.

ds becomes float16 by a scale of its own for each row: |ds| ≤ 2 max(D 2^30 2^(E of dy and v),
|delta|), for no operand is above 2^15 2^E. Sums are float32 in units that follow the scales.

FLOPs: 6 B H Tq Tk D, half of it when causal, three times with split operands. Bytes: q, dy, y and
dq once, k and v once for each 128 queries, from the L2 cache. Bound by the tensor cores with split
operands, else by issuing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.attention.loader_sm90 import OUTSIDE, loader
from blutrain.cuda_kernels.attention.operands_sm90 import (
    HEAD,
    LOG2_E,
    WIDE,
    Form,
    Shared,
    opened,
    passed_over,
)
from blutrain.cuda_kernels.attention.registers_sm90 import (
    group_of_warp,
    load_row_pair,
    matrix_start,
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
from blutrain.cuda_kernels.ptx.copy import load_float, load_shared_word, store_float
from blutrain.cuda_kernels.ptx.mma import exp2_approx
from blutrain.cuda_kernels.ptx.scalar import same_again
from blutrain.cuda_kernels.ptx.scaled_halves import (
    LOWEST_EXPONENT,
    TILE,
    arrive_as_warp,
    exponent_of,
    power_of_two,
)
from blutrain.cuda_kernels.ptx.tile_product import finish_first, hold, tile_product
from blutrain.cuda_kernels.ptx.wgmma import wgmma_wait

DP_EXPONENT = 30 + 6  # |dp| < 2^36 in units of the operands' scales: 64 products below 2^30


def shared_of(form: Form) -> Shared:
    """The kernel's shared memory."""
    return Shared(form, WIDE.groups, 2, 1 if form.split else 2, 3 if form.split else 4, False)


@cache
def dq_kernel_sm90(form: Form) -> Any:
    """The kernel for one form of numbers."""
    shared = shared_of(form)
    crew = WIDE
    n_first, rows = crew.first, crew.rows
    tiles_of = stream_of(False, rows)
    load_all, open_memory, pass_over = loader(shared), opened(shared), passed_over(shared)
    split, kind, tile_bytes = form.split, form.kind, form.tile_bytes
    scaled = form.scaled
    scores = tile_product(TILE, HEAD, kind, form.along, form.along, split, True)
    gradient = tile_product(HEAD, TILE, kind, None, form.across, split, split)
    settle, wait, wait_for_scores = hold(32), wgmma_wait(0), wgmma_wait(1)
    pack_left = pack_left_operand(kind, split)
    load_pair, store_pair = load_row_pair(form.element), store_row_pair(form.element)
    give_registers = set_registers(crew.load_registers, False)
    take_registers = set_registers(crew.multiply_registers, True)
    at_stream, at_exponents = shared.stream, shared.resident_exponents
    at_stream_exponents = shared.stream_exponents
    at_full, at_empty = shared.resident_full, shared.resident_empty
    at_stream_full, at_stream_empty = shared.stream_full, shared.stream_empty
    element_bytes = form.element_bytes
    next_stage, next_buffer = stage_after(shared.stages), stage_after(shared.buffers)

    @cuda.jit(device=True, forceinline=True)
    def delta_of(dy, y, row, n_rows, size):
        """Σ_d dy y of a row, in each lane of its quad; dy and y are addresses of head starts."""
        quad = int32(cuda.threadIdx.x) & int32(3)
        total = float32(0)
        for j in range(8):
            column = int32(8 * j) + quad * int32(2)
            valid = int32(row < n_rows and column < size)
            place = int64(column * int32(element_bytes))
            a = load_pair(dy + place, valid)
            b = load_pair(y + place, valid)
            total += a[0] * b[0] + a[1] * b[1]
        return sum_of_quad(total)

    @cuda.jit(device=True, forceinline=True)
    def hide(s, factor, key0, visible, all_visible):
        """Where a tile has keys that not all see, hide them; the factor that is still to come."""
        if key0 + int32(TILE) <= all_visible:
            return factor
        quad = int32(cuda.threadIdx.x) & int32(3)
        for j in range(8):
            for h in range(2):
                for i in range(2):
                    e = 4 * j + 2 * h + i
                    key = key0 + quad * int32(2) + int32(8 * j + i)
                    x = s[e] * factor
                    s[e] = x if key < visible[h] else float32(-OUTSIDE)
        return float32(1)

    @cuda.jit(launch_bounds=(crew.threads, 1))
    def attention_dq_sm90_kernel(
        map_q,  # tensor maps of (D, Tq, H, B) and (D, Tk, H, B)
        map_dy,
        map_k,
        map_v,
        y,  # (B, H, Tq, D)
        dy,  # (B, H, Tq, D)
        lse,  # (B, H, Tq) float32
        delta,  # (B, H, Tq) float32, written
        dq,  # (B, H, Tq, D), written
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

        if t < int32(n_first):
            give_registers()
            sizes = (n_matrices, n_heads, n_queries, n_keys, offset, causal)
            maps = (map_q, map_dy, map_k, map_v)
            load_all(base, maps, int64(0), int64(0), sizes, n_parts)
        else:
            take_registers()
            group = group_of_warp(n_first)
            quad = t & int32(3)
            in_group = row_of_lane()
            weights = cuda.local.array(32 if split else 16, int32)
            s = cuda.local.array(32, float32)
            dp = cuda.local.array(32, float32)
            part = cuda.local.array(32, float32)
            out = cuda.local.array(32, float32)
            log_sum = cuda.local.array(2, float32)  # times log2(e)
            row_delta = cuda.local.array(2, float32)
            unit = cuda.local.array(2, int32)  # of ds: 2^unit
            less = cuda.local.array(2, float32)
            visible = cuda.local.array(2, int32)
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
                row = int32(first_row + in_group)
                tile, end = tiles_of(row0, n_keys, offset, causal)
                group_end, all_visible = end, n_keys
                if causal:
                    seen = min(n_keys, int32(first_row + int32(TILE) + offset))
                    group_end = int32((seen + int32(TILE - 1)) >> int32(6))
                    all_visible = min(n_keys, int32(first_row + offset + int32(1)))
                of_matrix = int64(matrix) * int64(n_queries) * int64(4)
                place_y, place_dy = place_of(y), place_of(dy)
                for h in range(2):
                    r = row + int32(8 * h)
                    visible[h] = min(n_keys, r + offset + int32(1)) if causal else n_keys
                    at_y = matrix_start(place_y, matrix, n_heads) + int64(r) * place_y[3]
                    at_dy = matrix_start(place_dy, matrix, n_heads) + int64(r) * place_dy[3]
                    row_delta[h] = delta_of(at_dy, at_y, r, n_queries, size)
                    log_sum[h] = float32(OUTSIDE)
                    if r < n_queries:
                        place = of_matrix + int64(r) * int64(4)
                        log_sum[h] = load_float(global_address(lse) + place) * float32(LOG2_E)
                        if quad == int32(0):
                            store_float(global_address(delta) + place, row_delta[h])
                    unit[h] = max(exponent_of(abs(row_delta[h])) + int32(1), int32(LOWEST_EXPONENT))
                for e in range(32):
                    out[e] = float32(0)

                place = int32(buffer * int32(4) + group)
                queries = base + place * int32(tile_bytes)
                used = base + int32(at_empty) + (buffer * int32(2) + group) * int32(8)
                full = base + int32(at_full) + (buffer * int32(2) + group) * int32(8)
                mbarrier_wait(full, buffer_parity)
                exponents = base + int32(at_exponents) + place * int32(4)
                q_exponent, dy_exponent = int32(0), int32(0)
                if scaled:
                    q_exponent = load_shared_word(exponents)
                    dy_exponent = load_shared_word(exponents + int32(8))
                q_factor = float32(scale) * float32(LOG2_E) * power_of_two(q_exponent)

                k_exponent = int32(LOWEST_EXPONENT if scaled else 0)
                empty_before = int32(0)
                while tile < group_end:
                    base = same_again(base)
                    place = int32(stage * int32(2))
                    keys = base + int32(at_stream) + place * int32(tile_bytes)
                    exponents = base + int32(at_stream_exponents) + place * int32(4)
                    full = base + int32(at_stream_full) + place * int32(8)
                    empty = int32(base + int32(at_stream_empty) + place * int32(8))
                    mbarrier_wait(full, parity)
                    mbarrier_wait(full + int32(8), parity)
                    # s = q kᵀ in units of 1 / factor, dp = dy vᵀ in units of 2^(E of dy and v)
                    scores(s, queries, keys)
                    scores(dp, queries + int32(2 * tile_bytes), keys + int32(tile_bytes))
                    now, v_exponent = int32(0), int32(0)
                    if scaled:
                        now = load_shared_word(exponents)
                        v_exponent = load_shared_word(exponents + int32(4))
                    wait_for_scores()  # and for the last tile's product with its keys
                    settle(s)
                    if not scaled and tile > int32(0):
                        arrive_as_warp(empty_before)
                    key0 = int32(tile * int32(TILE))
                    factor = q_factor * power_of_two(now)
                    factor = hide(s, factor, key0, visible, all_visible)
                    for h in range(2):
                        for j in range(8):
                            for i in range(2):
                                e = 4 * j + 2 * h + i
                                s[e] = exp2_approx(s[e] * factor - log_sum[h])
                    finish_first(s[29] + s[31])
                    wait()
                    settle(dp)
                    arrive_as_warp(empty + int32(8))

                    # ds = p (dp - delta), in units of 2^unit
                    dp_exponent = int32(dy_exponent + v_exponent)
                    for h in range(2):
                        before = int32(unit[h] + k_exponent)
                        if scaled:
                            least = int32(dp_exponent + int32(DP_EXPONENT - 14))
                            unit[h] = max(unit[h], least)
                        else:
                            unit[h] = int32(0)
                        less[h] = power_of_two(before - unit[h] - now)
                        to_unit = power_of_two(dp_exponent - unit[h])
                        shift = -row_delta[h] * power_of_two(-unit[h])
                        for j in range(8):
                            for i in range(2):
                                e = 4 * j + 2 * h + i
                                s[e] *= dp[e] * to_unit + shift
                                if scaled and not split:
                                    out[e] *= less[h]
                    k_exponent = now
                    pack_left(weights, s)
                    # dq += ds k; what has no scales runs on beside the next tile's scores
                    if split:
                        gradient(part, weights, keys)
                        wait()
                        settle(part)
                        for j in range(8):
                            for h in range(2):
                                for i in range(2):
                                    e = 4 * j + 2 * h + i
                                    out[e] = out[e] * less[h] + part[e]
                        arrive_as_warp(empty)
                    else:
                        gradient(out, weights, keys)
                        if scaled:
                            wait()
                            settle(out)
                            arrive_as_warp(empty)
                    empty_before = empty
                    stage, parity = next_stage(stage, parity)
                    tile = int32(tile + int32(1))
                if not scaled:
                    wait()
                    settle(out)
                    arrive_as_warp(empty_before)
                # Tiles that the other warpgroup alone sees.
                while tile < end:
                    pass_over(base, stage, parity)
                    stage, parity = next_stage(stage, parity)
                    tile = int32(tile + int32(1))
                arrive_as_warp(used)
                buffer, buffer_parity = next_buffer(buffer, buffer_parity)

                place_dq = place_of(dq)
                target = matrix_start(place_dq, matrix, n_heads)
                for h in range(2):
                    r = row + int32(8 * h)
                    if r < n_queries:
                        x = float32(scale) * power_of_two(k_exponent)
                        ds_unit = power_of_two(unit[h])
                        at = target + int64(r) * place_dq[3]
                        at += int64(quad * int32(2 * element_bytes))
                        for j in range(8):
                            if int32(8 * j) < size:
                                store_pair(
                                    at + int64(8 * j * element_bytes),
                                    out[4 * j + 2 * h] * ds_unit * x,
                                    out[4 * j + 2 * h + 1] * ds_unit * x,
                                )
                turn = next_turn(turn, n_parts)

    attention_dq_sm90_kernel.shared = shared.n_bytes
    attention_dq_sm90_kernel.threads = crew.threads
    attention_dq_sm90_kernel.rows = crew.rows
    attention_dq_sm90_kernel.case = f"{form.element}, {form.kind}, {1 + 2 * split} products"
    return attention_dq_sm90_kernel

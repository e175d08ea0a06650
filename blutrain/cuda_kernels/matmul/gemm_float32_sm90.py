"""The sm_90 matrix product of float32 on tensor cores, as TF32 or as three TF32 products.

    out[b, m, n] = sum_k A[b, m, k] B[b, k, n] (+ bias[n])

TF32 keeps 10 bits of mantissa. With one product ("tf32") the copy engine rounds the operands to the
nearest TF32 as it loads them. With three ("tf32x3") each operand is split, x = high + low, and

    A B ≈ high_A low_B + low_A high_B + high_A high_B

loses only low_A low_B, about 2⁻²³ of the product. The tensor cores truncate as they add up, which
would cost more than that: so the small products come first, and each step's sum (32 of K) is added
to a second set of registers in float32, rounded to nearest. The error against float64 is then below
that of a float32 product at every K measured (2.5e-7 at K = 768, 3.7e-7 at K = 8,192; cuBLAS in
float32: 4.9e-7 and 1.6e-6).

wgmma reads TF32 operands from shared memory along K alone. A comes through registers, where any
layout will do and splitting is free of traffic. B stays in shared memory: warps beside the copying
one turn it there when its columns are dense, and write its low parts. Where B's columns are dense
and A's rows too, the transpose is computed instead (B' A' with the roles swapped), so that nothing
is turned but the finished tile.

A step takes 32 of K. Tensor cores need 128 · 192 · 32 · 3 / 1,024 = 2,304 cycles for a step of a
tile of 128 × 192 in three products; shared memory is busy for about 2,000 of them (wgmma's reads of
B 1,152, splitting 576, A 128, copies 320). FLOPs: 2 M N K, three times that in the tensor cores.

Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing
the FP32 theoretical peak performance", 2022.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.matmul.tiles_sm90 import (
    ALIGNMENT,
    COPY_REGISTERS,
    MULTIPLY_REGISTERS,
    N_GROUPS,
    ROW,
    THREADS,
    TILE_M,
    Cut,
    blocks_of,
    shared_bytes,
    tile_place,
)
from blutrain.cuda_kernels.ptx.address import shared_address
from blutrain.cuda_kernels.ptx.barrier import (
    fence_async_shared,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait,
    set_registers,
)
from blutrain.cuda_kernels.ptx.fragment import BUFFER, store_tile
from blutrain.cuda_kernels.ptx.split import gather, load_fragments, split_low
from blutrain.cuda_kernels.ptx.tma import tensor_map_acquire, tma_load, tma_store_wait_read
from blutrain.cuda_kernels.ptx.wgmma import K_MAJOR, add_sums, wgmma_registers, wgmma_wait, zeros

TILE_K = 32
FLOAT_BOX = 32  # columns of an operand that is dense across K, in one box
BOX_BYTES = FLOAT_BOX * ROW
WORKERS = 3  # warps that turn and split B
PIECES = 4  # 16-byte pieces that a thread splits at a time


def stage_bytes(cut: Cut, n_products: int, b_along_k: bool) -> int:
    """Shared memory of one stage: A, B, B turned (where it must be), B's low parts (with three)."""
    return (TILE_M + cut.n * (1 + (not b_along_k) + (n_products == 3))) * ROW


@cache
def gemm_float32_sm90_kernel(
    cut: Cut, n_products: int, a_along_k: bool, b_along_k: bool, turned: bool, has_bias: bool
) -> Any:
    """The kernel for one cut, one precision and one way to read each operand.

    Args:
        cut: the tile.
        n_products: 1 (the maps round to TF32) or 3.
        a_along_k: whether k (else m) is A's dense direction.
        b_along_k: whether k (else n) is B's; where it is not, A's is m.
        turned: store outᵀ: `map_out` is of (M, N, batch).
        has_bias: add bias[n]; not with `turned`.
    """
    tile_n, stages = cut
    three = n_products == 3
    a_bytes, b_bytes = TILE_M * ROW, tile_n * ROW
    loaded, per_stage = a_bytes + b_bytes, stage_bytes(cut, n_products, b_along_k)
    works = three or not b_along_k  # B is not what the copy engine brings
    b_at = a_bytes if b_along_k else loaded
    low_at = b_at + b_bytes
    n_sums = tile_n // 2
    multiply, wait = wgmma_registers(tile_n, n_products), wgmma_wait(0)
    start, add = zeros(n_sums), add_sums(n_sums)
    # B's k are in order where the copy engine laid them, in pairs where they were turned here.
    paired = not b_along_k
    load_first, load_second = (load_fragments(a_along_k, half, three, paired) for half in range(2))
    apart = 2 if paired else 1
    store = store_tile(tile_n, "float32", turned, has_bias)
    split_pieces = split_low(PIECES, 16 * 32)
    turn_half = gather(b_bytes if three else 0)
    give_registers = set_registers(COPY_REGISTERS, False)
    take_registers = set_registers(MULTIPLY_REGISTERS, True)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def matmul_float32_sm90_kernel(
        map_a,  # tensor map of (K, M, batch), or (M, K, batch)
        map_b,  # of (K, N, batch), or (N, K, batch)
        map_out,  # of (N, M, batch), or (M, N, batch) when turned
        bias,  # address of (N,), not read without has_bias
        n_rows,
        n_cols,
        n_inner,
        n_batch,
    ):
        memory = cuda.shared.array(0, float32)
        base = (shared_address(memory, 0) + int32(ALIGNMENT - 1)) & int32(-ALIGNMENT)
        buffers = base + int32(stages * per_stage)
        full = buffers + int32(N_GROUPS * BUFFER)  # a stage's copies have arrived
        empty = full + int32(8 * stages)  # a stage's products are done
        ready = empty + int32(8 * stages)  # a stage's B has been turned and split
        t = int32(cuda.threadIdx.x)
        lane = t & int32(31)
        warp = (t >> int32(5)) & int32(3)
        if t == 0:
            for s in range(stages):
                mbarrier_init(full + int32(8) * int32(s), int32(1))
                mbarrier_init(empty + int32(8) * int32(s), int32(N_GROUPS))
                mbarrier_init(ready + int32(8) * int32(s), int32(WORKERS))
            mbarrier_init_fence()
        cuda.syncthreads()  # all know of the barriers

        tiles_m = blocks_of(n_rows, TILE_M)
        tiles_n = blocks_of(n_cols, tile_n)
        n_tiles = tiles_m * tiles_n * int32(n_batch)
        n_steps = blocks_of(n_inner, TILE_K)
        tile = int32(cuda.blockIdx.x)
        stage = int32(0)
        parity = int32(0)  # flips each time the stages come round

        if t < int32(128):
            give_registers()
            if t == 0:
                tensor_map_acquire(map_a)
                tensor_map_acquire(map_b)
                while tile < n_tiles:
                    batch, tile_row, tile_col = tile_place(tile, tiles_m, tiles_n)
                    row = tile_row * int32(TILE_M)
                    col = tile_col * int32(tile_n)
                    step = int32(0)
                    while step < n_steps:
                        mbarrier_wait(empty + stage * int32(8), parity ^ int32(1))
                        signal = full + stage * int32(8)
                        mbarrier_expect(signal, int32(loaded))
                        at = base + stage * int32(per_stage)
                        k = step * int32(TILE_K)
                        if a_along_k:
                            tma_load(at, map_a, k, row, batch, signal)
                        else:
                            for i in range(TILE_M // FLOAT_BOX):
                                box = at + int32(i) * int32(BOX_BYTES)
                                m = row + int32(i) * int32(FLOAT_BOX)
                                tma_load(box, map_a, m, k, batch, signal)
                        at += int32(a_bytes)
                        if b_along_k:
                            tma_load(at, map_b, k, col, batch, signal)
                        else:
                            for i in range(tile_n // FLOAT_BOX):
                                box = at + int32(i) * int32(BOX_BYTES)
                                n = col + int32(i) * int32(FLOAT_BOX)
                                tma_load(box, map_b, n, k, batch, signal)
                        step += int32(1)
                        stage += int32(1)
                        if stage == int32(stages):
                            stage = int32(0)
                            parity ^= int32(1)
                    tile += int32(cuda.gridDim.x)
            elif works and warp > int32(0):
                worker = warp - int32(1)
                while tile < n_tiles:
                    step = int32(0)
                    while step < n_steps:
                        mbarrier_wait(full + stage * int32(8), parity)
                        at = base + stage * int32(per_stage)
                        if b_along_k:
                            # A unit is PIECES runs of 32 neighbouring pieces, one a lane.
                            unit = worker
                            while unit < int32(tile_n * 8 // (32 * PIECES)):
                                piece = (unit * int32(PIECES * 32) + lane) * int32(16)
                                split_pieces(at + int32(b_at) + piece, at + int32(low_at) + piece)
                                unit += int32(WORKERS)
                        else:
                            # A unit is one column a lane of half the k of a box.
                            unit = worker
                            while unit < int32(2 * (tile_n // FLOAT_BOX)):
                                box = unit >> int32(1)
                                half = unit & int32(1)
                                source = at + int32(a_bytes) + box * int32(BOX_BYTES)
                                source += half * int32(16 * ROW) + (lane & int32(3)) * int32(4)
                                target = at + int32(b_at) + (box * int32(32) + lane) * int32(ROW)
                                turn = (lane & int32(7)) ^ (half * int32(4))
                                turn_half(source, lane >> int32(2), target, turn)
                                unit += int32(WORKERS)
                        fence_async_shared()  # wgmma reads what these stores wrote
                        cuda.syncwarp()
                        if lane == 0:
                            mbarrier_arrive(ready + stage * int32(8))
                        step += int32(1)
                        stage += int32(1)
                        if stage == int32(stages):
                            stage = int32(0)
                            parity ^= int32(1)
                    tile += int32(cuda.gridDim.x)
        else:
            take_registers()
            group = (t >> int32(7)) - int32(1)
            leader = t & int32(127) == 0
            buffer = buffers + group * int32(BUFFER)
            # Where this thread's part of A is in a stage: see load_fragments.
            g = lane >> int32(2)
            q = lane & int32(3)
            if a_along_k:
                row_of_a = group * int32(64) + warp * int32(16) + g
                a_place = base + row_of_a * int32(ROW) + q * int32(4)
                a_turn = g
            else:
                box_of_a = group * int32(2) + (warp >> int32(1))
                k_of_a = q * int32(apart)
                a_place = base + box_of_a * int32(BOX_BYTES) + k_of_a * int32(ROW)
                a_place += (g & int32(3)) * int32(4)
                a_turn = ((warp & int32(1)) * int32(4) + (g >> int32(2))) ^ k_of_a
            part = start()
            if leader:
                tensor_map_acquire(map_out)
            while tile < n_tiles:
                batch, tile_row, tile_col = tile_place(tile, tiles_m, tiles_n)
                row = tile_row * int32(TILE_M) + group * int32(64)
                col = tile_col * int32(tile_n)
                sums = start()
                step = int32(0)
                while step < n_steps:
                    mbarrier_wait(full + stage * int32(8), parity)
                    offset = stage * int32(per_stage)
                    a = load_first(a_place + offset, a_turn)
                    if works:
                        mbarrier_wait(ready + stage * int32(8), parity)
                    b = int64((base + offset + int32(b_at)) >> int32(4)) | int64(K_MAJOR)
                    low = int64((base + offset + int32(low_at)) >> int32(4)) | int64(K_MAJOR)
                    # With three products every step starts from zero.
                    part = multiply(part, a, b, low, int32(0) if three else step)
                    wait()
                    a = load_second(a_place + offset, a_turn)
                    part = multiply(part, a, b + int64(4), low + int64(4), int32(1))
                    wait()
                    if leader:
                        mbarrier_arrive(empty + stage * int32(8))
                    if three:
                        sums = add(sums, part)
                    step += int32(1)
                    stage += int32(1)
                    if stage == int32(stages):
                        stage = int32(0)
                        parity ^= int32(1)
                if not three:
                    sums = part
                bias_at = bias + int64(col) * int64(4)
                left = int32(n_cols) - col
                store(sums, map_out, row, col, batch, buffer, bias_at, left, group)
                tile += int32(cuda.gridDim.x)
            if leader:
                tma_store_wait_read()  # shared memory must outlive the copies

    matmul_float32_sm90_kernel.case = (
        f"{tile_n} columns, {n_products} products, A along {'k' if a_along_k else 'mn'}, "
        f"B along {'k' if b_along_k else 'mn'}{', turned' if turned else ''}"
    )
    matmul_float32_sm90_kernel.shared = shared_bytes(stages, per_stage)
    return matmul_float32_sm90_kernel

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
layout will do and splitting is free of traffic. B stays in shared memory, where warps beside the
copying one write its low parts. A product whose B runs across K is computed with the roles swapped,
so that nothing is turned but the finished tile; where both operands run across K, the smaller one
is transposed in memory before (see `sm90.py`).

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
    ROW,
    Cut,
    blocks_of,
    next_work,
    share_start,
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
    warpgroup_barrier,
)
from blutrain.cuda_kernels.ptx.fragment import BUFFER, store_tile
from blutrain.cuda_kernels.ptx.partial_sums import (
    add_partial,
    await_flag,
    partial_bytes,
    put_sums,
    raise_flag,
)
from blutrain.cuda_kernels.ptx.split import load_fragments, split_low
from blutrain.cuda_kernels.ptx.tma import tensor_map_acquire, tma_load, tma_store_wait_read
from blutrain.cuda_kernels.ptx.wgmma import K_MAJOR, add_sums, wgmma_registers, wgmma_wait, zeros

TILE_K = 32
FLOAT_BOX = 32  # columns of an operand that is dense across K, in one box
BOX_BYTES = FLOAT_BOX * ROW
# As in `tiles_sm90`; three products take two sets of sums.
REGISTERS = {2: (56, 224), 3: (40, 152)}
WORKERS = 3  # warps that split B
PIECES = 4  # 16-byte pieces that a thread splits at a time


def stage_bytes(cut: Cut, n_products: int) -> int:
    """Shared memory of one stage: A, B, and with three products B's low parts."""
    return (cut.m + cut.n * (1 + (n_products == 3))) * ROW


@cache
def gemm_float32_sm90_kernel(
    cut: Cut, n_products: int, a_along_k: bool, turned: bool, has_bias: bool
) -> Any:
    """The kernel for one cut, one precision and one way to read each operand.

    Args:
        cut: the tile.
        n_products: 1 (the maps round to TF32) or 3.
        a_along_k: whether k (else m) is A's dense direction; B's is k.
        turned: store outᵀ: `map_out` is of (M, N, batch).
        has_bias: add bias[n]; not with `turned`.
    """
    tile_n, stages, groups = cut
    tile_m, threads, part_bytes, part_size = cut.m, cut.threads, partial_bytes(tile_n), cut.part
    three = n_products == 3
    a_bytes, b_bytes, per_stage = tile_m * ROW, tile_n * ROW, stage_bytes(cut, n_products)
    loaded = low_at = a_bytes + b_bytes
    n_sums = tile_n // 2
    multiply, wait = wgmma_registers(tile_n, n_products), wgmma_wait(0)
    start, add = zeros(n_sums), add_sums(n_sums)
    load_first, load_second = (load_fragments(a_along_k, half, three) for half in range(2))
    store = store_tile(tile_n, "float32", turned, has_bias)
    split_pieces = split_low(PIECES, 16 * 32)
    give_registers = set_registers(REGISTERS[groups][0], False)
    take_registers = set_registers(REGISTERS[groups][1], True)
    put, add_others = put_sums(tile_n), add_partial(tile_n)

    @cuda.jit(launch_bounds=(threads, 1))
    def matmul_float32_sm90_kernel(
        map_a,  # tensor map of (K, M, batch), or (M, K, batch)
        map_b,  # of (K, N, batch)
        map_out,  # of (N, M, batch), or (M, N, batch) when turned
        bias,  # address of (N,), not read without has_bias
        n_rows,
        n_cols,
        n_inner,
        n_batch,
        n_shared,  # tiles, the first ones, that are cut along K
        share,  # a block's steps of them
        extra,  # blocks that do one more
        parts,  # address of a block's part for every block
        number,  # what a raised flag holds
    ):
        memory = cuda.shared.array(0, float32)
        base = (shared_address(memory, 0) + int32(ALIGNMENT - 1)) & int32(-ALIGNMENT)
        buffers = base + int32(stages * per_stage)
        full = buffers + int32(groups * BUFFER)  # a stage's copies have arrived
        empty = full + int32(8 * stages)  # a stage's products are done
        ready = empty + int32(8 * stages)  # a stage's B has been split
        t = int32(cuda.threadIdx.x)
        lane = t & int32(31)
        warp = (t >> int32(5)) & int32(3)
        if t == 0:
            for s in range(stages):
                mbarrier_init(full + int32(8) * int32(s), int32(1))
                mbarrier_init(empty + int32(8) * int32(s), int32(groups))
                mbarrier_init(ready + int32(8) * int32(s), int32(WORKERS))
            mbarrier_init_fence()
        cuda.syncthreads()  # all know of the barriers

        tiles_m = blocks_of(n_rows, tile_m)
        tiles_n = blocks_of(n_cols, tile_n)
        n_tiles = int32(tiles_m * tiles_n * int32(n_batch))
        n_steps = blocks_of(n_inner, TILE_K)
        block = int32(cuda.blockIdx.x)
        at = share_start(block, share, extra)
        end = share_start(block + int32(1), share, extra)
        tile = int32(int32(n_shared) + block)
        stage = int32(0)
        parity = int32(0)  # flips each time the stages come round

        if t < int32(128):
            give_registers()
            if t == 0:
                tensor_map_acquire(map_a)
                tensor_map_acquire(map_b)
                while at < end or tile < n_tiles:
                    this, step, last = next_work(at, end, tile, n_steps)
                    if at < end:
                        at = int32(at + last - step)
                    else:
                        tile = int32(tile + int32(cuda.gridDim.x))
                    batch, tile_row, tile_col = tile_place(this, tiles_m, tiles_n)
                    row = int32(tile_row * int32(tile_m))
                    col = int32(tile_col * int32(tile_n))
                    while step < last:
                        mbarrier_wait(empty + stage * int32(8), parity ^ int32(1))
                        signal = full + stage * int32(8)
                        mbarrier_expect(signal, int32(loaded))
                        to = base + stage * int32(per_stage)
                        k = step * int32(TILE_K)
                        if a_along_k:
                            tma_load(to, map_a, k, row, batch, signal)
                        else:
                            for i in range(tile_m // FLOAT_BOX):
                                box = to + int32(i) * int32(BOX_BYTES)
                                m = row + int32(i) * int32(FLOAT_BOX)
                                tma_load(box, map_a, m, k, batch, signal)
                        tma_load(to + int32(a_bytes), map_b, k, col, batch, signal)
                        step = int32(step + int32(1))
                        stage = int32(stage + int32(1))
                        if stage == int32(stages):
                            stage = int32(0)
                            parity = int32(parity ^ int32(1))
            elif three and warp > int32(0):
                worker = warp - int32(1)
                while at < end or tile < n_tiles:
                    this, step, last = next_work(at, end, tile, n_steps)
                    if at < end:
                        at = int32(at + last - step)
                    else:
                        tile = int32(tile + int32(cuda.gridDim.x))
                    while step < last:
                        mbarrier_wait(full + stage * int32(8), parity)
                        b_at = base + stage * int32(per_stage) + int32(a_bytes)
                        # A unit is PIECES runs of 32 neighbouring pieces, one a lane.
                        unit = worker
                        while unit < int32(tile_n * 8 // (32 * PIECES)):
                            piece = b_at + (unit * int32(PIECES * 32) + lane) * int32(16)
                            split_pieces(piece, piece + int32(b_bytes))
                            unit = int32(unit + int32(WORKERS))
                        fence_async_shared()  # wgmma reads what these stores wrote
                        cuda.syncwarp()
                        if lane == 0:
                            mbarrier_arrive(ready + stage * int32(8))
                        step = int32(step + int32(1))
                        stage = int32(stage + int32(1))
                        if stage == int32(stages):
                            stage = int32(0)
                            parity = int32(parity ^ int32(1))
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
                a_place = base + box_of_a * int32(BOX_BYTES) + q * int32(ROW)
                a_place += (g & int32(3)) * int32(4)
                a_turn = ((warp & int32(1)) * int32(4) + (g >> int32(2))) ^ q
            part = start()
            if leader:
                tensor_map_acquire(map_out)
            while at < end or tile < n_tiles:
                this, first, last = next_work(at, end, tile, n_steps)
                if at < end:
                    at = int32(at + last - first)
                else:
                    tile = int32(tile + int32(cuda.gridDim.x))
                batch, tile_row, tile_col = tile_place(this, tiles_m, tiles_n)
                row = int32(tile_row * int32(tile_m) + group * int32(64))
                col = int32(tile_col * int32(tile_n))
                sums = start()
                step = first
                while step < last:
                    mbarrier_wait(full + stage * int32(8), parity)
                    offset = stage * int32(per_stage)
                    a = load_first(a_place + offset, a_turn)
                    if three:
                        mbarrier_wait(ready + stage * int32(8), parity)
                    b = int64((base + offset + int32(a_bytes)) >> int32(4)) | int64(K_MAJOR)
                    low = int64((base + offset + int32(low_at)) >> int32(4)) | int64(K_MAJOR)
                    # With three products every step starts from zero.
                    part = multiply(part, a, b, low, int32(0) if three else step - first)
                    wait()
                    a = load_second(a_place + offset, a_turn)
                    part = multiply(part, a, b + int64(4), low + int64(4), int32(1))
                    wait()
                    if leader:
                        mbarrier_arrive(empty + stage * int32(8))
                    if three:
                        sums = add(sums, part)
                    step = int32(step + int32(1))
                    stage = int32(stage + int32(1))
                    if stage == int32(stages):
                        stage = int32(0)
                        parity = int32(parity ^ int32(1))
                if not three:
                    sums = part
                    part = start()  # or both would hold registers
                if first > int32(0):  # another block stores the tile
                    mine = parts + int64(block) * int64(part_size)
                    put(sums, mine + int64(t % int32(128) * int32(16) + group * int32(part_bytes)))
                    warpgroup_barrier(group + int32(1))  # all sums are written
                    if leader:
                        raise_flag(mine + int64(groups * part_bytes) + int64(group * 8), number)
                else:
                    other = block
                    while last < n_steps:  # others did the rest of K
                        other = int32(other + int32(1))
                        theirs = parts + int64(other) * int64(part_size)
                        flag = theirs + int64(groups * part_bytes) + int64(group * 8)
                        if leader:
                            await_flag(flag, number)
                        warpgroup_barrier(group + int32(1))  # all know that the sums are there
                        theirs += int64(t % int32(128) * int32(16) + group * int32(part_bytes))
                        sums = add_others(sums, theirs)
                        if leader:
                            raise_flag(flag, int64(0))
                        end_of_other = share_start(other + int32(1), share, extra)
                        last = int32(end_of_other - this * n_steps)
                    bias_at = bias + int64(col) * int64(4)
                    left = int32(n_cols) - col
                    store(sums, map_out, row, col, batch, buffer, bias_at, left, group)
            if leader:
                tma_store_wait_read()  # shared memory must outlive the copies

    matmul_float32_sm90_kernel.case = (
        f"{tile_m} x {tile_n}, {n_products} products, A along {'k' if a_along_k else 'mn'}"
        f"{', turned' if turned else ''}"
    )
    matmul_float32_sm90_kernel.threads = threads
    matmul_float32_sm90_kernel.shared = cut.shared_bytes(per_stage)
    return matmul_float32_sm90_kernel

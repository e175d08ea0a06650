"""The sm_90 matrix product straight from shared memory: copy engine, wgmma, float32 sums.

    out[b, m, n] = sum_k A[b, m, k] B[b, k, n] (+ bias[n])

For halves, whose operands the tensor cores read along K or across it, so that a transposed product
costs what a plain one does and nothing is copied; and for TF32 where both operands run along K, the
copy engine rounding to the nearest TF32 as it loads. Other products of float32 are those of
`gemm_float32_sm90.py`.

A step takes 128 bytes of K: 64 halves, 32 float32. Shared memory: stages of (tile.m + tile.n) · 128
bytes, and 16 KB for each warpgroup's stores. At a tile of 128 × 256 a stage is multiplied in 1,024
cycles at the tensor cores' full rate and brings 48 KB, 48 bytes a cycle and SM, of which the L2
cache delivers about 31; at 192 × 256 it is 56 KB in 1,536 cycles, 36 bytes a cycle. So a long
product is bound by the L2 cache and by power, not by the number of multipliers. TF32 is bound by
shared memory as well: a step's 1,024 cycles have 512 of wgmma reading B, 128 of A, 384 of copies.
FLOPs: 2 M N K. Bytes: K (M N / tile.n + M N / tile.m) elements through the L2 cache, M N out.

Source: the division of labour is CUTLASS's "warp-specialized persistent cooperative" kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.matmul.tiles_sm90 import (
    ALIGNMENT,
    REGISTERS,
    ROW,
    Cut,
    blocks_of,
    next_work,
    share_start,
    tile_place,
)
from blutrain.cuda_kernels.ptx.address import shared_address
from blutrain.cuda_kernels.ptx.barrier import (
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
from blutrain.cuda_kernels.ptx.tma import tensor_map_acquire, tma_load, tma_store_wait_read
from blutrain.cuda_kernels.ptx.wgmma import K_MAJOR, MN_MAJOR, wgmma_block, wgmma_wait, zeros

HALF_BOX = 64  # columns of an operand that is dense across K, in one box
BOX_BYTES = HALF_BOX * ROW
GROUP_BYTES = 64 * ROW  # of a warpgroup's rows of A


def stage_bytes(cut: Cut) -> int:
    """Shared memory of one stage."""
    return (cut.m + cut.n) * ROW


@cache
def gemm_direct_sm90_kernel(
    cut: Cut,
    kind: str,
    element: str,
    a_along_k: bool,
    b_along_k: bool,
    turned: bool,
    has_bias: bool,
) -> Any:
    """The kernel for one cut, one kind of operand and one way to read each.

    Args:
        cut: the tile.
        kind: "bf16", "f16", or "tf32" with both operands along K.
        element: what `out` and the bias hold: "float32", "bfloat16" or "float16".
        a_along_k: whether k (else m) is A's dense direction.
        b_along_k: whether k (else n) is B's.
        turned: store outᵀ, of float32: `map_out` is of (M, N, batch).
        has_bias: add bias[n]; not with `turned`.
    """
    tile_n, stages, groups = cut
    tile_m, threads, part, part_bytes = cut.m, cut.threads, cut.part, partial_bytes(tile_n)
    tile_k = 32 if kind == "tf32" else 64
    a_bytes, per_stage = tile_m * ROW, stage_bytes(cut)
    out_size = 4 if element == "float32" else 2
    a_major, b_major = ("k" if along else "mn" for along in (a_along_k, b_along_k))
    a_fixed, b_fixed = (K_MAJOR if along else MN_MAJOR for along in (a_along_k, b_along_k))
    multiply = wgmma_block(tile_n, kind, a_major, b_major)
    start, wait_for_previous, wait_for_all = zeros(tile_n // 2), wgmma_wait(1), wgmma_wait(0)
    store = store_tile(tile_n, element, turned, has_bias)
    give_registers = set_registers(REGISTERS[groups][0], False)
    take_registers = set_registers(REGISTERS[groups][1], True)
    put, add = put_sums(tile_n), add_partial(tile_n)

    @cuda.jit(launch_bounds=(threads, 1))
    def matmul_direct_sm90_kernel(
        map_a,  # tensor map of (K, M, batch), or (M, K, batch)
        map_b,  # of (K, N, batch), or (N, K, batch)
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
        t = int32(cuda.threadIdx.x)
        if t == 0:
            for s in range(stages):
                mbarrier_init(full + int32(8) * int32(s), int32(1))
                mbarrier_init(empty + int32(8) * int32(s), int32(groups))
            mbarrier_init_fence()
        cuda.syncthreads()  # all know of the barriers

        tiles_m = blocks_of(n_rows, tile_m)
        tiles_n = blocks_of(n_cols, tile_n)
        n_tiles = int32(tiles_m * tiles_n * int32(n_batch))
        n_steps = blocks_of(n_inner, tile_k)
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
                        mbarrier_expect(signal, int32(per_stage))
                        to = base + stage * int32(per_stage)
                        k = step * int32(tile_k)
                        if a_along_k:
                            tma_load(to, map_a, k, row, batch, signal)
                        else:
                            for i in range(tile_m // HALF_BOX):
                                box = to + int32(i) * int32(BOX_BYTES)
                                m = row + int32(i) * int32(HALF_BOX)
                                tma_load(box, map_a, m, k, batch, signal)
                        to += int32(a_bytes)
                        if b_along_k:
                            tma_load(to, map_b, k, col, batch, signal)
                        else:
                            for i in range(tile_n // HALF_BOX):
                                box = to + int32(i) * int32(BOX_BYTES)
                                n = col + int32(i) * int32(HALF_BOX)
                                tma_load(box, map_b, n, k, batch, signal)
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
            sums = start()
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
                step = first
                before = int32(0)
                while step < last:
                    mbarrier_wait(full + stage * int32(8), parity)
                    place = base + stage * int32(per_stage)
                    a = int64((place + group * int32(GROUP_BYTES)) >> int32(4)) | int64(a_fixed)
                    b = int64((place + int32(a_bytes)) >> int32(4)) | int64(b_fixed)
                    sums = multiply(sums, a, b, step - first)
                    if step > first:
                        # This step's products are under way, the last one's are done.
                        wait_for_previous()
                        if leader:
                            mbarrier_arrive(empty + before * int32(8))
                    before = stage
                    step = int32(step + int32(1))
                    stage = int32(stage + int32(1))
                    if stage == int32(stages):
                        stage = int32(0)
                        parity = int32(parity ^ int32(1))
                wait_for_all()
                if leader:
                    mbarrier_arrive(empty + before * int32(8))
                if first > int32(0):  # another block stores the tile
                    mine = parts + int64(block) * int64(part)
                    put(sums, mine + int64(t % int32(128) * int32(16) + group * int32(part_bytes)))
                    warpgroup_barrier(group + int32(1))  # all sums are written
                    if leader:
                        raise_flag(mine + int64(groups * part_bytes) + int64(group * 8), number)
                else:
                    other = block
                    while last < n_steps:  # others did the rest of K
                        other = int32(other + int32(1))
                        theirs = parts + int64(other) * int64(part)
                        flag = theirs + int64(groups * part_bytes) + int64(group * 8)
                        if leader:
                            await_flag(flag, number)
                        warpgroup_barrier(group + int32(1))  # all know that the sums are there
                        theirs += int64(t % int32(128) * int32(16) + group * int32(part_bytes))
                        sums = add(sums, theirs)
                        if leader:
                            raise_flag(flag, int64(0))
                        end_of_other = share_start(other + int32(1), share, extra)
                        last = int32(end_of_other - this * n_steps)
                    bias_at = bias + int64(col) * int64(out_size)
                    left = int32(n_cols) - col
                    store(sums, map_out, row, col, batch, buffer, bias_at, left, group)
            if leader:
                tma_store_wait_read()  # shared memory must outlive the copies

    matmul_direct_sm90_kernel.case = (
        f"{tile_m} x {tile_n}, {kind} to {element}, A along {a_major}, B along {b_major}"
    )
    matmul_direct_sm90_kernel.threads = threads
    matmul_direct_sm90_kernel.shared = cut.shared_bytes(per_stage)
    return matmul_direct_sm90_kernel

"""The sm_90 matrix product of halves: copy engine, wgmma, float32 sums.

    out[b, m, n] = sum_k A[b, m, k] B[b, k, n] (+ bias[n])

Either side of an operand may be dense: the tensor cores read 16-bit operands along K or across it,
so a transposed product costs what a plain one does, and nothing is copied.

A step takes 64 of K. Shared memory: four stages of (128 + 256) · 128 bytes for a tile of 128 × 256,
and 16 KB for each warpgroup's stores. A stage is multiplied in 1,024 cycles at the tensor cores'
full rate and brings 48 KB, 48 bytes a cycle and SM, of which the L2 cache delivers about 31: so a
long product is bound by the L2 cache and by power, not by the number of multipliers.
FLOPs: 2 M N K. Bytes: K (M N / 256 + M N / 128) elements through the L2 cache, M N elements out.

Source: the division of labour is CUTLASS's "warp-specialized persistent cooperative" kernel.
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
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait,
    set_registers,
)
from blutrain.cuda_kernels.ptx.fragment import BUFFER, store_tile
from blutrain.cuda_kernels.ptx.tma import tensor_map_acquire, tma_load, tma_store_wait_read
from blutrain.cuda_kernels.ptx.wgmma import K_MAJOR, MN_MAJOR, wgmma_block, wgmma_wait, zeros

TILE_K = 64
HALF_BOX = 64  # columns of an operand that is dense across K, in one box
BOX_BYTES = HALF_BOX * ROW
GROUP_BYTES = 64 * ROW  # of a warpgroup's rows of A


def stage_bytes(cut: Cut) -> int:
    """Shared memory of one stage."""
    return (TILE_M + cut.n) * ROW


@cache
def gemm_half_sm90_kernel(
    cut: Cut, kind: str, element: str, a_along_k: bool, b_along_k: bool, has_bias: bool
) -> Any:
    """The kernel for one cut, one kind of operand and one way to read each.

    Args:
        cut: the tile.
        kind: "bf16" or "f16".
        element: what `out` and the bias hold: "float32", "bfloat16" or "float16".
        a_along_k: whether k (else m) is A's dense direction.
        b_along_k: whether k (else n) is B's.
        has_bias: add bias[n].
    """
    tile_n, stages = cut
    a_bytes, per_stage = TILE_M * ROW, stage_bytes(cut)
    out_size = 4 if element == "float32" else 2
    a_major, b_major = ("k" if along else "mn" for along in (a_along_k, b_along_k))
    a_fixed, b_fixed = (K_MAJOR if along else MN_MAJOR for along in (a_along_k, b_along_k))
    multiply = wgmma_block(tile_n, kind, a_major, b_major)
    start, wait_for_previous, wait_for_all = zeros(tile_n // 2), wgmma_wait(1), wgmma_wait(0)
    store = store_tile(tile_n, element, False, has_bias)
    give_registers = set_registers(COPY_REGISTERS, False)
    take_registers = set_registers(MULTIPLY_REGISTERS, True)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def matmul_half_sm90_kernel(
        map_a,  # tensor map of (K, M, batch), or (M, K, batch)
        map_b,  # of (K, N, batch), or (N, K, batch)
        map_out,  # of (N, M, batch)
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
        t = int32(cuda.threadIdx.x)
        if t == 0:
            for s in range(stages):
                mbarrier_init(full + int32(8) * int32(s), int32(1))
                mbarrier_init(empty + int32(8) * int32(s), int32(N_GROUPS))
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
                        mbarrier_expect(signal, int32(per_stage))
                        at = base + stage * int32(per_stage)
                        k = step * int32(TILE_K)
                        if a_along_k:
                            tma_load(at, map_a, k, row, batch, signal)
                        else:
                            for i in range(TILE_M // HALF_BOX):
                                box = at + int32(i) * int32(BOX_BYTES)
                                m = row + int32(i) * int32(HALF_BOX)
                                tma_load(box, map_a, m, k, batch, signal)
                        at += int32(a_bytes)
                        if b_along_k:
                            tma_load(at, map_b, k, col, batch, signal)
                        else:
                            for i in range(tile_n // HALF_BOX):
                                box = at + int32(i) * int32(BOX_BYTES)
                                n = col + int32(i) * int32(HALF_BOX)
                                tma_load(box, map_b, n, k, batch, signal)
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
            sums = start()
            if leader:
                tensor_map_acquire(map_out)
            while tile < n_tiles:
                batch, tile_row, tile_col = tile_place(tile, tiles_m, tiles_n)
                row = tile_row * int32(TILE_M) + group * int32(64)
                col = tile_col * int32(tile_n)
                step = int32(0)
                before = int32(0)
                while step < n_steps:
                    mbarrier_wait(full + stage * int32(8), parity)
                    at = base + stage * int32(per_stage)
                    a = int64((at + group * int32(GROUP_BYTES)) >> int32(4)) | int64(a_fixed)
                    b = int64((at + int32(a_bytes)) >> int32(4)) | int64(b_fixed)
                    sums = multiply(sums, a, b, step)
                    if step > int32(0):
                        # This step's products are under way, the last one's are done.
                        wait_for_previous()
                        if leader:
                            mbarrier_arrive(empty + before * int32(8))
                    before = stage
                    step += int32(1)
                    stage += int32(1)
                    if stage == int32(stages):
                        stage = int32(0)
                        parity ^= int32(1)
                wait_for_all()
                if leader:
                    mbarrier_arrive(empty + before * int32(8))
                bias_at = bias + int64(col) * int64(out_size)
                left = int32(n_cols) - col
                store(sums, map_out, row, col, batch, buffer, bias_at, left, group)
                tile += int32(cuda.gridDim.x)
            if leader:
                tma_store_wait_read()  # shared memory must outlive the copies

    matmul_half_sm90_kernel.case = (
        f"{tile_n} columns, {kind} to {element}, A along {a_major}, B along {b_major}"
    )
    matmul_half_sm90_kernel.shared = shared_bytes(stages, per_stage)
    return matmul_half_sm90_kernel

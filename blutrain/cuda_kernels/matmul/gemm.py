"""The kernel behind every matrix product: out = a b (+ bias), batched, any strides.

    out[i, j, m, n] = sum_k a[i, j, m, k] b[i, j, k, n] + bias[n]

    a (outer, inner, M, K)   b (outer, inner, K, N)   bias (N,)   out (outer, inner, M, N)

A transposed operand is a view with its strides swapped, a broadcast one has a stride of zero, so
one kernel serves a b, a bᵀ, aᵀ b and their batches. Sums run in float32 (float64 for float64), in
the order of k, so that the result is the same bits every time.

A block computes a tile of `out`. It walks K in steps of `tile.k`: both operands' pieces lie in
shared memory with k outermost, each thread reads thread_m + thread_n values a k and does
thread_m · thread_n multiply-adds with them. While it does, the next pieces are on their way from
global memory into registers, and the two halves of the shared arrays take turns, so one barrier a
step is enough. A thread's rows and columns come in groups of four, the groups of neighbouring
threads side by side: a warp's reads are 16 bytes wide and free of bank conflicts. The finished
tile goes through shared memory once more, so that neighbouring threads store neighbouring columns.

Long sums over few tiles are cut along K (`batches.py`).

FLOPs: 2 M N K. Elements read: M N K (1/tile.m + 1/tile.n), most of them from the L2 cache.

Source: Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra", 2008; the layout of a
warp's tile is CUTLASS's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, float64, uint32

from blutrain import dtypes
from blutrain.autograd.registry import variant
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.matmul.batches import (
    ENOUGH_TILES,
    LARGE,
    SMALL,
    Tile,
    multiply_batches,
    n_tiles_of,
)
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.device import launch
from blutrain.device.array import Array
from blutrain.tensor import Tensor

# A warp is 4 threads tall and 8 wide.
LANES_M, LANES_N = 4, 8
# Blocks that run at the same time share columns of b: tiles are numbered down strips this tall.
STRIP = 8
# One group of four in front of each row of a shared array: it spreads the rows over the banks, and
# keeps LLVM from writing a group's offsets as `or`, which its vectoriser does not look through.
PAD = 4


@cache
def gemm_kernel(tile: Tile, real: Any, a_along_k: bool, b_along_n: bool) -> Any:
    """The kernel for one cut of the work, one accumulator type and one way to read the operands.

    Args:
        tile: LARGE or SMALL.
        real: numba's float32 or float64.
        a_along_k: whether k (else m) is a's dense direction.
        b_along_n: whether n (else k) is b's dense direction.
    """
    tile_m, tile_n, tile_k, thread_m, thread_n = tile
    threads = tile.threads
    warp_m, warp_n = LANES_M * thread_m, LANES_N * thread_n
    warps_n = tile_n // warp_n
    # Neighbouring threads load along the dense direction; a thread's next load is one step further.
    loads_a, loads_b = tile_m * tile_k // threads, tile_n * tile_k // threads
    wide_a, wide_b = tile_k if a_along_k else tile_m, tile_n if b_along_n else tile_k
    step_m, step_ka = (threads // tile_k, 0) if a_along_k else (0, threads // tile_m)
    step_n, step_kb = (0, threads // tile_n) if b_along_n else (threads // tile_k, 0)
    pitch_a, pitch_b = tile_m + PAD, tile_n + PAD
    # 256 threads with 128 registers each: two blocks an SM hide each other's barriers. Doubles take
    # two registers each and need the whole file.
    min_blocks = 2 if real is float32 else 1

    @cuda.jit(launch_bounds=(threads, min_blocks))
    def matmul_kernel(
        a,  # (outer, inner, M, K)
        b,  # (outer, inner, K, N)
        bias,  # (N,), read only with has_bias
        out,  # (outer, inner, M, N)
        has_bias,
    ):
        piece_a = cuda.shared.array((2, tile_k, pitch_a), real, 16)
        piece_b = cuda.shared.array((2, tile_k, pitch_b), real, 16)
        acc = cuda.local.array((thread_m, thread_n), real)
        next_a = cuda.local.array(loads_a, real)
        next_b = cuda.local.array(loads_b, real)
        # Unsigned: there is no test for negative indices then, and LLVM sees the groups' alignment.
        n_rows = uint32(out.shape[2])
        n_cols = uint32(out.shape[3])
        n_inner = uint32(a.shape[3])

        # Which matrix of the batch, and which tile of it: down a strip of tiles, then the next one.
        tiles_m = (n_rows + tile_m - 1) // tile_m
        tiles_n = (n_cols + tile_n - 1) // tile_n
        matrix = uint32(uint32(cuda.blockIdx.x) // (tiles_m * tiles_n))
        place = uint32(cuda.blockIdx.x) % (tiles_m * tiles_n)
        outer = uint32(matrix // uint32(out.shape[1]))
        inner = matrix % uint32(out.shape[1])
        first = place // (STRIP * tiles_n) * STRIP
        height = min(tiles_m - first, STRIP)
        row0 = uint32((first + place % (STRIP * tiles_n) % height) * tile_m)
        col0 = uint32(place % (STRIP * tiles_n) // height * tile_n)

        # What this thread loads.
        t = uint32(cuda.threadIdx.x)
        load_m = t // wide_a if a_along_k else t % wide_a
        load_ka = t % wide_a if a_along_k else t // wide_a
        load_n = t % wide_b if b_along_n else t // wide_b
        load_kb = t // wide_b if b_along_n else t % wide_b

        # What it computes: groups of four rows and columns, from these on.
        warp = t // 32
        lane = t % 32
        m0 = warp // warps_n * warp_m + lane // LANES_N * 4
        n0 = warp % warps_n * warp_n + lane % LANES_N * 4
        for i in range(thread_m):
            for j in range(thread_n):
                acc[i, j] = real(0)

        # The first pieces, straight into shared memory; zeros outside the matrices.
        for i in range(loads_a):
            m = load_m + i * step_m
            k = load_ka + i * step_ka
            inside = row0 + m < n_rows and k < n_inner
            piece_a[0, k, PAD + m] = a[outer, inner, row0 + m, k] if inside else real(0)
        for i in range(loads_b):
            n = load_n + i * step_n
            k = load_kb + i * step_kb
            inside = col0 + n < n_cols and k < n_inner
            piece_b[0, k, PAD + n] = b[outer, inner, k, col0 + n] if inside else real(0)
        cuda.syncthreads()  # the pieces are complete

        half = uint32(0)
        for next_k in range(tile_k, n_inner + tile_k, tile_k):
            more = next_k < n_inner
            if more:  # the next pieces, into registers
                for i in range(loads_a):
                    m = uint32(row0 + load_m + i * step_m)
                    k = uint32(next_k + load_ka + i * step_ka)
                    next_a[i] = a[outer, inner, m, k] if m < n_rows and k < n_inner else real(0)
                for i in range(loads_b):
                    n = uint32(col0 + load_n + i * step_n)
                    k = uint32(next_k + load_kb + i * step_kb)
                    next_b[i] = b[outer, inner, k, n] if n < n_cols and k < n_inner else real(0)

            # A while loop: the assembler unrolls it; a range would hide the count from it.
            k = uint32(0)
            while k < tile_k:
                x = cuda.local.array(thread_m, real)
                y = cuda.local.array(thread_n, real)
                for i in range(thread_m):
                    x[i] = piece_a[half, k, PAD + m0 + i // 4 * (LANES_M * 4) + i % 4]
                for j in range(thread_n):
                    y[j] = piece_b[half, k, PAD + n0 + j // 4 * (LANES_N * 4) + j % 4]
                for j in range(thread_n):  # outside, for a processor's vectors lie along it
                    for i in range(thread_m):
                        acc[i, j] += x[i] * y[j]
                k = uint32(k + 1)

            if more:  # into the half that nobody reads
                half = uint32(1) - half
                for i in range(loads_a):
                    piece_a[half, load_ka + i * step_ka, PAD + load_m + i * step_m] = next_a[i]
                for i in range(loads_b):
                    piece_b[half, load_kb + i * step_kb, PAD + load_n + i * step_n] = next_b[i]
                cuda.syncthreads()  # complete, and everyone is done with the other half

        # The results leave by way of piece_a, one row of warps at a time.
        for strip in range(tile_m // warp_m):
            cuda.syncthreads()  # all are done with what is in piece_a
            if warp // warps_n == strip:
                for i in range(thread_m):
                    r = lane // LANES_N * 4 + i // 4 * (LANES_M * 4) + i % 4
                    for j in range(thread_n):
                        c = n0 + j // 4 * (LANES_N * 4) + j % 4
                        piece_a[r // tile_k, r % tile_k, c] = acc[i, j]
            cuda.syncthreads()  # the strip is complete
            e = t
            while e < warp_m * tile_n:
                r = e // tile_n
                row = uint32(row0 + strip * warp_m + r)
                col = uint32(col0 + e % tile_n)
                if row < n_rows and col < n_cols:
                    value = piece_a[r // tile_k, r % tile_k, e % tile_n]
                    if has_bias:
                        value += bias[col]
                    out[outer, inner, row, col] = value
                e = uint32(e + threads)

    return matmul_kernel


@variant("matmul", name="portable")
def gemm(p: Problem) -> None:
    """The product with CUDA cores, as `Problem` states it."""
    multiply_batches(p, launch_portable)


def launch_portable(a: Array, b: Array, out: Array, bias: Tensor | None) -> None:
    """Choose the tile and launch."""
    real = float64 if a.dtype is dtypes.float64 else float32
    wide = min(out.shape[2:]) > SMALL.m and n_tiles_of(out.shape, LARGE) >= ENOUGH_TILES
    tile = LARGE if wide and real is float32 else SMALL
    a_along_k = abs(a.strides[3]) <= abs(a.strides[2])
    b_along_n = abs(b.strides[3]) <= abs(b.strides[2])
    launch(
        gemm_kernel(tile, real, a_along_k, b_along_n),
        n_tiles_of(out.shape, tile),
        tile.threads,
        a,
        b,
        # Without a bias any array of its type will do: it is not read.
        Array(out.pointer, (1,), (1,), a.dtype, "C") if bias is None else dense(bias),
        Array(out.pointer, out.shape, out.strides, out.dtype, "A", out.owner),
        bias is not None,
    )

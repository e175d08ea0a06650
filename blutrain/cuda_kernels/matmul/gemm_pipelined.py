"""The product of float32 on CUDA cores, for GPUs: `gemm.py`'s kernel with its loads ahead of use.

Same order of tiles and of sums as the portable kernel, so the same result bit for bit. A thread
loads its 16 values of one k from shared memory while it multiplies those of the k before: the
assembler does not unroll the portable kernel's loop over k, so each of its rounds waits for shared
memory (31 TFLOP/s on an H200, where this one has 35 and cuBLAS 50). A piece is 8 of K deep.

FLOPs: 2 M N K. Elements read: M N K (1/tile.m + 1/tile.n), most of them from the L2 cache. Bound by
the instructions around the multiply-adds.

Source: as for `gemm.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, uint32

from blutrain import dtypes
from blutrain.autograd.registry import variant
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.matmul.batches import (
    ENOUGH_TILES,
    Tile,
    multiply_batches,
    n_tiles_of,
)
from blutrain.cuda_kernels.matmul.gemm import LANES_M, LANES_N, PAD, STRIP, launch_portable
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.device import launch
from blutrain.device.array import Array
from blutrain.tensor import Tensor

PIPELINED = Tile(128, 128, 8, 8, 8)


@cache
def pipelined_kernel(tile: Tile, a_along_k: bool, b_along_n: bool) -> Any:
    """The kernel for one cut of the work and one way to read the operands.

    Args:
        tile: such as PIPELINED; `k` even.
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

    @cuda.jit(launch_bounds=(threads, 2))
    def matmul_pipelined_kernel(
        a,  # (outer, inner, M, K)
        b,  # (outer, inner, K, N)
        bias,  # (N,), read only with has_bias
        out,  # (outer, inner, M, N)
        has_bias,
    ):
        piece_a = cuda.shared.array((2, tile_k, pitch_a), float32, 16)
        piece_b = cuda.shared.array((2, tile_k, pitch_b), float32, 16)
        acc = cuda.local.array((thread_m, thread_n), float32)
        next_a = cuda.local.array(loads_a, float32)
        next_b = cuda.local.array(loads_b, float32)
        x = cuda.local.array(thread_m, float32)
        y = cuda.local.array(thread_n, float32)
        x2 = cuda.local.array(thread_m, float32)
        y2 = cuda.local.array(thread_n, float32)
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
                acc[i, j] = float32(0)

        # The first pieces, straight into shared memory; zeros outside the matrices.
        for i in range(loads_a):
            m = load_m + i * step_m
            k = load_ka + i * step_ka
            inside = row0 + m < n_rows and k < n_inner
            piece_a[0, k, PAD + m] = a[outer, inner, row0 + m, k] if inside else float32(0)
        for i in range(loads_b):
            n = load_n + i * step_n
            k = load_kb + i * step_kb
            inside = col0 + n < n_cols and k < n_inner
            piece_b[0, k, PAD + n] = b[outer, inner, k, col0 + n] if inside else float32(0)
        cuda.syncthreads()  # the pieces are complete

        half = uint32(0)
        for next_k in range(tile_k, n_inner + tile_k, tile_k):
            more = next_k < n_inner
            if more:  # the next pieces, into registers
                for i in range(loads_a):
                    m = uint32(row0 + load_m + i * step_m)
                    k = uint32(next_k + load_ka + i * step_ka)
                    next_a[i] = a[outer, inner, m, k] if m < n_rows and k < n_inner else float32(0)
                for i in range(loads_b):
                    n = uint32(col0 + load_n + i * step_n)
                    k = uint32(next_k + load_kb + i * step_kb)
                    next_b[i] = b[outer, inner, k, n] if n < n_cols and k < n_inner else float32(0)

            # Each k's values are loaded while those of the k before are multiplied.
            for i in range(thread_m):
                x[i] = piece_a[half, 0, PAD + m0 + i // 4 * (LANES_M * 4) + i % 4]
            for j in range(thread_n):
                y[j] = piece_b[half, 0, PAD + n0 + j // 4 * (LANES_N * 4) + j % 4]
            k = uint32(0)
            while k < tile_k:
                second = uint32(k + 1)
                for i in range(thread_m):
                    x2[i] = piece_a[half, second, PAD + m0 + i // 4 * (LANES_M * 4) + i % 4]
                for j in range(thread_n):
                    y2[j] = piece_b[half, second, PAD + n0 + j // 4 * (LANES_N * 4) + j % 4]
                for i in range(thread_m):
                    for j in range(thread_n):
                        acc[i, j] += x[i] * y[j]
                k = uint32(k + 2)
                third = uint32(k % tile_k)  # after the last k any will do
                for i in range(thread_m):
                    x[i] = piece_a[half, third, PAD + m0 + i // 4 * (LANES_M * 4) + i % 4]
                for j in range(thread_n):
                    y[j] = piece_b[half, third, PAD + n0 + j // 4 * (LANES_N * 4) + j % 4]
                for i in range(thread_m):
                    for j in range(thread_n):
                        acc[i, j] += x2[i] * y2[j]

            if more:  # into the half that nobody reads
                half = uint32(1) - half
                for i in range(loads_a):
                    piece_a[half, load_ka + i * step_ka, PAD + load_m + i * step_m] = next_a[i]
                for i in range(loads_b):
                    piece_b[half, load_kb + i * step_kb, PAD + load_n + i * step_n] = next_b[i]
                cuda.syncthreads()  # complete, and everyone is done with the other half

        # The results leave by way of piece_a, a group of rows of one row of warps at a time.
        for group in range(thread_m // 4):
            for strip in range(tile_m // warp_m):
                cuda.syncthreads()  # all are done with what is in piece_a
                if warp // warps_n == strip:
                    for i in range(4):
                        r = lane // LANES_N * 4 + i
                        for j in range(thread_n):
                            c = n0 + j // 4 * (LANES_N * 4) + j % 4
                            piece_a[r // tile_k, r % tile_k, c] = acc[group * 4 + i, j]
                cuda.syncthreads()  # the rows are complete
                e = t
                while e < LANES_M * 4 * tile_n:
                    r = e // tile_n
                    row = uint32(row0 + strip * warp_m + group * (LANES_M * 4) + r)
                    col = uint32(col0 + e % tile_n)
                    if row < n_rows and col < n_cols:
                        value = piece_a[r // tile_k, r % tile_k, e % tile_n]
                        if has_bias:
                            value += bias[col]
                        out[outer, inner, row, col] = value
                    e = uint32(e + threads)

    return matmul_pipelined_kernel


def _is_float32(p: Problem) -> bool:
    return p.a.dtype is dtypes.float32


@variant("matmul", name="pipelined", target="cuda", when=_is_float32)
def gemm_pipelined(p: Problem) -> None:
    """The product of float32 with CUDA cores, as `Problem` states it."""
    multiply_batches(p, _launch)


def _launch(a: Array, b: Array, out: Array, bias: Tensor | None) -> None:
    """Launch the large tiles; where those are too few or too wide, the portable kernel's."""
    tile = PIPELINED
    n_tiles = n_tiles_of(out.shape, tile)
    if n_tiles < ENOUGH_TILES or min(out.shape[2:]) <= tile.m // 2:
        launch_portable(a, b, out, bias)
        return
    a_along_k = abs(a.strides[3]) <= abs(a.strides[2])
    b_along_n = abs(b.strides[3]) <= abs(b.strides[2])
    launch(
        pipelined_kernel(tile, a_along_k, b_along_n),
        n_tiles,
        tile.threads,
        a,
        b,
        # Without a bias any array of its type will do: it is not read.
        Array(out.pointer, (1,), (1,), a.dtype, "C") if bias is None else dense(bias),
        Array(out.pointer, out.shape, out.strides, out.dtype, "A", out.owner),
        bias is not None,
    )

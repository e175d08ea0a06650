"""The kernel of attention's forward pass; its mathematics are in `attention.py`."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, int32, uint32

from blutrain.cuda_kernels.attention.tiles import Tile

LANES = 8  # partial maxima and sums over a chunk: short chains of dependent instructions
PAD = 4  # between the rows of a transposed chunk: fewer bank conflicts, still aligned to 16 bytes
LOWEST = -1e30  # a maximum before any key was seen: finite, so that LOWEST - LOWEST is 0


@cache
def forward_kernel(tile: Tile, real: Any) -> Any:
    """The kernel for one cut and one accumulator type."""
    head, columns, threads, chunk, only_on_cpu = tile
    pitch = chunk + PAD
    row_pitch = threads + 1  # threads that write one column of q to it hit different banks
    parts = head // columns
    infinity = math.inf

    @cuda.jit(launch_bounds=(threads, 1))
    def attention_forward_kernel(
        q,  # (B, H, Tq, D)
        k,  # (B, H, Tk, D)
        v,  # (B, H, Tk, D)
        y,  # (B, H, Tq, D)
        lse,  # (B, H, Tq)
        scale,
        causal,
    ):
        tile_q = cuda.shared.array((head, row_pitch), real)
        tile_k = cuda.shared.array((head, pitch), real, 16)
        tile_v = cuda.shared.array((chunk, columns), real, 16)
        tile_p = cuda.shared.array((chunk, threads), real)
        acc = cuda.local.array(columns, real)
        t = uint32(cuda.threadIdx.x)
        # Unsigned: there is no test for negative indices then, and LLVM sees the alignment. Two of
        # them together make a uint64, which does not mix with int64: hence the conversions below.
        # While loops: the assembler unrolls them; a range would hide the count from it.
        n_heads = uint32(q.shape[1])
        n_queries = uint32(q.shape[2])
        n_keys = uint32(k.shape[2])
        size = uint32(q.shape[3])
        # Query i sees the keys up to i + offset.
        offset = uint32(n_keys - n_queries) if causal else uint32(0)

        # Which head, which columns, which rows: the longest rows of a causal head come first.
        n_tiles = (n_queries + threads - 1) // threads
        matrix = uint32(uint32(cuda.blockIdx.x) // (n_tiles * parts))
        place = uint32(cuda.blockIdx.x) % (n_tiles * parts)
        b = uint32(matrix // n_heads)
        h = uint32(matrix % n_heads)
        row0 = uint32((n_tiles - 1 - place // parts) * threads)
        col0 = uint32(place % parts * columns)
        row = uint32(row0 + t)
        visible = min(n_keys, uint32(row + offset + 1)) if causal else n_keys
        block_visible = min(n_keys, uint32(row0 + threads + offset)) if causal else n_keys

        # Load q, scaled; zeros where there is none.
        e = t
        while e < head * threads:
            r = e // head
            d = e % head
            inside = row0 + r < n_queries and d < size
            tile_q[d, r] = q[b, h, uint32(row0 + r), d] * scale if inside else real(0)
            e = uint32(e + threads)
        largest = real(LOWEST)
        total = real(0)
        for c in range(columns):
            acc[c] = real(0)

        for key0 in range(0, block_visible, chunk):
            # Load a chunk of keys, transposed, and of values.
            e = t
            while e < head * chunk:
                j = e // head
                d = e % head
                inside = uint32(key0) + j < n_keys and d < size
                tile_k[d, j] = k[b, h, uint32(key0 + j), d] if inside else real(0)
                if d >= col0 and d < col0 + columns:
                    tile_v[j, d - col0] = v[b, h, uint32(key0 + j), d] if inside else real(0)
                e = uint32(e + threads)
            cuda.syncthreads()  # the chunk is complete (and q, the first time)

            left = int32(visible) - int32(key0)  # how many of the chunk's keys the row sees
            if left > 0:
                # s = q kᵀ
                s = cuda.local.array(chunk, real)
                for j in range(chunk):
                    s[j] = real(0)
                d = uint32(0)
                while d < head:
                    x = tile_q[d, t]
                    for j in range(chunk):
                        s[j] += x * tile_k[d, j]
                    d = uint32(d + 1)
                if left < chunk:
                    for j in range(chunk):
                        s[j] = s[j] if int32(j) < left else real(-infinity)

                # The largest score so far, and what the older sums must shrink by.
                part = cuda.local.array(LANES, real)
                for i in range(LANES):
                    part[i] = s[i]
                for j in range(LANES, chunk, LANES):
                    for i in range(LANES):
                        part[i] = max(part[i], s[j + i])
                for i in range(LANES // 2):
                    part[i] = max(part[i], part[i + LANES // 2])
                now = max(max(largest, max(part[0], part[1])), max(part[2], part[3]))
                fade = math.exp(largest - now)
                largest = now

                # p = exp(s - largest) and its sum
                for j in range(chunk):
                    s[j] = math.exp(s[j] - now)
                for i in range(LANES):
                    part[i] = s[i]
                for j in range(LANES, chunk, LANES):
                    for i in range(LANES):
                        part[i] += s[j + i]
                for i in range(LANES // 2):
                    part[i] += part[i + LANES // 2]
                total = total * fade + ((part[0] + part[2]) + (part[1] + part[3]))

                # y += p v. The thread's own column of tile_p holds p, so there is no barrier; an
                # array indexed by the variable of a rolled loop could not stay in registers.
                for c in range(columns):
                    acc[c] *= fade
                for j in range(chunk):
                    tile_p[j, t] = s[j]
                j = uint32(0)
                while j < chunk:
                    p = tile_p[j, t]
                    for c in range(columns):
                        acc[c] += p * tile_v[j, c]
                    j = uint32(j + 1)
            cuda.syncthreads()  # all are done with the chunk

        if row < n_queries:
            inverse = real(1) / total
            for c in range(columns):
                if col0 + c < size:
                    y[b, h, row, col0 + c] = acc[c] * inverse
            if col0 == 0:
                lse[b, h, row] = largest + math.log(total)

    attention_forward_kernel.only_on_cpu = only_on_cpu
    return attention_forward_kernel

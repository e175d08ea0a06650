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
    head, columns, threads, rows, chunk = tile
    block_rows = tile.block_rows
    pitch = chunk + PAD
    row_pitch = block_rows + 1  # threads that write one column of q to it hit different banks
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
        tile_p = cuda.shared.array((chunk, block_rows), real)
        acc = cuda.local.array((rows, columns), real)
        largest = cuda.local.array(rows, real)
        total = cuda.local.array(rows, real)
        t = uint32(cuda.threadIdx.x)
        # Unsigned: there is no test for negative indices then, and LLVM sees the alignment. Two of
        # them together make a uint64, which does not mix with int64: hence the conversions below.
        n_heads = uint32(q.shape[1])
        n_queries = uint32(q.shape[2])
        n_keys = uint32(k.shape[2])
        size = uint32(q.shape[3])
        offset = (
            uint32(n_keys - n_queries) if causal else uint32(0)
        )  # query i sees keys up to i + offset

        # Which head, which columns, which rows: the longest rows of a causal head come first.
        n_tiles = (n_queries + block_rows - 1) // block_rows
        matrix = uint32(uint32(cuda.blockIdx.x) // (n_tiles * parts))
        place = uint32(cuda.blockIdx.x) % (n_tiles * parts)
        b = uint32(matrix // n_heads)
        h = uint32(matrix % n_heads)
        row0 = uint32((n_tiles - 1 - place // parts) * block_rows)
        col0 = uint32(place % parts * columns)

        # Load q, scaled; zeros where there is none.
        for e in range(t, head * block_rows, threads):
            r = uint32(e) // head
            d = uint32(e) % head
            inside = row0 + r < n_queries and d < size
            tile_q[d, r] = q[b, h, row0 + r, d] * scale if inside else real(0)
        for r in range(rows):
            largest[r] = real(LOWEST)
            total[r] = real(0)
            for c in range(columns):
                acc[r, c] = real(0)

        n_seen = min(n_keys, uint32(row0 + block_rows + offset)) if causal else n_keys
        for key0 in range(0, n_seen, chunk):
            # Load a chunk of keys, transposed, and of values.
            for e in range(t, head * chunk, threads):
                j = uint32(e) // head
                d = uint32(e) % head
                inside = uint32(key0) + j < n_keys and d < size
                tile_k[d, j] = k[b, h, uint32(key0) + j, d] if inside else real(0)
            for e in range(t, columns * chunk, threads):
                j = uint32(e) // columns
                c = uint32(e) % columns
                inside = uint32(key0) + j < n_keys and col0 + c < size
                tile_v[j, c] = v[b, h, uint32(key0) + j, col0 + c] if inside else real(0)
            cuda.syncthreads()  # the chunk is complete (and q, the first time)

            # Scores of this thread's rows.
            s = cuda.local.array((rows, chunk), real)
            for r in range(rows):
                for j in range(chunk):
                    s[r, j] = real(0)
            for d in range(head):
                for r in range(rows):
                    x = tile_q[d, t + r * threads]
                    for j in range(chunk):
                        s[r, j] += x * tile_k[d, j]

            # Online softmax: exp(s - largest), and what the older sums must shrink by.
            for r in range(rows):
                row = row0 + (t + r * threads)
                visible = min(n_keys, uint32(row + offset + 1)) if causal else n_keys
                if uint32(key0) + chunk > visible:
                    left = int32(visible) - int32(key0)
                    for j in range(chunk):
                        s[r, j] = s[r, j] if int32(j) < left else real(-infinity)
                part = cuda.local.array(LANES, real)
                for i in range(LANES):
                    part[i] = s[r, i]
                for j in range(LANES, chunk, LANES):
                    for i in range(LANES):
                        part[i] = max(part[i], s[r, j + i])
                for i in range(LANES // 2):
                    part[i] = max(part[i], part[i + LANES // 2])
                now = max(max(largest[r], max(part[0], part[1])), max(part[2], part[3]))
                fade = math.exp(largest[r] - now)
                largest[r] = now
                for j in range(chunk):
                    s[r, j] = math.exp(s[r, j] - now)
                for i in range(LANES):
                    part[i] = s[r, i]
                for j in range(LANES, chunk, LANES):
                    for i in range(LANES):
                        part[i] += s[r, j + i]
                for i in range(LANES // 2):
                    part[i] += part[i + LANES // 2]
                total[r] = total[r] * fade + ((part[0] + part[2]) + (part[1] + part[3]))
                for c in range(columns):
                    acc[r, c] *= fade
                for j in range(chunk):  # this thread's own cells: no barrier
                    tile_p[j, t + r * threads] = s[r, j]

            # y += p v
            for j in range(chunk):
                for r in range(rows):
                    p = tile_p[j, t + r * threads]
                    for c in range(columns):
                        acc[r, c] += p * tile_v[j, c]
            cuda.syncthreads()  # all are done with the chunk

        for r in range(rows):
            row = row0 + (t + r * threads)
            if row < n_queries:
                inverse = real(1) / total[r]
                for c in range(columns):
                    if col0 + c < size:
                        y[b, h, row, col0 + c] = acc[r, c] * inverse
                if col0 == 0:
                    lse[b, h, row] = largest[r] + math.log(total[r])

    return attention_forward_kernel

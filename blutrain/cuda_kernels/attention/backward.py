"""The kernels of attention's backward pass; their mathematics are in `attention.py`."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, int32, uint32

from blutrain.cuda_kernels.attention.forward import PAD
from blutrain.cuda_kernels.attention.tiles import Tile


@cache
def dq_kernel(tile: Tile, real: Any) -> Any:
    """dq and delta: a thread owns queries and walks over the keys."""
    head, columns, threads, rows, chunk = tile
    block_rows = tile.block_rows
    pitch = chunk + PAD
    row_pitch = block_rows + 1  # threads that write one column of q to it hit different banks
    parts = head // columns
    infinity = math.inf

    @cuda.jit(launch_bounds=(threads, 1))
    def attention_backward_dq_kernel(
        q,  # (B, H, Tq, D)
        k,  # (B, H, Tk, D)
        v,  # (B, H, Tk, D)
        y,  # (B, H, Tq, D)
        dy,  # (B, H, Tq, D)
        lse,  # (B, H, Tq)
        delta,  # (B, H, Tq), written
        dq,  # (B, H, Tq, D), written
        scale,
        causal,
    ):
        tile_q = cuda.shared.array((head, row_pitch), real)
        tile_dy = cuda.shared.array((head, row_pitch), real)
        tile_k = cuda.shared.array((head, pitch), real, 16)
        tile_v = cuda.shared.array((head, pitch), real, 16)
        rows_k = cuda.shared.array((chunk, columns), real, 16)
        tile_ds = cuda.shared.array((chunk, block_rows), real)
        acc = cuda.local.array((rows, columns), real)
        row_delta = cuda.local.array(rows, real)
        row_lse = cuda.local.array(rows, real)
        t = uint32(cuda.threadIdx.x)
        n_heads = uint32(q.shape[1])
        n_queries = uint32(q.shape[2])
        n_keys = uint32(k.shape[2])
        size = uint32(q.shape[3])
        offset = uint32(n_keys - n_queries) if causal else uint32(0)

        n_tiles = (n_queries + block_rows - 1) // block_rows
        matrix = uint32(uint32(cuda.blockIdx.x) // (n_tiles * parts))
        place = uint32(cuda.blockIdx.x) % (n_tiles * parts)
        b = uint32(matrix // n_heads)
        h = uint32(matrix % n_heads)
        row0 = uint32((n_tiles - 1 - place // parts) * block_rows)
        col0 = uint32(place % parts * columns)

        # delta = Σ_d dy y, with y in q's place for a moment.
        for e in range(t, head * block_rows, threads):
            r = uint32(e) // head
            d = uint32(e) % head
            inside = row0 + r < n_queries and d < size
            tile_dy[d, r] = dy[b, h, row0 + r, d] if inside else real(0)
            tile_q[d, r] = y[b, h, row0 + r, d] if inside else real(0)
        cuda.syncthreads()  # both are complete
        for r in range(rows):
            row = row0 + (t + r * threads)
            row_delta[r] = real(0)
            for d in range(head):
                row_delta[r] += tile_dy[d, t + r * threads] * tile_q[d, t + r * threads]
            row_lse[r] = real(0)
            if row < n_queries:
                row_lse[r] = lse[b, h, row]
                if col0 == 0:
                    delta[b, h, row] = row_delta[r]
            for c in range(columns):
                acc[r, c] = real(0)
        cuda.syncthreads()  # all are done with y
        for e in range(t, head * block_rows, threads):
            r = uint32(e) // head
            d = uint32(e) % head
            inside = row0 + r < n_queries and d < size
            tile_q[d, r] = q[b, h, row0 + r, d] * scale if inside else real(0)

        n_seen = min(n_keys, uint32(row0 + block_rows + offset)) if causal else n_keys
        for key0 in range(0, n_seen, chunk):
            for e in range(t, head * chunk, threads):
                j = uint32(e) // head
                d = uint32(e) % head
                inside = uint32(key0) + j < n_keys and d < size
                tile_k[d, j] = k[b, h, uint32(key0) + j, d] if inside else real(0)
                tile_v[d, j] = v[b, h, uint32(key0) + j, d] if inside else real(0)
            for e in range(t, columns * chunk, threads):
                j = uint32(e) // columns
                c = uint32(e) % columns
                inside = uint32(key0) + j < n_keys and col0 + c < size
                rows_k[j, c] = k[b, h, uint32(key0) + j, col0 + c] if inside else real(0)
            cuda.syncthreads()  # the chunk is complete (and q, the first time)

            # s = q kᵀ and dp = dy vᵀ
            s = cuda.local.array((rows, chunk), real)
            dp = cuda.local.array((rows, chunk), real)
            for r in range(rows):
                for j in range(chunk):
                    s[r, j] = real(0)
                    dp[r, j] = real(0)
            for d in range(head):
                for r in range(rows):
                    x = tile_q[d, t + r * threads]
                    g = tile_dy[d, t + r * threads]
                    for j in range(chunk):
                        s[r, j] += x * tile_k[d, j]
                    for j in range(chunk):
                        dp[r, j] += g * tile_v[d, j]

            # ds = p (dp - delta), p = exp(s - lse)
            for r in range(rows):
                row = row0 + (t + r * threads)
                visible = min(n_keys, uint32(row + offset + 1)) if causal else n_keys
                if uint32(key0) + chunk > visible:
                    left = int32(visible) - int32(key0)
                    for j in range(chunk):
                        s[r, j] = s[r, j] if int32(j) < left else real(-infinity)
                for j in range(chunk):
                    s[r, j] = math.exp(s[r, j] - row_lse[r]) * (dp[r, j] - row_delta[r])
                for j in range(chunk):  # this thread's own cells: no barrier
                    tile_ds[j, t + r * threads] = s[r, j]

            # dq += ds k
            for j in range(chunk):
                for r in range(rows):
                    g = tile_ds[j, t + r * threads]
                    for c in range(columns):
                        acc[r, c] += g * rows_k[j, c]
            cuda.syncthreads()  # all are done with the chunk

        for r in range(rows):
            row = row0 + (t + r * threads)
            if row < n_queries:
                for c in range(columns):
                    if col0 + c < size:
                        dq[b, h, row, col0 + c] = acc[r, c] * scale

    return attention_backward_dq_kernel


@cache
def dkv_kernel(tile: Tile, real: Any) -> Any:
    """dk and dv: a thread owns keys and walks over the queries that see them."""
    head, columns, threads, rows, chunk = tile
    block_rows = tile.block_rows
    pitch = chunk + PAD
    row_pitch = block_rows + 1  # threads that write one column of k to it hit different banks
    parts = head // columns
    infinity = math.inf

    @cuda.jit(launch_bounds=(threads, 1))
    def attention_backward_dkv_kernel(
        q,  # (B, H, Tq, D)
        k,  # (B, H, Tk, D)
        v,  # (B, H, Tk, D)
        dy,  # (B, H, Tq, D)
        lse,  # (B, H, Tq)
        delta,  # (B, H, Tq)
        dk,  # (B, H, Tk, D), written
        dv,  # (B, H, Tk, D), written
        scale,
        causal,
    ):
        tile_k = cuda.shared.array((head, row_pitch), real)
        tile_v = cuda.shared.array((head, row_pitch), real)
        tile_q = cuda.shared.array((head, pitch), real, 16)
        tile_dy = cuda.shared.array((head, pitch), real, 16)
        rows_q = cuda.shared.array((chunk, columns), real, 16)
        rows_dy = cuda.shared.array((chunk, columns), real, 16)
        tile_p = cuda.shared.array((chunk, block_rows), real)
        chunk_lse = cuda.shared.array(chunk, real, 16)
        chunk_delta = cuda.shared.array(chunk, real, 16)
        acc_k = cuda.local.array((rows, columns), real)
        acc_v = cuda.local.array((rows, columns), real)
        t = uint32(cuda.threadIdx.x)
        n_heads = uint32(q.shape[1])
        n_queries = uint32(q.shape[2])
        n_keys = uint32(k.shape[2])
        size = uint32(q.shape[3])
        offset = uint32(n_keys - n_queries) if causal else uint32(0)

        # The keys that most queries see come first.
        n_tiles = (n_keys + block_rows - 1) // block_rows
        matrix = uint32(uint32(cuda.blockIdx.x) // (n_tiles * parts))
        place = uint32(cuda.blockIdx.x) % (n_tiles * parts)
        b = uint32(matrix // n_heads)
        h = uint32(matrix % n_heads)
        row0 = uint32(place // parts * block_rows)
        col0 = uint32(place % parts * columns)

        for e in range(t, head * block_rows, threads):
            r = uint32(e) // head
            d = uint32(e) % head
            inside = row0 + r < n_keys and d < size
            tile_k[d, r] = k[b, h, row0 + r, d] if inside else real(0)
            tile_v[d, r] = v[b, h, row0 + r, d] if inside else real(0)
        for r in range(rows):
            for c in range(columns):
                acc_k[r, c] = real(0)
                acc_v[r, c] = real(0)

        # The first query that sees the block's first key.
        start = uint32(row0 - offset) if causal and row0 > offset else uint32(0)
        for query0 in range(start, n_queries, chunk):
            for e in range(t, head * chunk, threads):
                j = uint32(e) // head
                d = uint32(e) % head
                inside = uint32(query0) + j < n_queries and d < size
                tile_q[d, j] = q[b, h, uint32(query0) + j, d] * scale if inside else real(0)
                tile_dy[d, j] = dy[b, h, uint32(query0) + j, d] if inside else real(0)
            for e in range(t, columns * chunk, threads):
                j = uint32(e) // columns
                c = uint32(e) % columns
                inside = uint32(query0) + j < n_queries and col0 + c < size
                rows_q[j, c] = q[b, h, uint32(query0) + j, col0 + c] * scale if inside else real(0)
                rows_dy[j, c] = dy[b, h, uint32(query0) + j, col0 + c] if inside else real(0)
            if t < chunk:  # past the end: p = exp(s - inf) = 0
                inside = uint32(query0) + t < n_queries
                chunk_lse[t] = lse[b, h, uint32(query0) + t] if inside else real(infinity)
                chunk_delta[t] = delta[b, h, uint32(query0) + t] if inside else real(0)
            cuda.syncthreads()  # the chunk is complete (and k and v, the first time)

            # s = q kᵀ and dp = dy vᵀ, here one column of each
            s = cuda.local.array((rows, chunk), real)
            dp = cuda.local.array((rows, chunk), real)
            for r in range(rows):
                for j in range(chunk):
                    s[r, j] = real(0)
                    dp[r, j] = real(0)
            for d in range(head):
                for r in range(rows):
                    x = tile_k[d, t + r * threads]
                    g = tile_v[d, t + r * threads]
                    for j in range(chunk):
                        s[r, j] += x * tile_q[d, j]
                    for j in range(chunk):
                        dp[r, j] += g * tile_dy[d, j]

            # p = exp(s - lse), then dv += pᵀ dy
            for r in range(rows):
                key = row0 + (t + r * threads)
                hidden = int32(key - offset) - int32(query0) if causal else int32(0)
                if hidden > 0:
                    for j in range(chunk):
                        s[r, j] = s[r, j] if int32(j) >= hidden else real(-infinity)
                for j in range(chunk):
                    s[r, j] = math.exp(s[r, j] - chunk_lse[j])
                for j in range(chunk):  # this thread's own cells: no barrier
                    tile_p[j, t + r * threads] = s[r, j]
            for j in range(chunk):
                for r in range(rows):
                    p = tile_p[j, t + r * threads]
                    for c in range(columns):
                        acc_v[r, c] += p * rows_dy[j, c]

            # ds = p (dp - delta), then dk += dsᵀ q
            for r in range(rows):
                for j in range(chunk):
                    s[r, j] = s[r, j] * (dp[r, j] - chunk_delta[j])
                for j in range(chunk):
                    tile_p[j, t + r * threads] = s[r, j]
            for j in range(chunk):
                for r in range(rows):
                    g = tile_p[j, t + r * threads]
                    for c in range(columns):
                        acc_k[r, c] += g * rows_q[j, c]
            cuda.syncthreads()  # all are done with the chunk

        for r in range(rows):
            key = row0 + (t + r * threads)
            if key < n_keys:
                for c in range(columns):
                    if col0 + c < size:
                        dk[b, h, key, col0 + c] = acc_k[r, c]
                        dv[b, h, key, col0 + c] = acc_v[r, c]

    return attention_backward_dkv_kernel

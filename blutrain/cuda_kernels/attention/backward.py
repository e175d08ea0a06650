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
    head, columns, threads, chunk, only_on_cpu = tile
    pitch = chunk + PAD
    row_pitch = threads + 1  # threads that write one column of q to it hit different banks
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
        tile_ds = cuda.shared.array((chunk, threads), real)
        acc = cuda.local.array(columns, real)
        t = uint32(cuda.threadIdx.x)
        n_heads = uint32(q.shape[1])
        n_queries = uint32(q.shape[2])
        n_keys = uint32(k.shape[2])
        size = uint32(q.shape[3])
        offset = uint32(n_keys - n_queries) if causal else uint32(0)

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

        # delta = Σ_d dy y, with y in q's place for a moment.
        e = t
        while e < head * threads:
            r = e // head
            d = e % head
            inside = row0 + r < n_queries and d < size
            tile_dy[d, r] = dy[b, h, uint32(row0 + r), d] if inside else real(0)
            tile_q[d, r] = y[b, h, uint32(row0 + r), d] if inside else real(0)
            e = uint32(e + threads)
        cuda.syncthreads()  # both are complete
        row_delta = real(0)
        for d in range(head):
            row_delta += tile_dy[d, t] * tile_q[d, t]
        row_lse = real(0)
        if row < n_queries:
            row_lse = real(lse[b, h, row])
            if col0 == 0:
                delta[b, h, row] = row_delta
        for c in range(columns):
            acc[c] = real(0)
        cuda.syncthreads()  # all are done with y
        e = t
        while e < head * threads:
            r = e // head
            d = e % head
            inside = row0 + r < n_queries and d < size
            tile_q[d, r] = q[b, h, uint32(row0 + r), d] * scale if inside else real(0)
            e = uint32(e + threads)

        for key0 in range(0, block_visible, chunk):
            # Load a chunk of keys, both ways round, and of values, transposed.
            e = t
            while e < head * chunk:
                j = e // head
                d = e % head
                inside = uint32(key0) + j < n_keys and d < size
                x = k[b, h, uint32(key0 + j), d] if inside else real(0)
                tile_k[d, j] = x
                if d >= col0 and d < col0 + columns:
                    rows_k[j, d - col0] = x
                tile_v[d, j] = v[b, h, uint32(key0 + j), d] if inside else real(0)
                e = uint32(e + threads)
            cuda.syncthreads()  # the chunk is complete (and q, the first time)

            left = int32(visible) - int32(key0)  # how many of the chunk's keys the row sees
            if left > 0:
                # s = q kᵀ and dp = dy vᵀ
                s = cuda.local.array(chunk, real)
                dp = cuda.local.array(chunk, real)
                for j in range(chunk):
                    s[j] = real(0)
                    dp[j] = real(0)
                d = uint32(0)
                while d < head:
                    x = tile_q[d, t]
                    for j in range(chunk):
                        s[j] += x * tile_k[d, j]
                    x = tile_dy[d, t]
                    for j in range(chunk):
                        dp[j] += x * tile_v[d, j]
                    d = uint32(d + 1)
                if left < chunk:
                    for j in range(chunk):
                        s[j] = s[j] if int32(j) < left else real(-infinity)

                # ds = p (dp - delta), p = exp(s - lse)
                for j in range(chunk):
                    s[j] = math.exp(s[j] - row_lse) * (dp[j] - row_delta)
                for j in range(chunk):  # the thread's own column: no barrier
                    tile_ds[j, t] = s[j]

                # dq += ds k
                j = uint32(0)
                while j < chunk:
                    x = tile_ds[j, t]
                    for c in range(columns):
                        acc[c] += x * rows_k[j, c]
                    j = uint32(j + 1)
            cuda.syncthreads()  # all are done with the chunk

        if row < n_queries:
            for c in range(columns):
                if col0 + c < size:
                    dq[b, h, row, col0 + c] = acc[c] * scale

    attention_backward_dq_kernel.only_on_cpu = only_on_cpu
    return attention_backward_dq_kernel


@cache
def dkv_kernel(tile: Tile, real: Any) -> Any:
    """dk and dv: a thread owns keys and walks over the queries that see them."""
    head, columns, threads, chunk, only_on_cpu = tile
    pitch = chunk + PAD
    row_pitch = threads + 1  # threads that write one column of k to it hit different banks
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
        tile_p = cuda.shared.array((chunk, threads), real)
        chunk_lse = cuda.shared.array(chunk, real, 16)
        chunk_delta = cuda.shared.array(chunk, real, 16)
        acc_k = cuda.local.array(columns, real)
        acc_v = cuda.local.array(columns, real)
        t = uint32(cuda.threadIdx.x)
        n_heads = uint32(q.shape[1])
        n_queries = uint32(q.shape[2])
        n_keys = uint32(k.shape[2])
        size = uint32(q.shape[3])
        offset = uint32(n_keys - n_queries) if causal else uint32(0)

        # The keys that most queries see come first.
        n_tiles = (n_keys + threads - 1) // threads
        matrix = uint32(uint32(cuda.blockIdx.x) // (n_tiles * parts))
        place = uint32(cuda.blockIdx.x) % (n_tiles * parts)
        b = uint32(matrix // n_heads)
        h = uint32(matrix % n_heads)
        row0 = uint32(place // parts * threads)
        col0 = uint32(place % parts * columns)
        row = uint32(row0 + t)

        e = t
        while e < head * threads:
            r = e // head
            d = e % head
            inside = row0 + r < n_keys and d < size
            tile_k[d, r] = k[b, h, uint32(row0 + r), d] if inside else real(0)
            tile_v[d, r] = v[b, h, uint32(row0 + r), d] if inside else real(0)
            e = uint32(e + threads)
        for c in range(columns):
            acc_k[c] = real(0)
            acc_v[c] = real(0)

        # From the first query that sees the block's first key.
        start = uint32(row0 - offset) if causal and row0 > offset else uint32(0)
        for query0 in range(start, n_queries, chunk):
            # Load a chunk of queries and of dy, both ways round.
            e = t
            while e < head * chunk:
                j = e // head
                d = e % head
                inside = uint32(query0) + j < n_queries and d < size
                x = q[b, h, uint32(query0 + j), d] * scale if inside else real(0)
                g = dy[b, h, uint32(query0 + j), d] if inside else real(0)
                tile_q[d, j] = x
                tile_dy[d, j] = g
                if d >= col0 and d < col0 + columns:
                    rows_q[j, d - col0] = x
                    rows_dy[j, d - col0] = g
                e = uint32(e + threads)
            if t < chunk:  # past the end: p = exp(s - inf) = 0
                inside = uint32(query0) + t < n_queries
                chunk_lse[t] = lse[b, h, uint32(query0) + t] if inside else real(infinity)
                chunk_delta[t] = delta[b, h, uint32(query0) + t] if inside else real(0)
            cuda.syncthreads()  # the chunk is complete (and k and v, the first time)

            # How many of the chunk's queries come before the key.
            hidden = int32(row) - int32(offset) - int32(query0) if causal else int32(0)
            if hidden < chunk:
                # s = q kᵀ and dp = dy vᵀ, here one column of each
                s = cuda.local.array(chunk, real)
                dp = cuda.local.array(chunk, real)
                for j in range(chunk):
                    s[j] = real(0)
                    dp[j] = real(0)
                d = uint32(0)
                while d < head:
                    x = tile_k[d, t]
                    for j in range(chunk):
                        s[j] += x * tile_q[d, j]
                    x = tile_v[d, t]
                    for j in range(chunk):
                        dp[j] += x * tile_dy[d, j]
                    d = uint32(d + 1)
                if hidden > 0:
                    for j in range(chunk):
                        s[j] = s[j] if int32(j) >= hidden else real(-infinity)

                # p = exp(s - lse), then dv += pᵀ dy
                for j in range(chunk):
                    s[j] = math.exp(s[j] - chunk_lse[j])
                for j in range(chunk):  # the thread's own column: no barrier
                    tile_p[j, t] = s[j]
                j = uint32(0)
                while j < chunk:
                    x = tile_p[j, t]
                    for c in range(columns):
                        acc_v[c] += x * rows_dy[j, c]
                    j = uint32(j + 1)

                # ds = p (dp - delta), then dk += dsᵀ q
                for j in range(chunk):
                    tile_p[j, t] = s[j] * (dp[j] - chunk_delta[j])
                j = uint32(0)
                while j < chunk:
                    x = tile_p[j, t]
                    for c in range(columns):
                        acc_k[c] += x * rows_q[j, c]
                    j = uint32(j + 1)
            cuda.syncthreads()  # all are done with the chunk

        if row < n_keys:
            for c in range(columns):
                if col0 + c < size:
                    dk[b, h, row, col0 + c] = acc_k[c]
                    dv[b, h, row, col0 + c] = acc_v[c]

    attention_backward_dkv_kernel.only_on_cpu = only_on_cpu
    return attention_backward_dkv_kernel

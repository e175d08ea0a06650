"""The kernels of bench_cpu_executor.py: plain `@cuda.jit`, as the textbooks write them.

Imported by the process that measures Numba's simulator too, so there is nothing here that the
simulator lacks (shuffles, for one).
"""

from __future__ import annotations

import math

from numba import cuda, float32

ADD_N = 100_000
ADD_BLOCK = 256

TILE = 16
MATMUL_N = 64

NORM_ROWS, NORM_COLS, NORM_BLOCK = 64, 128, 128

# A block of the SGEMM: its tile of c, its step along k, and a thread's share of the tile.
BLOCK_M = BLOCK_N = 128
BLOCK_K = 8
THREAD_M = THREAD_N = 8
SGEMM_THREADS = BLOCK_M * BLOCK_N // (THREAD_M * THREAD_N)

# Flash attention: queries of a block, keys of a step, head size; a thread's share of the output.
QUERIES, KEYS, HEAD = 128, 128, 64
ROWS, COLS = 4, 32
ATTENTION_THREADS = QUERIES * HEAD // (ROWS * COLS)
# Where the parts of its shared memory begin, and its size, in elements.
KEY = QUERIES * HEAD
VALUE = KEY + HEAD * KEYS
SCORE = VALUE + KEYS * HEAD
TOP = SCORE + QUERIES * KEYS
TOTAL = TOP + QUERIES
SHRINK = TOTAL + QUERIES
ATTENTION_SHARED = SHRINK + QUERIES


@cuda.jit
def add_kernel(
    x,  # (n,)
    y,  # (n,)
    z,  # (n,)
):
    """One element a thread."""
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i] + y[i]


@cuda.jit
def matmul_kernel(
    a,  # (M, K)
    b,  # (K, N)
    c,  # (M, N)
):
    """One element of c a thread; tiles of a and b in shared memory."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    acc = float32(0)
    for k0 in range(0, a.shape[1], TILE):
        tile_a[ty, tx] = a[row, k0 + tx]
        tile_b[ty, tx] = b[k0 + ty, col]
        cuda.syncthreads()  # the tiles are complete
        for k in range(TILE):
            acc += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()  # nobody reads them any more
    c[row, col] = acc


@cuda.jit
def layer_norm_kernel(
    x,  # (n_rows, n_cols)
    weight,  # (n_cols,)
    bias,  # (n_cols,)
    y,  # (n_rows, n_cols)
    eps,
):
    """A block a row; sums go down a tree in shared memory."""
    partial = cuda.shared.array(NORM_BLOCK, float32)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    n_cols = x.shape[1]

    acc = float32(0)
    for col in range(t, n_cols, NORM_BLOCK):
        acc += x[row, col]
    partial[t] = acc
    cuda.syncthreads()
    half = NORM_BLOCK // 2
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    mean = partial[0] / float32(n_cols)
    cuda.syncthreads()  # all have read partial[0]

    acc = float32(0)
    for col in range(t, n_cols, NORM_BLOCK):
        acc += (x[row, col] - mean) * (x[row, col] - mean)
    partial[t] = acc
    cuda.syncthreads()
    half = NORM_BLOCK // 2
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    rstd = float32(1) / math.sqrt(partial[0] / float32(n_cols) + eps)

    for col in range(t, n_cols, NORM_BLOCK):
        y[row, col] = (x[row, col] - mean) * rstd * weight[col] + bias[col]


@cuda.jit
def sgemm_kernel(
    a,  # (M, K), M a multiple of BLOCK_M, K of BLOCK_K
    b,  # (K, N), N a multiple of BLOCK_N
    c,  # (M, N)
):
    """8 x 8 elements of c a thread, in registers; two buffers, one barrier a step."""
    tile_a = cuda.shared.array((2, BLOCK_K, BLOCK_M), float32)
    tile_b = cuda.shared.array((2, BLOCK_K, BLOCK_N), float32)
    acc = cuda.local.array((THREAD_M, THREAD_N), float32)
    next_a = cuda.local.array(4, float32)
    next_b = cuda.local.array(4, float32)
    t = cuda.threadIdx.x
    row0 = cuda.blockIdx.y * BLOCK_M
    col0 = cuda.blockIdx.x * BLOCK_N
    n_inner = a.shape[1]
    a_row, a_col = t // 2, t % 2 * 4
    b_row, b_col = t // 32, t % 32 * 4
    m0 = t // (BLOCK_N // THREAD_N) * THREAD_M
    n0 = t % (BLOCK_N // THREAD_N) * THREAD_N
    for i in range(THREAD_M):
        for j in range(THREAD_N):
            acc[i, j] = 0
    for q in range(4):
        tile_a[0, a_col + q, a_row] = a[row0 + a_row, a_col + q]
        tile_b[0, b_row, b_col + q] = b[b_row, col0 + b_col + q]
    cuda.syncthreads()
    now = 0
    for k0 in range(0, n_inner, BLOCK_K):
        # The next tiles are on their way while these are multiplied.
        if k0 + BLOCK_K < n_inner:
            for q in range(4):
                next_a[q] = a[row0 + a_row, k0 + BLOCK_K + a_col + q]
                next_b[q] = b[k0 + BLOCK_K + b_row, col0 + b_col + q]
        for k in range(BLOCK_K):
            for i in range(THREAD_M):
                for j in range(THREAD_N):
                    acc[i, j] += tile_a[now, k, m0 + i] * tile_b[now, k, n0 + j]
        if k0 + BLOCK_K < n_inner:
            now = 1 - now
            for q in range(4):
                tile_a[now, a_col + q, a_row] = next_a[q]
                tile_b[now, b_row, b_col + q] = next_b[q]
            cuda.syncthreads()
    for i in range(THREAD_M):
        for j in range(THREAD_N):
            c[row0 + m0 + i, col0 + n0 + j] = acc[i, j]


@cuda.jit(fastmath=True)
def flash_attention_kernel(
    q,  # (H, T, HEAD), T a multiple of QUERIES and of KEYS
    k,  # (H, T, HEAD)
    v,  # (H, T, HEAD)
    out,  # (H, T, HEAD)
    scale,
):
    """QUERIES rows a block; both products register-tiled as above, softmax as it goes along."""
    memory = cuda.shared.array(0, float32)  # more than the 48 KiB that a kernel can declare
    query = memory[:KEY]  # (QUERIES, HEAD)
    key = memory[KEY:VALUE]  # (HEAD, KEYS)
    value = memory[VALUE:SCORE]  # (KEYS, HEAD)
    score = memory[SCORE:TOP]  # (QUERIES, KEYS)
    top = memory[TOP:TOTAL]  # (QUERIES,)
    total = memory[TOTAL:SHRINK]  # (QUERIES,)
    correction = memory[SHRINK:]  # (QUERIES,)
    tile = cuda.local.array((ROWS, COLS), float32)  # of scores, then of the output
    acc = cuda.local.array((ROWS, COLS), float32)
    t = cuda.threadIdx.x
    head = cuda.blockIdx.y
    row0 = cuda.blockIdx.x * QUERIES
    m0 = t // (HEAD // COLS) * ROWS
    n0 = t % (HEAD // COLS) * COLS
    for m in range(t, QUERIES, ATTENTION_THREADS):
        top[m] = -1e30
        total[m] = 0
        for d in range(HEAD):
            query[m * HEAD + d] = q[head, row0 + m, d] * scale
    for i in range(ROWS):
        for j in range(COLS):
            acc[i, j] = 0
    for k0 in range(0, k.shape[1], KEYS):
        for n in range(t, KEYS, ATTENTION_THREADS):
            for d in range(HEAD):
                key[d * KEYS + n] = k[head, k0 + n, d]
                value[n * HEAD + d] = v[head, k0 + n, d]
        cuda.syncthreads()  # keys and values are complete
        for n1 in range(n0, KEYS, HEAD):
            for i in range(ROWS):
                for j in range(COLS):
                    tile[i, j] = 0
            for d in range(HEAD):
                for i in range(ROWS):
                    for j in range(COLS):
                        tile[i, j] += query[(m0 + i) * HEAD + d] * key[d * KEYS + n1 + j]
            for i in range(ROWS):
                for j in range(COLS):
                    score[(m0 + i) * KEYS + n1 + j] = tile[i, j]
        cuda.syncthreads()  # scores are complete
        for m in range(t, QUERIES, ATTENTION_THREADS):
            new_top = top[m]
            for n in range(KEYS):
                new_top = max(new_top, score[m * KEYS + n])
            shrink = math.exp(top[m] - new_top)
            partial = float32(0)
            for n in range(KEYS):
                p = math.exp(score[m * KEYS + n] - new_top)
                score[m * KEYS + n] = p
                partial += p
            top[m] = new_top
            total[m] = total[m] * shrink + partial
            correction[m] = shrink
        cuda.syncthreads()  # probabilities are complete
        for i in range(ROWS):
            for j in range(COLS):
                tile[i, j] = acc[i, j] * correction[m0 + i]
        for n in range(KEYS):
            for i in range(ROWS):
                for j in range(COLS):
                    tile[i, j] += score[(m0 + i) * KEYS + n] * value[n * HEAD + n0 + j]
        for i in range(ROWS):
            for j in range(COLS):
                acc[i, j] = tile[i, j]
        cuda.syncthreads()  # nobody reads them any more
    for i in range(ROWS):
        for j in range(COLS):
            out[head, row0 + m0 + i, n0 + j] = acc[i, j] / total[m0 + i]

"""Kernels that use CUDA as real ones do. Nothing in here knows how they will be run."""

import math

import numpy as np
from numba import cuda, float32, int32, int64, uint32

FULL = 0xFFFFFFFF
TILE = 16
TABLE = np.array([3.0, 1.0, 4.0, 1.0, 5.0], np.float32)


@cuda.jit
def gelu_strided(x, y):
    start = cuda.grid(1)
    step = cuda.gridsize(1)
    for i in range(start, x.size, step):
        v = x[i]
        inner = float32(0.7978845608) * (v + float32(0.044715) * v * v * v)
        y[i] = float32(0.5) * v * (float32(1.0) + math.tanh(inner))


@cuda.jit
def matmul_tiled(a, b, c):
    sa = cuda.shared.array((TILE, TILE), float32)
    sb = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + ty
    col = cuda.blockIdx.x * TILE + tx
    m, k = a.shape
    n = b.shape[1]
    acc = float32(0.0)
    for k0 in range(0, k, TILE):
        sa[ty, tx] = a[row, k0 + tx] if row < m and k0 + tx < k else 0.0
        sb[ty, tx] = b[k0 + ty, col] if k0 + ty < k and col < n else 0.0
        cuda.syncthreads()
        for q in range(TILE):
            acc += sa[ty, q] * sb[q, tx]
        cuda.syncthreads()
    if row < m and col < n:
        c[row, col] = acc


@cuda.jit(device=True)
def warp_max(v):
    offset = 16
    while offset > 0:
        v = max(v, cuda.shfl_down_sync(FULL, v, offset))
        offset //= 2
    return cuda.shfl_sync(FULL, v, 0)


@cuda.jit(device=True)
def warp_sum(v):
    for i in range(5):
        v += cuda.shfl_xor_sync(FULL, v, 1 << i)
    return v


@cuda.jit
def softmax_by_warp(x, y):
    """One warp a row; how often a warp goes round differs between warps."""
    lane = cuda.laneid
    n_warps = cuda.blockDim.x // cuda.warpsize
    warp = cuda.threadIdx.x // cuda.warpsize
    n_rows, n_cols = x.shape
    for row in range(cuda.blockIdx.x * n_warps + warp, n_rows, cuda.gridDim.x * n_warps):
        m = float32(-math.inf)
        for j in range(lane, n_cols, 32):
            m = max(m, x[row, j])
        m = warp_max(m)
        s = float32(0.0)
        for j in range(lane, n_cols, 32):
            s += math.exp(x[row, j] - m)
        s = warp_sum(s)
        for j in range(lane, n_cols, 32):
            y[row, j] = math.exp(x[row, j] - m) / s


@cuda.jit(device=True)
def block_sum(v, shared):
    lane = cuda.laneid
    warp = cuda.threadIdx.x // 32
    v = warp_sum(v)
    if lane == 0:
        shared[warp] = v
    cuda.syncthreads()
    if warp == 0:
        w = float32(0.0)
        if lane < cuda.blockDim.x // 32:
            w = shared[lane]
        w = warp_sum(w)
        if lane == 0:
            shared[0] = w
    cuda.syncthreads()
    total = shared[0]
    cuda.syncthreads()
    return total


@cuda.jit
def layer_norm(x, g, b, y, eps):
    shared = cuda.shared.array(32, float32)
    row = cuda.blockIdx.x
    n = x.shape[1]
    s = float32(0.0)
    for j in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        s += x[row, j]
    mean = block_sum(s, shared) / float32(n)
    q = float32(0.0)
    for j in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        d = x[row, j] - mean
        q += d * d
    scale = float32(1.0) / math.sqrt(block_sum(q, shared) / float32(n) + eps)
    for j in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        y[row, j] = (x[row, j] - mean) * scale * g[j] + b[j]


@cuda.jit
def column_sums(x, total):
    """Every block adds to the same memory."""
    for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        cuda.atomic.add(total, j, x[cuda.blockIdx.x, j])


@cuda.jit(fastmath=True)
def matmul_in_registers(a, b, c):
    """128 x 128 outputs a block, 8 x 8 a thread; extents are multiples of those."""
    sa = cuda.shared.array((8, 128), float32)
    sb = cuda.shared.array((8, 128), float32)
    acc = cuda.local.array((8, 8), float32)
    ra = cuda.local.array(8, float32)
    rb = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    m0, n0 = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    tr, tc = (t // 16) * 8, (t % 16) * 8
    for i in range(8):
        for j in range(8):
            acc[i, j] = 0.0
    for k0 in range(0, a.shape[1], 8):
        for q in range(4):
            sa[(t % 2) * 4 + q, t // 2] = a[m0 + t // 2, k0 + (t % 2) * 4 + q]
            sb[t // 32, (t % 32) * 4 + q] = b[k0 + t // 32, n0 + (t % 32) * 4 + q]
        cuda.syncthreads()
        for k in range(8):
            for i in range(8):
                ra[i] = sa[k, tr + i]
                rb[i] = sb[k, tc + i]
            for i in range(8):
                for j in range(8):
                    acc[i, j] += ra[i] * rb[j]
        cuda.syncthreads()
    for i in range(8):
        for j in range(8):
            c[m0 + tr + i, n0 + tc + j] = acc[i, j]


@cuda.jit
def tree_sum(x, out):
    s = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    k = cuda.blockDim.x // 2
    while k > 0:
        if t < k:
            s[t] += s[t + k]
        cuda.syncthreads()
        k //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit(device=True)
def warp_scan(v):
    lane = cuda.laneid
    d = 1
    while d < 32:
        n = cuda.shfl_up_sync(FULL, v, d)
        if lane >= d:
            v += n
        d *= 2
    return v


@cuda.jit
def scan(x, y):
    sums = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    lane = t % 32
    warp = t // 32
    v = warp_scan(x[t])
    if lane == 31:
        sums[warp] = v
    cuda.syncthreads()
    if warp == 0:
        z = sums[lane] if lane < cuda.blockDim.x // 32 else 0
        sums[lane] = warp_scan(z)
    cuda.syncthreads()
    if warp > 0:
        v += sums[warp - 1]
    y[t] = v


@cuda.jit
def votes(x, ballot, some, every, count):
    t = cuda.threadIdx.x
    p = x[t] > 0
    m = cuda.ballot_sync(FULL, p)
    some1 = cuda.any_sync(FULL, x[t] > 2)
    every1 = cuda.all_sync(FULL, x[t] > -2)
    n = cuda.syncthreads_count(int32(p))
    ballot[t] = cuda.popc(m)
    some[t] = 1 if some1 else 0
    every[t] = 1 if every1 else 0
    count[t] = n


@cuda.jit
def bitonic_sort(x):
    s = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    k = 2
    while k <= 256:
        j = k // 2
        while j > 0:
            other = t ^ j
            if other > t:
                up = (t & k) == 0
                if (s[t] > s[other]) == up:
                    s[t], s[other] = s[other], s[t]
            cuda.syncthreads()
            j //= 2
        k *= 2
    x[t] = s[t]


@cuda.jit
def histogram(x, h):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    if t < 64:
        s[t] = 0
    cuda.syncthreads()
    i, j = cuda.grid(2)
    gx, gy = cuda.gridsize(2)
    for r in range(j, x.shape[0], gy):
        for c in range(i, x.shape[1], gx):
            cuda.atomic.add(s, x[r, c], 1)
    cuda.syncthreads()
    if t < 64:
        cuda.atomic.add(h, t, s[t])


@cuda.jit
def collatz_by_warp(x, y):
    """Each warp goes on until all of its numbers are 1."""
    t = cuda.grid(1)
    v = x[t]
    n = 0
    while True:
        if cuda.all_sync(FULL, v == 1):
            break
        n += 1
        if v == 1:
            continue
        if v % 2 == 0:
            v //= 2
        else:
            v = 3 * v + 1
    y[t] = n


@cuda.jit(device=True)
def classify(v):
    if v < 0:
        return -1, float32(-v)
    if v > 1:
        return 1, float32(v)
    return 0, float32(0.0)


@cuda.jit
def find_first(x, out, value):
    i = cuda.grid(1)
    if i >= x.shape[0]:
        return
    for j in range(x.shape[1]):
        k, m = classify(x[i, j])
        if k == 1:
            out[i] = j
            value[i] = m
            return
    out[i] = -1


@cuda.jit
def last_block_sums(x, part, arrived, out):
    s = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        a = float32(0.0)
        for i in range(cuda.blockIdx.x, x.size, cuda.gridDim.x):
            a += x[i]
        part[cuda.blockIdx.x] = a
        cuda.threadfence()
        s[0] = cuda.atomic.add(arrived, 0, 1)
    cuda.syncthreads()
    if s[0] == cuda.gridDim.x - 1:
        cuda.syncthreads()
        if t == 0:
            a2 = float32(0.0)
            for i in range(cuda.gridDim.x):
                a2 += part[i]
            out[0] = a2


@cuda.jit
def reverse_dynamic(x):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    x[t] = s[cuda.blockDim.x - 1 - t]


@cuda.jit(device=True)
def dot4(a, b):
    r = float32(0.0)
    for i in range(4):
        r += a[i] * b[i]
    return r


@cuda.jit
def rows_of_neighbours(x, y):
    a = cuda.local.array(4, float32)
    s = cuda.shared.array((64, 4), float32)
    t = cuda.threadIdx.x
    for i in range(4):
        a[i] = x[t, i] + 1
        s[t, i] = x[t, i]
    cuda.syncthreads()
    y[t] = dot4(a, s[(t + 1) % 64])


@cuda.jit(device=True)
def mix(x):
    x = uint32(x)
    x ^= uint32(x >> uint32(16))
    x = uint32(x * uint32(0x7FEB352D))
    x ^= uint32(x >> uint32(15))
    x = uint32(x * uint32(0x846CA68B))
    return uint32(x ^ (x >> uint32(16)))


@cuda.jit
def hashed(y, seed):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = mix(uint32(i) ^ uint32(seed))


@cuda.jit
def atomics(x, largest, smallest, cell, bits):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.max(largest, 0, x[i])
        cuda.atomic.min(smallest, 0, x[i])
        cuda.atomic.or_(bits, 0, 1 << (i % 40))
        old = cuda.atomic.cas(cell, 0, 0, 1)
        if old == 0:
            cell[1] = 7


@cuda.jit
def divergent(x):
    t = cuda.threadIdx.x
    if t < 10:
        x[t] += 1
        cuda.syncthreads()
        x[t] += 1


def polynomial(degree, real):
    """A kernel made by a factory: what it closes over are constants of it."""

    @cuda.jit(device=True)
    def step(acc, x, c):
        return acc * x + c

    @cuda.jit
    def kernel(x, y):
        q = cuda.local.array(degree, real)
        i = cuda.grid(1)
        if i < x.size:
            for j in range(degree):
                q[j] = j + 1
            acc = real(0)
            for j in range(degree):
                acc = step(acc, x[i], q[j])
            y[i] = acc

    return kernel


@cuda.jit
def table_lookup(y):
    """A global array is a constant."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = TABLE[i % 5]


@cuda.jit
def shifted(x, y, offset):
    """`offset` may be negative, and counts from the end then."""
    i = cuda.threadIdx.x
    y[i] = x[offset + i]


@cuda.jit
def typed(x, y):
    """The compute type follows the argument's."""
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        half = type(v)(0.5)
        y[i] = half * v + type(v)(1)


@cuda.jit
def flags(x, above, limit):
    i = cuda.grid(1)
    if i < x.size:
        above[i] = x[i] > limit and not x[i] > 2 * limit


@cuda.jit
def large_local(x, y):
    """Too much for the stack: 1024 threads with 2 KiB each."""
    q = cuda.local.array(512, float32)
    t = cuda.threadIdx.x
    for k in range(512):
        q[k] = x[(t + k) % x.size]
    cuda.syncthreads()
    s = float32(0.0)
    for k in range(512):
        s += q[k]
    y[t] = s


@cuda.jit(device=True)
def next_of(v, i):
    return v[i + 1]


@cuda.jit
def one_too_far(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = next_of(x, i)


@cuda.jit
def before_the_start(x):
    s = cuda.shared.array((2, 32), float32)
    t = cuda.threadIdx.x
    s[1, t] = x[cuda.blockIdx.x, t]
    cuda.syncthreads()
    x[cuda.blockIdx.x, t] = s[1, t - 33]


@cuda.jit
def raises(x):
    if x[cuda.threadIdx.x] > 2:
        raise ValueError("too large")


@cuda.jit
def returns_to_stores(x, y):
    q = cuda.local.array(4, int64)
    s = cuda.shared.array(128, int64)
    t = cuda.threadIdx.x
    for k in range(4):
        q[k] = k * t
    s[t] = q[x[t] & 3]
    q[0] = x[t]
    cuda.syncthreads()
    y[t, 0] = s[127 - t]
    y[t, 1] = q[0]

"""What many kernels share: launch geometry, warp and block reductions."""

from __future__ import annotations

import functools

from numba import cuda

from blutrain.device import TARGET

WARP = 32
FULL_MASK = 0xFFFFFFFF
BLOCK = 256  # threads of a block of an elementwise or row kernel: 8 warps
N_WARPS = BLOCK // WARP
ROWS_BLOCK = (WARP, N_WARPS)  # a block for one warp a row: threadIdx.x is the lane, .y the row


def blocks_for(n: int, per_block: int = BLOCK) -> int:
    """How many blocks cover `n` elements."""
    return -(-n // per_block)


@functools.cache
def sm90_multiprocessors() -> int:
    """Multiprocessors of the device in use if it is an sm_90, else 0."""
    if TARGET != "cuda":
        return 0
    from blutrain.device.cuda import driver

    found = driver.properties()
    return found.n_multiprocessors if found.compute_capability == (9, 0) else 0


@cuda.jit(device=True)
def warp_sum(v):
    """The sum of `v` over the 32 lanes of a warp, in every lane."""
    v += cuda.shfl_xor_sync(FULL_MASK, v, 16)
    v += cuda.shfl_xor_sync(FULL_MASK, v, 8)
    v += cuda.shfl_xor_sync(FULL_MASK, v, 4)
    v += cuda.shfl_xor_sync(FULL_MASK, v, 2)
    v += cuda.shfl_xor_sync(FULL_MASK, v, 1)
    return v


@cuda.jit(device=True)
def warp_max(v):
    """The largest `v` over the 32 lanes of a warp, in every lane."""
    v = max(v, cuda.shfl_xor_sync(FULL_MASK, v, 16))
    v = max(v, cuda.shfl_xor_sync(FULL_MASK, v, 8))
    v = max(v, cuda.shfl_xor_sync(FULL_MASK, v, 4))
    v = max(v, cuda.shfl_xor_sync(FULL_MASK, v, 2))
    v = max(v, cuda.shfl_xor_sync(FULL_MASK, v, 1))
    return v


@cuda.jit(device=True)
def block_sum(v, shared):  # shared: (N_WARPS,) of v's type
    """The sum of `v` over a 1-D block of BLOCK threads, in every thread."""
    v = warp_sum(v)
    if cuda.laneid == 0:
        shared[cuda.threadIdx.x // WARP] = v
    cuda.syncthreads()  # every warp's sum is in shared memory
    total = shared[0]
    for w in range(1, N_WARPS):
        total += shared[w]
    cuda.syncthreads()  # all have read: shared memory may be used again
    return total


@cuda.jit(device=True)
def block_max(v, shared):  # shared: (N_WARPS,) of v's type
    """The largest `v` over a 1-D block of BLOCK threads, in every thread."""
    v = warp_max(v)
    if cuda.laneid == 0:
        shared[cuda.threadIdx.x // WARP] = v
    cuda.syncthreads()  # every warp's maximum is in shared memory
    largest = shared[0]
    for w in range(1, N_WARPS):
        largest = max(largest, shared[w])
    cuda.syncthreads()  # all have read: shared memory may be used again
    return largest

"""Products of few rows, as in decoding: out = a b (+ bias) with up to 16 rows, float32.

    out[m, n] = sum_k a[m, k] b[n, k] + bias[n]        a (M, K), b (N, K) as it lies, out (M, N)

A tensor-core tile of 128 rows would do 8 to 128 times the work that is asked for; here b is read
once, at the rate of the memory, and a comes from the L1 cache. A warp takes COLUMNS columns: its
lanes run along K side by side, so that every load is a whole line, and add up by shuffles at the
end. Sums are float32 in a fixed order, more exact than any precision asks for.

Bytes: 4 N K from device memory. FLOPs: 2 M N K, M / 2 a byte: bound by memory on a GPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32

from blutrain import dtypes
from blutrain.autograd.registry import variant
from blutrain.cuda_kernels.common import blocks_for, warp_sum
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.device import launch
from blutrain.device.array import Array

MAX_ROWS = 16
COLUMNS = 2  # of a warp: each value of a that is loaded serves so many products
WARPS = 4
THREADS = 32 * WARPS
# Fewer columns than this leave most of a GPU idle.
MIN_COLUMNS = 256


@cache
def few_rows_kernel(most_rows: int) -> Any:
    """The kernel for up to `most_rows` rows."""
    ahead = 8 if most_rows <= 4 else 4  # loads of a lane that are under way at a time

    @cuda.jit
    def matmul_few_rows_kernel(
        a,  # (M, K)
        b,  # (N, K)
        bias,  # (N,), read only with has_bias
        out,  # (M, N)
        has_bias,
    ):
        n_rows, n_inner = a.shape
        n_cols = b.shape[0]
        lane = cuda.threadIdx.x % 32
        first = (cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32) * COLUMNS
        acc = cuda.local.array((most_rows, COLUMNS), float32)
        for m in range(most_rows):
            for c in range(COLUMNS):
                acc[m, c] = float32(0.0)
        # Rows and columns outside repeat the last one inside: their sums are not stored.
        last_row, last_col = n_rows - 1, n_cols - 1
        k0 = lane
        while k0 + (ahead - 1) * 32 < n_inner:
            y = cuda.local.array((ahead, COLUMNS), float32)
            for u in range(ahead):
                for c in range(COLUMNS):
                    y[u, c] = b[min(first + c, last_col), k0 + u * 32]
            for u in range(ahead):
                for m in range(most_rows):
                    x = a[min(m, last_row), k0 + u * 32]
                    for c in range(COLUMNS):
                        acc[m, c] += x * y[u, c]
            k0 += ahead * 32
        while k0 < n_inner:  # what is left, at most `ahead` for a lane
            for c in range(COLUMNS):
                z = b[min(first + c, last_col), k0]
                for m in range(most_rows):
                    acc[m, c] += a[min(m, last_row), k0] * z
            k0 += 32
        for m in range(most_rows):
            for c in range(COLUMNS):
                total = warp_sum(acc[m, c])
                if lane == 0 and m < n_rows and first + c < n_cols:
                    if has_bias:
                        total += bias[first + c]
                    out[m, first + c] = total

    return matmul_few_rows_kernel


def _applies(p: Problem) -> bool:
    """Whether this is such a product: one matrix, both operands dense along K."""
    a, b, out = p.a, p.b, p.out
    if out.shape[-2] > MAX_ROWS or a.dtype is not dtypes.float32 or p.transpose_a:
        return False
    one_matrix = a.ndim == b.ndim == out.ndim == 2
    along_k = a.strides[-1] == 1 and p.transpose_b and b.strides[-1] == 1
    return one_matrix and along_k and out.shape[-1] >= MIN_COLUMNS and out.shape[-2] > 0


@variant("matmul", name="few_rows", target="cuda", when=_applies)
def gemm_few_rows(p: Problem) -> None:
    """The product of up to MAX_ROWS rows, as `Problem` states it."""
    n_rows, n_cols = p.out.shape
    most_rows = 1
    while most_rows < n_rows:
        most_rows *= 2
    arrays = [
        Array(t.pointer, t.shape, (4 * t.strides[0], 4 * t.strides[1]), t.dtype, "A", t)
        for t in (p.a, p.b, p.out)
    ]
    # Without a bias any array of its type will do: it is not read.
    bias = Array(p.out.pointer, (1,), (4,), p.out.dtype, "C") if p.bias is None else dense(p.bias)
    grid = blocks_for(n_cols, WARPS * COLUMNS)
    kernel = few_rows_kernel(most_rows)
    launch(kernel, grid, THREADS, arrays[0], arrays[1], bias, arrays[2], p.bias is not None)

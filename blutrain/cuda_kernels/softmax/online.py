"""The maximum and the sum of exponentials of a long row, in one sweep, by one block.

exp(x_j) overflows, so a softmax subtracts the row's maximum m first: Σ_j exp(x_j - m). Finding m
takes a sweep of its own, unless the sum is mended when a larger value turns up: with a running
maximum m and sum s of what was seen, a new maximum m' makes it s exp(m - m'). Each thread does so
for its own columns, four at a time, so that four loads are in flight and the mending is rare; then
the threads' pairs are brought to the maximum of the block in the same way.

A row whose values are all -inf has no maximum to subtract: its sum becomes nan, as does that of a
row with a nan or with +inf. A -inf among finite values counts as exp(-inf) = 0.

Source: Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018, algorithm 3.
"""

from __future__ import annotations

import math

from numba import cuda, float32

from blutrain.cuda_kernels.common import BLOCK, block_max, block_sum

STEP = 4 * BLOCK


@cuda.jit(device=True)
def _base(peak):
    """What to subtract while `peak` is the maximum so far: -inf - -inf would be nan."""
    return peak if peak > type(peak)(-math.inf) else type(peak)(0.0)


@cuda.jit(device=True)
def block_peak_and_total(
    x,  # (n_rows, n_cols)
    row,
    shared,  # (N_WARPS,) of the computing type
):
    """(m, Σ exp(x_j - m)) of one row in every thread of a block of BLOCK threads."""
    n_cols = x.shape[1]
    thread = cuda.threadIdx.x
    peak = float32(-math.inf)
    total = float32(0.0)
    whole = n_cols // STEP * STEP
    for start in range(thread, whole, STEP):
        a = x[row, start]
        b = x[row, start + BLOCK]
        c = x[row, start + 2 * BLOCK]
        d = x[row, start + 3 * BLOCK]
        highest = max(max(a, b), max(c, d))
        if highest > peak:
            total *= math.exp(peak - highest)
            peak = highest
        base = _base(peak)
        total += (math.exp(a - base) + math.exp(b - base)) + (
            math.exp(c - base) + math.exp(d - base)
        )
    for col in range(whole + thread, n_cols, BLOCK):
        value = x[row, col]
        if value > peak:
            total *= math.exp(peak - value)
            peak = value
        total += math.exp(value - _base(peak))

    row_peak = block_max(peak, shared)
    total *= math.exp(peak - row_peak)
    row_total = block_sum(total, shared)
    return row_peak, row_total

"""Loops are split where nobody can tell, and stay whole where somebody could."""

import math

import numpy as np
import pytest
from numba import cuda, float32, types

from blutrain.device import cpu

TURNS, WIDTH, THREADS = 12, 20, 64


@cuda.jit
def weighted(x, v, y):
    """Splits: a softmax's second half."""
    acc = cuda.local.array(WIDTH, float32)
    shared = cuda.shared.array((TURNS, WIDTH), float32)
    t = cuda.threadIdx.x
    for at in range(t, TURNS * WIDTH, THREADS):
        shared[at // WIDTH, at % WIDTH] = v[at // WIDTH, at % WIDTH]
    cuda.syncthreads()
    total = float32(0)
    p = float32(0)
    for d in range(WIDTH):
        acc[d] = 0
    for j in range(TURNS):
        p = math.exp(x[t, j])
        total += p
        for d in range(WIDTH):
            acc[d] += p * shared[j, d]
    for d in range(WIDTH):
        y[t, d] = acc[d] / total + p


@cuda.jit
def feeds_back(x, v, y):
    """Stays whole: the exponential reads what the inner loop wrote a turn ago."""
    acc = cuda.local.array(WIDTH, float32)
    t = cuda.threadIdx.x
    for d in range(WIDTH):
        acc[d] = 0
    for j in range(TURNS):
        p = math.exp(x[t, j] - acc[0])
        for d in range(WIDTH):
            acc[d] += p * v[j, d]
    for d in range(WIDTH):
        y[t, d] = acc[d]


@cuda.jit
def carries_back(x, v, y):
    """Stays whole: a variable goes from the inner loop to the next turn's exponential."""
    t = cuda.threadIdx.x
    last = float32(0)
    for j in range(TURNS):
        p = math.exp(x[t, j] - last)
        for d in range(WIDTH):
            last = p * v[j, d]
    for d in range(WIDTH):
        y[t, d] = last


@cuda.jit
def through_parameters(x, v, y):
    """Stays whole: x and y may be the same memory."""
    t = cuda.threadIdx.x
    for j in range(TURNS):
        p = math.exp(x[t, j])
        for d in range(WIDTH):
            y[t, d] += p * v[j, d]


@cuda.jit
def jumps(x, v, y):
    """Stays whole: a turn may end all."""
    acc = cuda.local.array(WIDTH, float32)
    t = cuda.threadIdx.x
    for d in range(WIDTH):
        acc[d] = 0
    for j in range(TURNS):
        p = math.exp(x[t, j])
        if p > 2:
            break
        for d in range(WIDTH):
            acc[d] += p * v[j, d]
    for d in range(WIDTH):
        y[t, d] = acc[d]


def in_float64(kernel, x, v, y):
    """What each kernel computes, turn by turn, for all threads at once."""
    x, v, y = (a.astype(np.float64) for a in (x, v, y))
    acc, total, last = np.zeros_like(y), np.zeros(len(x)), np.zeros(len(x))
    going = np.ones(len(x), bool)
    for j in range(TURNS):
        p = np.exp(x[:, j] - (acc[:, 0] if kernel is feeds_back else last))
        if kernel is jumps:
            going &= p <= 2
        total += p
        acc += (p * going)[:, None] * v[j]
        if kernel is carries_back:
            last = p * v[j, -1]
    if kernel is weighted:
        return acc / total[:, None] + p[:, None]
    if kernel is carries_back:
        return np.repeat(last[:, None], WIDTH, 1)
    return y + acc if kernel is through_parameters else acc


OPTIONS = [cpu.Options(), cpu.Options(reverse=True), cpu.Options(shuffle=3, poison=True)]


@pytest.mark.parametrize("options", OPTIONS, ids=["forward", "reverse", "shuffled"])
@pytest.mark.parametrize(
    "kernel", [weighted, feeds_back, carries_back, through_parameters, jumps],
    ids=lambda k: k.__name__,
)  # fmt: skip
def test_splitting_changes_no_result(kernel, options):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((THREADS, TURNS), np.float32)
    v = rng.standard_normal((TURNS, WIDTH), np.float32) * np.float32(0.1)
    y = rng.standard_normal((THREADS, WIDTH), np.float32)
    want = in_float64(kernel, x, v, y)
    cpu.run(kernel, 1, THREADS, x, v, y, options=options)
    np.testing.assert_allclose(y, want, rtol=2e-4, atol=1e-4)

    matrix = types.Array(types.float32, 2, "C")
    source = cpu.compile_kernel(kernel, (THREADS, 1, 1), [matrix] * 3, options).source
    assert ("p__j" in source) == (kernel is weighted)

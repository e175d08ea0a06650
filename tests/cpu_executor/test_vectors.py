"""CUDA's vector types."""

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import uint8x2

from blutrain.device import cpu
from blutrain.errors import KernelError


@cuda.jit(device=True)
def _turned(v):
    return cuda.float4(v.w, v.z, v.y, v.x)


@cuda.jit
def vectors(
    x,  # (n, 4)
    y,  # (n, 4)
):
    i = cuda.grid(1)
    pair = cuda.float32x2(x[i, 0], x[i, 1])
    whole = cuda.float4(pair, x[i, 2], x[i, 3])
    for _ in range(3):
        cuda.syncthreads()
        whole = _turned(whole)
    other = cuda.float4(whole) if i % 2 else cuda.float4(whole.y, cuda.float3(whole.x, pair))
    y[i, 0], y[i, 1], y[i, 2], y[i, 3] = other.x, other.y, other.z, other.w


def test_vectors():
    x = np.random.default_rng(0).standard_normal((64, 4), np.float32)
    y = np.zeros_like(x)
    cpu.run(vectors, 1, 64, x, y)
    expected = x[:, ::-1].copy()
    expected[::2] = x[::2][:, [2, 3, 0, 1]]
    np.testing.assert_array_equal(y, expected)


@cuda.jit
def elements_are_converted(x, y):
    v = uint8x2(x[0], 300)
    w = cuda.double1(x[0])
    y[0], y[1], y[2] = v.x, v.y, w.x


def test_elements_are_converted():
    y = np.zeros(3, np.float64)
    cpu.run(elements_are_converted, 1, 1, np.float32([3.75]), y)
    assert y.tolist() == [3, 300 - 256, 3.75]


@cuda.jit
def too_few(x):
    v = cuda.float3(float32(1), x[0])
    x[0] = v.x


@cuda.jit
def no_such_field(x):
    v = cuda.float2(float32(1), x[0])
    x[0] = v.z


@pytest.mark.parametrize(
    "kernel, says",
    [
        (too_few, r"float3 does not take \(float32, float32\)"),
        (no_such_field, r"UniTuple\(float32 x 2\) has no attribute 'z'"),
    ],
)
def test_refused(kernel, says):
    with pytest.raises(KernelError, match=says):
        cpu.run(kernel, 1, 1, np.zeros(1, np.float32))

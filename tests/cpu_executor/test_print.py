"""`print` in a kernel."""

import numpy as np
import pytest
from numba import cuda

from blutrain.device import cpu
from blutrain.errors import KernelError


@cuda.jit
def prints(x, n):
    i = cuda.grid(1)
    if i % 2 == 0:
        print("thread", i, "of 100%:", x[i], i > 0, n)


def test_each_thread_prints_a_line(capfd):
    cpu.run(prints, 2, 2, np.float32([0.5, 1, 2.25, 3]), np.uint8(200))
    assert capfd.readouterr().out == (
        "thread 0 of 100%: 0.500000 False 200\nthread 2 of 100%: 2.250000 True 200\n"
    )


@cuda.jit
def prints_tuples(pair):
    print((1, pair), (cuda.threadIdx.x > 0,), cuda.blockDim)


def test_tuples(capfd):
    cpu.run(prints_tuples, 1, 1, (np.int32(-2), np.float32(0.5)))
    assert capfd.readouterr().out == "(1, (-2, 0.500000)) (False,) (1, 1, 1)\n"


@cuda.jit
def prints_an_array(x):
    print(x)


@cuda.jit
def prints_without_a_newline(x):
    print(x[0], end="")


@pytest.mark.parametrize(
    "kernel, says",
    [
        (prints_an_array, r"print does not take \(array\(float32, 1d, C\)\)"),
        (prints_without_a_newline, "print in a kernel takes no keywords"),
    ],
)
def test_refused(kernel, says):
    with pytest.raises(KernelError, match=says):
        cpu.run(kernel, 1, 1, np.zeros(1, np.float32))

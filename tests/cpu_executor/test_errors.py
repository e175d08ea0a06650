"""What cannot run on the CPU is refused by name, with the kernel, the line and what to do."""

import numpy as np
import pytest
from numba import cuda, float32

from blutrain.device import cpu
from blutrain.errors import DTypeError, KernelError

X = np.zeros(64, np.float32)


@cuda.jit
def unknown_cuda_name(x):
    x[0] = cuda.vectorized_nonsense(1)


@cuda.jit
def cluster(x):
    x[0] = cuda.cg.this_cluster()


@cuda.jit
def variable_shape(x, n):
    s = cuda.shared.array(n, float32)
    s[0] = 1
    x[0] = s[0]


@cuda.jit
def array_twice(x):
    s = cuda.shared.array(4, float32)
    s = cuda.shared.array(8, float32)
    x[0] = s[0]


@cuda.jit
def window_across_barrier(x):
    window = x[1:] if x[2] > 0 else x[3:]
    cuda.syncthreads()
    x[cuda.threadIdx.x] = window[0]


@cuda.jit
def with_statement(x):
    with open("file"):
        x[0] = 1


@cuda.jit
def not_a_function(x):
    x[0] = undefined_name(1)  # noqa: F821


@cuda.jit
def wrong_call(x):
    x[0] = cuda.popc(1.5)


@cuda.jit(device=True)
def endless(v):
    return endless(v) + 1


@cuda.jit
def recursive(x):
    x[0] = endless(x[1])


@cuda.jit
def greedy(x):
    tile = cuda.shared.array((128, 97), float32)
    tile[cuda.threadIdx.x, 0] = 1
    x[cuda.threadIdx.x] = tile[cuda.threadIdx.x, 0]


@cuda.jit
def fine(x):
    x[cuda.threadIdx.x] = 1


CASES = {
    unknown_cuda_name: r"kernel unknown_cuda_name \(.*:\d+\): cuda.vectorized_nonsense has no",
    cluster: r"kernel cluster \(.*:\d+\): cuda.cg.* has no meaning on the CPU",
    variable_shape: r"the shape of a shared or local array must be a constant, got n; use a global",
    array_twice: r"array 's' is made twice; give each its own name",
    window_across_barrier: r"'window' lives across a barrier or shuffle, so it must be a number",
    with_statement: r"With statements cannot be in a kernel",
    not_a_function: r"undefined_name is not a function that is known .in `x.0. = undefined_name.1.",
    greedy: r"shared arrays of constant shape may have 49152 bytes together, got 49664; make them",
    wrong_call: r"popc does not take \(float64\)",
    recursive: r"device function endless calls itself",
}


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.py_func.__name__)
def test_refused(kernel):
    arguments = (X, 4) if kernel is variable_shape else (X,)
    with pytest.raises(KernelError, match=CASES[kernel]) as caught:
        cpu.run(kernel, 1, 32, *arguments)
    assert kernel.py_func.__name__ in str(caught.value) or kernel is recursive


@pytest.mark.parametrize(
    "grid, block, options, says",
    [
        (0, 32, {}, "grid must be between 1 and .*, got 0; launch nothing for an empty problem"),
        ((4, 70_000), 32, {}, r"grid must be between 1 and .*, got \(4, 70000\)"),
        (1.5, 32, {}, "grid must be an int or up to three of them, got 1.5"),
        (1, 0, {}, "block must be between 1"),
        ((1, 1, 1, 1), 1, {}, "grid must be an int or up to three"),
        (1, 2048, {}, "block must be between 1"),
        (1, (64, 64), {}, r"at most 1024 threads, got \(64, 64, 1\), which has 4096; use more"),
        (1, 32, {"shared": 1 << 20}, "shared must be at most 232448 bytes.*got 1048576"),
        (1, 32, {"shared": -1}, "shared must be a number of bytes, got -1"),
    ],
)
def test_geometry(grid, block, options, says):
    with pytest.raises(KernelError, match=says):
        cpu.run(fine, grid, block, X, **options)


def test_arguments():
    with pytest.raises(DTypeError, match="must be a NumPy array or a scalar, got list"):
        cpu.run(fine, 1, 32, [1.0])
    with pytest.raises(
        DTypeError, match="an int must fit into 64 bits, got 1180591620717411303424"
    ):
        cpu.run(fine, 1, 32, 2**70)
    for dtype in (object, ">f4", np.longdouble):
        with pytest.raises(DTypeError, match="fine: no kernel takes an array of this dtype, got"):
            cpu.run(fine, 1, 32, np.zeros(3, dtype))
    with pytest.raises(KernelError, match=r"kernel fine: takes 1 arguments \(x\), got 2"):
        cpu.run(fine, 1, 32, X, X)


def test_no_source():
    namespace = {"cuda": cuda}
    exec("@cuda.jit\ndef hidden(x):\n    x[0] = 1\n", namespace)
    with pytest.raises(KernelError, match="kernel hidden: its source text must be available"):
        cpu.run(namespace["hidden"], 1, 32, X)


def test_not_a_kernel():
    with pytest.raises(KernelError, match="a kernel must be a @cuda.jit function, got int"):
        cpu.compile_kernel(3, (1, 1, 1), ())

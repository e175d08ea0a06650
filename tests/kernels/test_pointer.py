"""Arrays from addresses inside kernels."""

import pytest
from numba import cuda, types

import blutrain as bt
from blutrain.device import launch
from blutrain.device.cuda.compile import compile_kernel
from blutrain.device.pointer import array_at


@cuda.jit
def double_kernel(table, like):
    x = array_at(table[0], table[1], table[2], like)
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] + x[i]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "int8"])
def test_a_window_is_read_and_written_in_its_dtype(dtype):
    x = bt.ones(300, dtype)
    table = bt.tensor([x.pointer, 10, 280], "int64")
    launch(double_kernel, 2, 256, table, x[:1])
    assert x.tolist() == [1] * 10 + [2] * 280 + [1] * 10


def test_writes_reach_the_gpus_code():
    # The compiler must not take the window for an array of the kernel's own.
    text = compile_kernel(double_kernel, (types.int64[::1], types.float32[::1]), (9, 0)).text
    assert "st.global.f32" in text


def test_python_cannot_call_it():
    with pytest.raises(NotImplementedError):
        array_at(0, 0, 0, None)

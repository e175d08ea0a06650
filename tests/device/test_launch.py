"""Launching on whichever target the tests run on: arguments, geometry, errors, recording."""

import threading

import numpy as np
import pytest
from numba import cuda, float32, int64, types

from blutrain import dtypes, memory
from blutrain.device import Event, Stream, launch, recording, synchronize
from blutrain.device.array import Array
from blutrain.device.half import HalfArray
from blutrain.errors import DTypeError, KernelError
from tests.device.device_arrays import Upload

THREADS = 64


@cuda.jit
def add_kernel(x, y, z):
    i = cuda.grid(1)
    if i < x.size:
        z[i] = x[i] + y[i]


@cuda.jit
def scale_kernel(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor


@cuda.jit
def coordinates_kernel(out):
    x = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    y = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    z = cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z
    if z < out.shape[0] and y < out.shape[1] and x < out.shape[2]:
        out[z, y, x] = 100 * z + 10 * y + x


@cuda.jit
def reverse_block_kernel(x):
    shared = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncthreads()
    x[i] = shared[cuda.blockDim.x - 1 - i]


@cuda.jit
def unknown_name_kernel(x):
    x[0] = no_such_function(x[1])  # noqa: F821


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_every_element_type(dtype):
    values = np.arange(100) % 2 if dtype is dtypes.bool_ else np.arange(100) % 50
    x, y = Upload(values, dtype), Upload(np.zeros(100), dtype)
    z = Upload(np.zeros(100), dtype)
    launch(add_kernel, 2, THREADS, x, y, z)
    np.testing.assert_array_equal(z.numpy(), x.numpy())


def test_arrays_and_tensors_are_taken():
    x = Upload(np.ones(10, np.float32))
    launch(scale_kernel, 1, THREADS, x.array(), 3.0)
    launch(scale_kernel, 1, THREADS, x, 2.0)
    np.testing.assert_array_equal(x.numpy(), np.full(10, 6, np.float32))


def test_strided_and_broadcast_arrays():
    host = np.arange(20, dtype=np.float32)
    x, z = Upload(host), Upload(np.zeros(10, np.float32))
    start = x.block.pointer
    every_other = Array(start, (10,), (8,), dtypes.float32, "A", x)
    backwards = Array(start + 76, (10,), (-4,), dtypes.float32, "A", x)
    repeated = Array(start + 4, (10,), (0,), dtypes.float32, "A", x)
    launch(add_kernel, 1, THREADS, every_other, backwards, z)
    np.testing.assert_array_equal(z.numpy(), host[::2] + host[:9:-1])
    launch(add_kernel, 1, THREADS, every_other, repeated, z)
    np.testing.assert_array_equal(z.numpy(), host[::2] + host[1])


@pytest.mark.parametrize(
    ("scalar", "kind"),
    [
        (True, types.boolean),
        (3, types.int64),
        (0.5, types.float32),
        (np.float32(0.5), types.float32),
        (np.float64(0.5), types.float64),
        (np.int8(-3), types.int8),
        (np.int16(-3), types.int16),
        (np.int32(-3), types.int32),
        (np.int64(-3), types.int64),
        (np.uint8(3), types.uint8),
        (np.uint16(3), types.uint16),
        (np.uint32(3), types.uint32),
        (np.uint64(3), types.uint64),
        (np.bool_(True), types.boolean),
    ],
    ids=str,
)
def test_scalars_keep_their_type(scalar, kind):
    x = Upload(np.full(5, 2, np.float64))
    with recording() as launched:
        launch(scale_kernel, 1, THREADS, x, scalar)
    np.testing.assert_array_equal(x.numpy(), np.full(5, 2 * float(scalar)))
    assert [record.types[1] for record in launched] == [kind]


def test_grids_and_blocks_of_three_dimensions():
    out = Upload(np.zeros((3, 5, 7), np.int64))
    launch(coordinates_kernel, (4, 3, 2), (2, 2, 2), out)
    z, y, x = np.indices((3, 5, 7))
    np.testing.assert_array_equal(out.numpy(), 100 * z + 10 * y + x)
    out = Upload(np.zeros((3, 5, 7), np.int64))
    launch(coordinates_kernel, (np.int64(1), 5, 3), 32, out)
    np.testing.assert_array_equal(out.numpy(), 100 * z + 10 * y + x)


def test_dynamic_shared_memory():
    host = np.arange(THREADS, dtype=np.float32)
    x = Upload(host)
    launch(reverse_block_kernel, 1, THREADS, x, shared=4 * THREADS)
    np.testing.assert_array_equal(x.numpy(), host[::-1])


def test_streams_and_events():
    x = Upload(np.ones(10, np.float32))
    stream, start, end = Stream(), Event(), Event()
    start.record(stream)
    launch(scale_kernel, 1, THREADS, x, 2.0, stream=stream)
    end.record(stream)
    stream.wait(end)
    stream.synchronize()
    synchronize()
    assert 0 <= start.elapsed(end) < 60
    np.testing.assert_array_equal(x.numpy(), np.full(10, 2, np.float32))


def test_threads_launch_the_same_kernel_at_once():
    uploads = [Upload(np.ones(50, np.float32)) for _ in range(6)]

    def work(x, factor):
        for _ in range(20):
            launch(scale_kernel, 1, THREADS, x, factor)
            launch(scale_kernel, 1, THREADS, x, 1 / factor)
        launch(scale_kernel, 1, THREADS, x, factor)

    threads = [
        threading.Thread(target=work, args=(x, 2.0**k)) for k, x in enumerate(uploads, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, x in enumerate(uploads, start=1):
        np.testing.assert_array_equal(x.numpy(), np.full(50, 2.0**k, np.float32))


def test_recording_notes_each_specialisation_once():
    x, half = Upload(np.ones(4, np.float32)), Upload(np.ones(4), dtypes.bfloat16)
    launch(scale_kernel, 1, THREADS, x, 2.0)
    with recording() as outer:
        for _ in range(3):
            launch(scale_kernel, 1, THREADS, x, 2.0)
        with recording() as inner:
            launch(scale_kernel, 1, 32, half, 2)
    launch(scale_kernel, 1, THREADS, x, 2)
    halves = HalfArray("bfloat16", 1, "C")
    last = (scale_kernel, (32, 1, 1), (halves, int64))
    assert list(outer) == [(scale_kernel, (THREADS, 1, 1), (float32[::1], float32)), last]
    assert list(inner) == [last]


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        (0, 32, "grid must be between 1 and .*, got 0; launch nothing for an empty problem"),
        (-1, 32, "grid must be between 1"),
        (2**31, 32, "grid must be between 1"),
        ((1, 65536), 32, "grid must be between 1"),
        ((), 32, "grid must be an int or up to three of them"),
        ((1, 1, 1, 1), 32, "grid must be an int or up to three"),
        (1.5, 32, "grid must be an int"),
        ("1", 32, "grid must be an int"),
        (1, 0, "block must be between 1"),
        (1, 1025, "block must be between 1"),
        (1, (1, 1, 65), "block must be between 1"),
        (1, (64, 32), r"block must have at most 1024 threads, got \(64, 32, 1\), which has 2048"),
    ],
)
def test_impossible_geometry(grid, block, says):
    x = Upload(np.ones(4, np.float32))
    with pytest.raises(KernelError, match=f"scale_kernel: {says}"):
        launch(scale_kernel, grid, block, x, 2.0)
    np.testing.assert_array_equal(x.numpy(), np.ones(4))


def test_negative_shared_memory():
    with pytest.raises(KernelError, match="shared must be a number of bytes, got -4"):
        launch(scale_kernel, 1, 32, Upload(np.ones(4, np.float32)), 2.0, shared=-4)


def test_too_much_shared_memory_is_refused_and_nothing_leaks():
    x = Upload(np.ones(4, np.float32))
    before = memory.memory_allocated()
    says = "scale_kernel: shared must be at most 232448 bytes, which no GPU exceeds, got 232449"
    for _ in range(3):
        with pytest.raises(KernelError, match=says):
            launch(scale_kernel, 1, 32, x, 2.0, shared=232_449)
    assert memory.memory_allocated() == before
    launch(scale_kernel, 1, 32, x, 2.0)
    np.testing.assert_array_equal(x.numpy(), np.full(4, 2))


def test_tensors_and_arrays_may_be_mixed_with_scalars():
    x, y, z = (Upload(np.full(10, v, np.float32)) for v in (1, 2, 0))
    launch(add_kernel, 1, THREADS, x, y.array(), z)
    launch(scale_kernel, 1, THREADS, z, np.float32(2))
    np.testing.assert_array_equal(z.numpy(), np.full(10, 6))


@pytest.mark.parametrize("argument", [None, "x", np.ones(3), np.float16(1), object(), 1j, [1]])
def test_what_a_kernel_cannot_take(argument):
    with pytest.raises(DTypeError, match="scale_kernel: an argument must be a tensor"):
        launch(scale_kernel, 1, 32, Upload(np.ones(4, np.float32)), argument)


@pytest.mark.parametrize("scalar", [2**63, -(2**63) - 1, 1e39])
def test_a_scalar_that_does_not_fit(scalar):
    x = Upload(np.ones(4, np.float32))
    launch(scale_kernel, 1, 32, x, type(scalar)(1))
    with pytest.raises(DTypeError, match="a scalar argument does not fit its type"):
        launch(scale_kernel, 1, 32, x, scalar)
    launch(scale_kernel, 1, 32, x, type(scalar)(1))
    np.testing.assert_array_equal(x.numpy(), np.ones(4))


def test_infinity_is_a_scalar():
    x = Upload(np.ones(2, np.float32))
    launch(scale_kernel, 1, 32, x, float("-inf"))
    np.testing.assert_array_equal(x.numpy(), np.full(2, -np.inf))


def test_a_plain_function_is_no_kernel():
    with pytest.raises(KernelError, match="kernel must be what numba.cuda.jit returns"):
        launch(lambda x: None, 1, 32, 1)


def test_a_kernel_that_does_not_compile():
    with pytest.raises(KernelError, match="unknown_name_kernel"):
        launch(unknown_name_kernel, 1, 32, Upload(np.ones(4, np.float32)))

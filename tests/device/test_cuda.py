"""What only a GPU can show: the driver's errors, large shared memory, halves in hardware, Numba.

The target-independent tests of this folder run on the GPU as well.
"""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from numba import cuda, float32

from blutrain import dtypes, memory
from blutrain.device import Event, Stream, copy_to_host, launch, synchronize
from blutrain.device.array import Array
from blutrain.errors import DeviceError, KernelError
from tests.device.device_arrays import Upload
from tests.device.test_half import (
    HALVES,
    PATTERNS,
    expected_bits,
    expected_float32,
    interesting_float32,
    is_nan,
)

pytestmark = pytest.mark.gpu

THREADS = 256


@cuda.jit
def copy_kernel(source, out):
    i = cuda.grid(1)
    if i < source.size:
        out[i] = source[i]


@cuda.jit
def reverse_kernel(x):
    shared = cuda.shared.array(0, float32)
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        shared[i] = x[i]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        x[i] = shared[x.size - 1 - i]


@cuda.jit
def spin_kernel(x, turns):
    value = x[0]
    for _ in range(turns):
        value = value * float32(1.0001) + float32(1)
    x[0] = value


def on_device(source: np.ndarray | Upload, out_dtype: dtypes.DType) -> Upload:
    """`source` copied by a kernel into an array of another dtype."""
    x = source if isinstance(source, Upload) else Upload(source)
    out = Upload(np.zeros(x.shape), out_dtype)
    launch(copy_kernel, -(-x.shape[0] // THREADS), THREADS, x, out)
    return out


def stored_bits(x: Upload) -> np.ndarray:
    out = np.empty(x.shape, np.uint16)
    copy_to_host(out, x.block.pointer)
    return out


@pytest.mark.parametrize("half", HALVES)
def test_every_half_is_read(half):
    x = Upload(PATTERNS)
    x.dtype = dtypes.as_dtype(half)
    got = on_device(x, dtypes.float32).numpy()
    want = expected_float32(half, PATTERNS)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~numbers)
    np.testing.assert_array_equal(got.view(np.uint32)[numbers], want.view(np.uint32)[numbers])


@pytest.mark.parametrize("half", HALVES)
def test_float32_is_rounded_to_nearest_even(half):
    values = interesting_float32(half)
    got, nan = stored_bits(on_device(values, dtypes.as_dtype(half))), np.isnan(values)
    np.testing.assert_array_equal(got[~nan], expected_bits(half, values)[~nan])
    assert is_nan(half, got)[nan].all()


@pytest.mark.parametrize("half", HALVES)
def test_float64_is_rounded_once(half):
    halves = expected_float32(half, PATTERNS)
    finite = np.unique(halves[np.isfinite(halves)]).astype(np.float64)
    lower, upper = finite[:-1], finite[1:]
    above = np.nextafter((lower + upper) / 2, np.inf)
    got = on_device(above, dtypes.as_dtype(half)).numpy()
    np.testing.assert_array_equal(got.astype(np.float64), upper)


def test_shared_memory_beyond_48_kib():
    host = np.arange(25_000, dtype=np.float32)
    x = Upload(host)
    launch(reverse_kernel, 1, THREADS, x, shared=host.nbytes)
    np.testing.assert_array_equal(x.numpy(), host[::-1])
    with pytest.raises(KernelError, match=r"reverse_kernel: shared must be at most \d+ bytes"):
        launch(reverse_kernel, 1, THREADS, x, shared=1 << 20)
    launch(reverse_kernel, 1, THREADS, x, shared=host.nbytes)
    np.testing.assert_array_equal(x.numpy(), host)


def test_a_block_that_needs_too_many_registers():
    lines = ["def kernel(x):", "    i = 100 * cuda.grid(1)"]
    lines += [f"    v{k} = x[i + {k}]" for k in range(100)]
    lines += ["    cuda.syncthreads()"]
    lines += [f"    x[i + {99 - k}] = v{k}" for k in range(100)]
    scope = {"cuda": cuda}
    exec("\n".join(lines), scope)
    x = Upload(np.arange(100 * 1024, dtype=np.float32))
    with pytest.raises(KernelError, match="block must have at most .* registers a thread, got"):
        launch(cuda.jit(scope["kernel"]), 1, 1024, x)
    limited = cuda.jit(max_registers=64)(scope["kernel"])
    launch(limited, 1, 1024, x)
    want = np.arange(100 * 1024, dtype=np.float32).reshape(1024, 100)[:, ::-1]
    np.testing.assert_array_equal(x.numpy().reshape(1024, 100), want)


def test_properties_are_plausible():
    from blutrain.device.cuda import driver

    seen = driver.properties()
    free, total = driver.memory_info()
    assert seen.compute_capability >= (7, 0)
    assert seen.name
    assert 0 < free <= total <= seen.memory
    assert seen.max_shared >= 48 << 10
    assert seen.driver >= (12, 0)


def test_numba_shares_the_context_and_the_order():
    x = cuda.to_device(np.arange(1000, dtype=np.float32))
    window = Array(
        x.__cuda_array_interface__["data"][0], (1000,), (4,), dtypes.float32, "C", owner=x
    )
    out = Upload(np.zeros(1000, np.float32))
    launch(copy_kernel, 4, THREADS, window, out)
    copy_kernel[4, THREADS](x, x)
    np.testing.assert_array_equal(out.numpy(), np.arange(1000))


def test_numba_allocates_from_our_cache():
    before = memory.memory_allocated()
    x = cuda.device_array(1 << 20, np.float32)
    assert memory.memory_allocated() - before == 4 << 20
    pointer = x.__cuda_array_interface__["data"][0]
    del x
    assert memory.memory_allocated() == before
    block = memory.shareable_buffer(4 << 20)
    assert block.pointer == pointer
    memory.free(block)
    assert cuda.current_context().get_memory_info().total > 0


@pytest.mark.peer
def test_pytorch_shares_the_context_and_the_order():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    x = torch.arange(1000, dtype=torch.float32, device="cuda") + 1
    out = torch.zeros(1000, device="cuda")
    windows = [Array(t.data_ptr(), (1000,), (4,), dtypes.float32, "C", owner=t) for t in (x, out)]
    launch(copy_kernel, 4, THREADS, *windows)
    assert bool((out * 2 == x * 2).all())


def test_streams_run_and_events_time():
    x = Upload(np.ones(1, np.float32))
    stream, start, end = Stream(), Event(), Event()
    launch(spin_kernel, 1, 1, x, 10, stream=stream)
    start.record(stream)
    launch(spin_kernel, 1, 1, x, 1_000_000, stream=stream)
    end.record(stream)
    elapsed = start.elapsed(end)
    assert 1e-4 < elapsed < 1
    other = Stream()
    other.wait(end)
    other.synchronize()


def test_a_new_thread_may_allocate_copy_and_launch():
    results = []

    def work():
        x = Upload(np.arange(500, dtype=np.float32))
        results.append(on_device(x, dtypes.float32).numpy())

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    for result in results:
        np.testing.assert_array_equal(result, np.arange(500))
    assert len(results) == 2


FAILING_PROGRAM = """
import numpy as np
from numba import cuda
from blutrain import dtypes
from blutrain.device import launch, synchronize
from blutrain.device.array import Array
from blutrain.errors import DeviceError

@cuda.jit
def wild_kernel(x):
    x[cuda.grid(1)] = 1

launch(wild_kernel, 1, 32, Array(64, (10,), (4,), dtypes.float32, "C"))
try:
    synchronize()
except DeviceError as error:
    print(error)
"""


def test_a_wild_address_is_reported_where_one_waits():
    """In a process of its own: the GPU cannot be used in that process any more."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING_PROGRAM],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stderr
    assert "run the kernel on the cpu target" in done.stdout


def test_an_error_of_the_driver_has_its_name_and_text():
    from blutrain.device.cuda import driver

    with pytest.raises(DeviceError, match=r"cuMemFree.*CUDA_ERROR_INVALID_VALUE \(1\)"):
        driver.release(12345)
    synchronize()

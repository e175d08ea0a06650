"""The cuda target's own logic, with a pretend driver: contexts, errors, attributes, arguments."""

import threading

import numpy as np
import pytest
from numba import cuda, float32, int64

from blutrain import dtypes, memory
from blutrain.device import arguments, graph, stream
from blutrain.device.array import Array
from blutrain.device.cuda import driver, virtual_memory
from blutrain.device.cuda import kernel as loading
from blutrain.device.launch import Buffer
from blutrain.errors import DeviceError, KernelError, OutOfMemoryError
from blutrain.memory.allocator import MIB, CachingAllocator
from blutrain.memory.cuda_backend import CudaArena, CudaBackend, CudaEvents
from tests.device.pretend_driver import CAPACITY, PretendDriver


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    fake = PretendDriver()
    cached = [
        driver.context, driver.properties, loading.load_kernel, virtual_memory.granularity,
    ]  # fmt: skip
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setattr(driver, "threads", type(driver.threads)())
    monkeypatch.setenv("BLUTRAIN_CACHE", str(tmp_path))
    for function in cached:
        function.cache_clear()
    yield fake
    for function in cached:
        function.cache_clear()


@cuda.jit
def scale_kernel(x, n):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= n


KINDS = (float32[::1], int64)


def packed(*values) -> Buffer:
    buffer = Buffer(arguments.slots([arguments.type_of(v) for v in values]))
    arguments.packer([arguments.type_of(v) for v in values])(buffer.data, *values)
    return buffer


def example() -> Buffer:
    return packed(Array(4096, (10,), (4,), dtypes.float32, "C"), -7)


def test_the_first_call_of_a_thread_gives_it_the_context(pretend):
    pointers = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: pointers.append(driver.allocate(512)))
        thread.start()
        thread.join()
    assert set(pointers) == set(pretend.memory)
    start = loading.load_kernel(scale_kernel, KINDS).starter((32, 1, 1))
    thread = threading.Thread(target=start, args=((1, 1, 1), 0, 0, example()))
    thread.start()
    thread.join()
    assert len(pretend.launches) == 1
    # A checker such as compute-sanitizer reports even a call that is made again.
    assert pretend.refused == 0


def test_a_context_that_another_library_took_away_is_entered_again(pretend):
    start = loading.load_kernel(scale_kernel, KINDS).starter((32, 1, 1))
    pretend.cuCtxSetCurrent(0)
    driver.synchronize()
    pretend.cuCtxSetCurrent(0)
    start((1, 1, 1), 0, 0, example())
    assert len(pretend.launches) == 1
    assert pretend.refused > 0


def test_properties(pretend):
    seen = driver.properties()
    assert seen == driver.Properties(
        "Pretend GPU", (9, 0), CAPACITY, 132, PretendDriver.CLOCK_KHZ * 1e3, 227 << 10, (13, 2)
    )


def test_copies_and_fills(pretend):
    pointer = driver.allocate(1024)
    host, out = np.arange(128, dtype=np.uint8), np.zeros(128, np.uint8)
    driver.copy_host_to_device(pointer, host.ctypes.data, 128)
    driver.copy_device_to_device(pointer + 512, pointer, 128)
    driver.fill(pointer, 9, 64)
    driver.copy_device_to_host(out.ctypes.data, pointer + 512, 128)
    np.testing.assert_array_equal(out, host)
    driver.copy_device_to_host(out.ctypes.data, pointer, 128)
    np.testing.assert_array_equal(out, [9] * 64 + list(range(64, 128)))
    driver.release(pointer)
    with pytest.raises(DeviceError, match=r"cuMemFree_v2: the driver reported CUDA_ERROR_INVALID"):
        driver.release(pointer)


def test_a_failed_kernel_is_reported_with_advice(pretend):
    driver.synchronize()
    pretend.fail_with = 700
    says = r"cuCtxSynchronize: the driver reported CUDA_ERROR_ILLEGAL_ADDRESS \(700\): what "
    with pytest.raises(DeviceError, match=says + "happened; run the kernel on the cpu target"):
        driver.synchronize()


def test_streams_and_events(pretend):
    stream, event = driver.create_stream(), driver.create_event()
    driver.record_event(event, stream)
    driver.stream_wait(stream, event)
    driver.synchronize_stream(stream)
    driver.synchronize_event(event)
    assert driver.elapsed_seconds(event, event) == 1.5
    driver.destroy_stream(stream)
    driver.destroy_event(event)
    assert pretend.alive == 0


def test_a_launch_hands_over_every_slot(pretend):
    start = loading.load_kernel(scale_kernel, KINDS).starter((32, 2, 1))
    start((3, 4, 5), 16, 0x7F00_1234_5678, example())
    slots = [0, 0, 10, 4, 4096, 10, 4, -7]
    geometry = (3, 4, 5, 32, 2, 1)
    assert pretend.launches == [(0x1234_5678_9ABC, geometry, 16, 0x7F00_1234_5678, slots)]


def test_half_arrays_and_scalars_have_as_many_slots_as_parameters(pretend):
    """The PTX's parameters, counted in its text, are the slots: one each."""
    for dtype in (dtypes.float32, dtypes.bfloat16):
        array = Array(4096, (2, 5), (20, 4), dtype, "A")
        kinds = tuple(arguments.numba_type(arguments.type_of(v)) for v in (array, True))
        two_kernel = cuda.jit(lambda x, flag: None)
        ptx = loading.compile_kernel(two_kernel, kinds, (9, 0)).text
        signature = ptx[ptx.index(".entry") : ptx.index("{")]
        assert signature.count(".param") == len(packed(array, True).parameters) - 1 == 10


def test_large_shared_memory_is_asked_for_once(pretend):
    pretend.static_shared = 1024
    start = loading.load_kernel(scale_kernel, KINDS).starter((32, 1, 1))
    start((1, 1, 1), 47 << 10, 0, example())
    assert pretend.attributes == {}
    for shared in (100_000, 60_000, 100_000):
        start((1, 1, 1), shared, 0, example())
        assert pretend.attributes == {8: 100_000}
    with pytest.raises(KernelError, match="shared must be at most 231424 bytes on this device, be"):
        start((1, 1, 1), 231_425, 0, example())


def test_a_block_must_fit_the_registers(pretend):
    pretend.max_threads, pretend.registers = 256, 200
    kernel = loading.load_kernel(scale_kernel, KINDS)
    kernel.starter((256, 1, 1))
    says = "scale_kernel: block must have at most 256 threads for this kernel, which takes 200"
    with pytest.raises(KernelError, match=says):
        kernel.starter((512, 1, 1))


def test_options_reach_the_driver(pretend):
    limited = cuda.jit(max_registers=40, shared_memory_carveout="MaxShared")(scale_kernel.py_func)
    loading.load_kernel(limited, KINDS)
    ((image, options),) = pretend.modules
    assert options[0] == 40
    assert options[6] == 8192
    assert b".entry" in image
    assert pretend.attributes == {9: 100}


def test_the_assembler_inside_the_driver_is_quoted(pretend):
    pretend.fail_with, pretend.log = 218, b"ptxas fatal :\n  no\0"
    with pytest.raises(DeviceError, match=r"scale_kernel: .*OTHER \(218\).*log: ptxas fatal : no"):
        loading.load_kernel(scale_kernel, KINDS)


def test_a_launch_that_fails(pretend):
    start = loading.load_kernel(scale_kernel, KINDS).starter((32, 1, 1))
    pretend.fail_with = 701
    with pytest.raises(DeviceError, match=r"scale_kernel: the driver .*\(701\).*fewer threads"):
        start((1, 1, 1), 0, 0, example())


def test_the_allocator_over_the_driver(pretend):
    allocator = CachingAllocator(CudaBackend())
    first = allocator.malloc(40 * MIB)
    allocator.free(first)
    second = allocator.malloc(50 * MIB)
    assert [len(m) for m in pretend.memory.values()] == [50 * MIB]
    with pytest.raises(OutOfMemoryError, match=r"14\.00 MiB left of the device's 64\.00 MiB"):
        allocator.malloc(20 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    assert pretend.memory == {}
    assert allocator.total() == CAPACITY


def test_segments_grow_in_place_by_virtual_memory(pretend):
    assert virtual_memory.supported()
    allocator = CachingAllocator(CudaBackend(), CudaArena())
    blocks = [allocator.malloc(6 * MIB) for _ in range(4)]
    assert len(pretend.ranges) == 1
    assert [b.pointer - blocks[0].pointer for b in blocks] == [k * 6 * MIB for k in range(4)]
    assert sum(pretend.handles.values()) == 24 * MIB
    allocator.free(blocks.pop(1))
    allocator.empty_cache()
    assert sum(pretend.handles.values()) == 18 * MIB
    with pytest.raises(OutOfMemoryError, match=r"largest free block 0 bytes"):
        allocator.malloc(60 * MIB)
    blocks.append(allocator.malloc(6 * MIB))  # the hole is filled again
    assert blocks[-1].pointer == blocks[0].pointer + 6 * MIB
    for block in blocks:
        allocator.free(block)
    allocator.empty_cache()
    assert not pretend.mapped
    assert not pretend.handles
    assert not pretend.ranges


def test_shareable_memory_is_plain(pretend):
    allocator = CachingAllocator(CudaBackend(), CudaArena())
    block = allocator.malloc_shareable(3 * MIB)
    assert block.pointer in pretend.memory
    assert not pretend.ranges
    small = allocator.malloc_shareable(100)
    assert allocator.statistics().allocated == 3 * MIB + 512
    allocator.free(block)
    allocator.free(small)
    allocator.empty_cache()
    assert pretend.memory == {}


def test_memory_waits_for_the_drivers_events(pretend):
    events = CudaEvents()
    allocator = CachingAllocator(CudaBackend(), CudaArena(), events)
    block = allocator.malloc(2 * MIB)
    pointer = block.pointer
    allocator.record_stream(block, 0x1234)
    allocator.free(block)
    pretend.unfinished = set(range(0x7F00_0000_0000, 0x7F00_0000_0100))
    other = allocator.malloc(2 * MIB)
    assert other.pointer != pointer
    assert allocator.statistics().pending == 2 * MIB
    pretend.unfinished = set()
    assert allocator.malloc(2 * MIB).pointer == pointer
    assert pretend.alive == len(events._unused) == 1


@pytest.fixture
def on_cuda(pretend, monkeypatch):
    """The modules of streams and graphs as on the cuda target."""
    for module in (stream, graph):
        monkeypatch.setattr(module, "TARGET", "cuda")
    monkeypatch.setattr(stream, "_unused", {})
    monkeypatch.setattr(graph, "_captures", type(graph._captures)())
    allocator = CachingAllocator(CudaBackend(), CudaArena(), CudaEvents())
    monkeypatch.setattr(memory, "allocator", allocator)
    return pretend


def test_the_driver_captures_a_stream_of_its_own(on_cuda):
    start = loading.load_kernel(scale_kernel, KINDS).starter((32, 1, 1))
    with graph.capture_graph() as captured:
        assert on_cuda.capturing == stream.here.handle != 0
        # Memory may be taken during the capture, which only a thread in relaxed mode may do.
        block = memory.allocator.malloc(5 * MIB)
        assert on_cuda.mode == 1
        start((1, 1, 1), 0, stream.here.handle, example())
        driver.fill(block.pointer, 0, 100, stream.here.handle)
    assert on_cuda.capturing == 0
    assert captured.n_nodes == 1
    captured.replay()
    with stream.Stream() as side:
        captured.replay()
    assert on_cuda.graph_launches == [(78, 0), (78, side.handle)]
    memory.allocator.free(block)
    memory.allocator.empty_cache()
    assert sum(on_cuda.handles.values()) == 6 * MIB
    alive = on_cuda.alive
    del captured
    memory.allocator.empty_cache()
    assert on_cuda.alive == alive - 1
    assert not on_cuda.handles


def test_a_capture_that_the_driver_refuses(on_cuda):
    says = r"cuStreamEndCapture: .*\(901\).*a graph can capture launches.*before or after"
    with pytest.raises(DeviceError, match=says), graph.capture_graph():
        on_cuda.fail_with = 901
    on_cuda.fail_with = 0
    assert stream.here.capture is None
    assert not driver.threads.is_capturing
    with graph.capture_graph() as captured:
        pass
    captured.replay()


def test_an_error_inside_a_capture_is_the_one_that_is_seen(on_cuda):
    on_cuda.fail_with = 901
    with pytest.raises(KeyError), graph.capture_graph():
        raise KeyError
    assert on_cuda.capturing == 0
    assert not driver.threads.is_capturing


def test_priorities_and_queries_reach_the_driver(on_cuda):
    assert stream.priority_range() == (0, -5)
    side = stream.Stream(priority=-9)
    assert side.priority == -5
    assert side.query()
    on_cuda.unfinished = {side.handle}
    assert not side.query()
    event = stream.Event(timing=False)
    on_cuda.unfinished = {event.handle}
    event.record()
    assert not event.query()


def test_work_outside_of_a_capture_goes_to_another_stream_in_relaxed_mode(on_cuda):
    with graph.capture_graph() as captured:
        capturing = stream.here.handle
        with graph.outside_capture():
            assert stream.here.handle not in (0, capturing)
            assert on_cuda.mode == 2
            block = memory.allocator.malloc(1000)
            assert block.chunk.segment.pool.arena.private == 0
        assert (stream.here.handle, stream.here.capture) == (capturing, captured)
        assert on_cuda.mode == 1
    memory.allocator.free(block)

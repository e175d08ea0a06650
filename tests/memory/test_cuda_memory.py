"""The allocator over a real GPU's memory."""

import numpy as np
import pytest

from blutrain import memory
from blutrain.device import copy_to_host, fill_bytes
from blutrain.errors import OutOfMemoryError

pytestmark = pytest.mark.gpu

GIB = 1 << 30


def test_memory_is_aligned_and_writeable():
    blocks = [memory.malloc(n) for n in (1, 1000, 1 << 20, (1 << 20) + 1, 3 << 20, 64 << 20)]
    for k, block in enumerate(blocks):
        assert block.pointer % 512 == 0
        fill_bytes(block.pointer, k, block.requested)
    for k, block in enumerate(blocks):
        out = np.empty(block.requested, np.uint8)
        copy_to_host(out, block.pointer)
        assert (out == k).all()
        memory.free(block)


def test_the_driver_sees_what_is_reserved_and_given_back():
    from blutrain.device.cuda import driver

    memory.empty_cache()
    free_before, _ = driver.memory_info()
    reserved_before = memory.memory_reserved()
    block = memory.malloc(GIB)
    assert memory.memory_reserved() - reserved_before == GIB
    assert free_before - driver.memory_info()[0] >= GIB
    memory.free(block)
    assert free_before - driver.memory_info()[0] >= GIB
    memory.empty_cache()
    assert memory.memory_reserved() == reserved_before
    assert free_before - driver.memory_info()[0] < GIB // 8


def test_more_than_the_device_has():
    with pytest.raises(OutOfMemoryError, match="malloc: there must be room for .* TiB more"):
        memory.malloc(1 << 42)
    memory.free(memory.malloc(1000))


def test_the_cache_is_given_back_before_memory_runs_out():
    from blutrain.device.cuda import driver

    memory.empty_cache()
    free, _ = driver.memory_info()
    half = free // 2 // (2 << 20) * (2 << 20)
    memory.free(memory.malloc(half))
    retries = memory.memory_stats()["num_alloc_retries"]
    # Larger than the cached segment and than what is left beside it.
    block = memory.malloc(half + half // 2)
    # A segment that can grow takes only what is missing; others are given back first.
    expected = retries + (not memory.snapshot()["allocator_settings"]["expandable_segments"])
    assert memory.memory_stats()["num_alloc_retries"] == expected
    memory.free(block)
    memory.empty_cache()


def test_a_limit():
    memory.empty_cache()
    memory.set_memory_limit(memory.memory_reserved() + 100 * (1 << 20))
    try:
        with pytest.raises(OutOfMemoryError, match="of a limit of"):
            memory.malloc(GIB)
        memory.free(memory.malloc(50 << 20))
    finally:
        memory.set_memory_limit(None)

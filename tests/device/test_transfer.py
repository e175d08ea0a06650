"""Copies between host and device, on whichever target the tests run on."""

import gc
import weakref

import numpy as np
import pytest

from blutrain.device import (
    TARGET,
    copy_device,
    copy_to_device,
    copy_to_host,
    fill_bytes,
    host_view,
)
from blutrain.errors import DeviceError
from blutrain.memory import free, malloc


@pytest.fixture
def memory():
    block = malloc(1 << 16)
    yield block.pointer
    free(block)


def test_there_and_back(memory):
    source = np.arange(1000, dtype=np.int32)
    out = np.zeros_like(source)
    copy_to_device(memory, source)
    copy_to_host(out, memory)
    np.testing.assert_array_equal(out, source)


def test_a_strided_source_is_packed(memory):
    source = np.arange(100, dtype=np.float64).reshape(10, 10)
    out = np.zeros((10, 10))
    copy_to_device(memory, source.T)
    copy_to_host(out, memory)
    np.testing.assert_array_equal(out, source.T)


def test_the_destination_must_be_packed_and_writeable(memory):
    with pytest.raises(DeviceError, match="destination must be contiguous and writeable"):
        copy_to_host(np.zeros((4, 4))[:, ::2], memory)
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    with pytest.raises(DeviceError, match="copy_to_host: destination"):
        copy_to_host(fixed, memory)


def test_on_the_device(memory):
    copy_to_device(memory, np.arange(100, dtype=np.uint8))
    copy_device(memory + 512, memory, 100)
    fill_bytes(memory, 0xAB, 50)
    out = np.zeros(100, np.uint8)
    copy_to_host(out, memory + 512)
    np.testing.assert_array_equal(out, np.arange(100))
    copy_to_host(out, memory)
    np.testing.assert_array_equal(out, [0xAB] * 50 + list(range(50, 100)))


def test_nothing_is_copied_from_and_to_nowhere():
    copy_to_device(0, np.zeros(0))
    copy_to_host(np.zeros((3, 0)), 0)
    copy_device(0, 0, 0)
    fill_bytes(0, 1, 0)


@pytest.mark.skipif(TARGET != "cpu", reason="device memory is no host memory")
def test_a_view_is_the_very_memory(memory):
    copy_to_device(memory, np.arange(24, dtype=np.float32))
    view = host_view(memory, (4, 6), (24, 4), np.float32)
    view[1, 2] = -1
    out = np.zeros(24, np.float32)
    copy_to_host(out, memory)
    assert out[8] == -1
    backwards = host_view(memory + 23 * 4, (24,), (-4,), "float32")
    np.testing.assert_array_equal(backwards, out[::-1])
    np.testing.assert_array_equal(host_view(memory, (3, 2), (0, 4), "f4"), [[0, 1]] * 3)
    assert host_view(memory, (), (), "f4") == 0
    assert host_view(0, (0, 3), (12, 4), "f4").shape == (0, 3)


@pytest.mark.skipif(TARGET != "cpu", reason="device memory is no host memory")
def test_a_view_keeps_its_owner(memory):
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    view = host_view(memory, (4,), (4,), np.float32, owner)[1:]
    del owner
    gc.collect()
    assert gone() is not None
    del view
    gc.collect()
    assert gone() is None


@pytest.mark.gpu
def test_the_gpu_has_no_host_view(memory):
    with pytest.raises(DeviceError, match="only the cpu target has host memory, got cuda"):
        host_view(memory, (4,), (4,), np.float32)

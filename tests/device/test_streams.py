"""Streams: what is current, whose memory is whose, and events."""

import threading

import numpy as np
import pytest

import blutrain as bt
from blutrain import memory
from blutrain.device import Event, Stream
from blutrain.device.array import Array
from blutrain.device.stream import here, priority_range
from blutrain.errors import DeviceError


def test_with_makes_a_stream_current_in_this_thread_only():
    stream, inner = Stream(), Stream()
    seen = []
    with stream:
        assert here.handle == stream.handle
        with inner:
            assert here.handle == inner.handle
        assert here.handle == stream.handle
        thread = threading.Thread(target=lambda: seen.append(here.handle))
        thread.start()
        thread.join()
    assert here.handle == 0
    assert here.place is None
    assert seen == [0]


def test_the_stream_before_is_current_again_after_an_error():
    with pytest.raises(KeyError), Stream():
        raise KeyError
    assert here.handle == 0


def test_work_of_two_streams_meets_at_an_event():
    side, done = Stream(blocking=False), Event(timing=False)
    x = bt.ones(1000)
    ready = Event()
    ready.record()
    with side:
        side.wait(ready)
        y = x * 3
        done.record()
    memory.record_stream(x, side)
    done.synchronize()
    assert done.query()
    assert side.query()
    np.testing.assert_array_equal(y.numpy(), np.full(1000, 3))


def test_memory_of_a_stream_serves_that_stream():
    first, second = Stream(), Stream()
    with first:
        block = memory.malloc(5000)
    pointer = block.pointer
    memory.free(block)
    with second:
        other = memory.malloc(5000)
        assert other.pointer != pointer
    with first:
        same = memory.malloc(5000)
        assert same.pointer == pointer
    memory.free(other)
    memory.free(same)


def test_a_streams_handle_is_used_again_when_it_is_gone():
    handle = Stream().handle
    assert Stream().handle == handle


def test_priorities_beyond_the_range_are_the_nearest():
    lowest, highest = priority_range()
    assert lowest >= highest
    assert Stream(priority=-100).priority == highest
    assert Stream(priority=100).priority == lowest


def test_events_without_timing_have_none():
    start, end = Event(), Event(timing=False)
    start.record()
    with pytest.raises(DeviceError, match="both events must be recorded first"):
        start.elapsed(end)
    end.record()
    with pytest.raises(DeviceError, match=r"both events must note their time; make them without"):
        start.elapsed(end)


def test_record_stream_takes_tensors_windows_and_blocks():
    side, x, block = Stream(), bt.ones(10), memory.malloc(100)
    for used in (x, x.array(), block):
        memory.record_stream(used, side)
    for used in (x._block if hasattr(x, "_block") else x.storage._block, block):
        assert used.chunk.streams == {side.handle}
    memory.free(block)
    for foreign in (3, Array(64, (1,), (4,), bt.float32, "C")):
        with pytest.raises(DeviceError, match="must come from blutrain's allocator"):
            memory.record_stream(foreign, side)

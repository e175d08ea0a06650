"""The allocator against a model that only remembers who owns which addresses."""

import bisect
import itertools
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from blutrain.errors import DeviceError, OutOfMemoryError
from blutrain.memory.allocator import MIB, CachingAllocator
from blutrain.memory.block import FREE, LIVE
from tests.memory.pretend_backend import PretendBackend

SIZES = st.one_of(
    st.integers(1, 4096),
    st.sampled_from([511, 512, 513, MIB - 1, MIB, MIB + 1, 10 * MIB, 10 * MIB + 1]),
    st.integers(1, 2 * MIB),
    st.integers(1 * MIB, 30 * MIB),
)
# A positive number asks for that many bytes, a negative one frees a block that lives.
STEPS = st.lists(
    st.one_of(SIZES, st.integers(-50, -1), st.integers(-50, -1)), min_size=4, max_size=30
)
EVENTS = ("empty_cache", "reset_peak", "device_fills_up", "device_has_room_again", "no_limit")


class AllocatorMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        # Nothing here is garbage, and a collection at every out-of-memory takes long.
        self.no_collection = mock.patch("blutrain.memory.allocator.gc.collect")
        self.no_collection.start()

    @initialize(capacity=st.sampled_from([8 * MIB, 64 * MIB, 200 * MIB]))
    def start(self, capacity):
        self.backend = PretendBackend(capacity)
        self.allocator = CachingAllocator(self.backend)
        self.blocks = []
        self.live = {}  # pointer -> (size, requested)
        self.limit = None
        self.peak = 0
        self.n_allocations = self.n_frees = 0

    @rule(steps=STEPS)
    def malloc_and_free(self, steps):
        for step in steps:
            if step > 0:
                self.malloc(step)
            elif self.blocks:
                self.free(self.blocks.pop(step % len(self.blocks)))

    def malloc(self, nbytes):
        try:
            block = self.allocator.malloc(nbytes)
        except OutOfMemoryError:
            self.check_that_there_is_no_room(nbytes)
            return
        assert block.pointer % 512 == 0
        assert block.size >= block.requested == nbytes
        assert block.size - nbytes < (512 if nbytes <= MIB else 64 << 10)
        assert block.pointer not in self.live
        self.blocks.append(block)
        self.live[block.pointer] = (block.size, nbytes)
        self.n_allocations += 1
        self.peak = max(self.peak, self.allocated())

    def free(self, block):
        self.allocator.free(block)
        del self.live[block.pointer]
        self.n_frees += 1
        with pytest.raises(DeviceError):
            self.allocator.free(block)

    @rule(event=st.sampled_from(EVENTS))
    def happen(self, event):
        if event == "empty_cache":
            self.allocator.empty_cache()
            # What remains reserved has something live in it.
            for pointer, size in self.backend.segments.items():
                assert any(pointer <= p < pointer + size for p in self.live)
        elif event == "reset_peak":
            self.allocator.reset_peak()
            self.peak = self.allocated()
        elif event == "no_limit":
            self.allocator.set_limit(None)
            self.limit = None
        else:
            self.backend.failing = event == "device_fills_up"

    @rule()
    def look(self):
        """The largest free block is the longest run of chunks that are not live."""
        longest = run = 0
        for chunk in self.allocator.chunks():
            if chunk.state == LIVE or chunk.previous is None:
                run = 0
            if chunk.state != LIVE:
                run += chunk.size
            longest = max(longest, run)
        stats = self.allocator.statistics()
        assert stats.largest_free == longest
        assert stats.n_segments == len(self.backend.segments)
        assert 0 <= stats.fragmentation <= 1

    @rule(limit=st.integers(1, 100))
    def set_limit(self, limit):
        self.limit = limit * MIB
        self.allocator.set_limit(self.limit)

    @invariant()
    def no_blocks_overlap_and_each_is_in_a_segment(self):
        starts = sorted(self.live)
        for first, second in itertools.pairwise(starts):
            assert first + self.live[first][0] <= second
        segments = sorted(self.backend.segments.items())
        for pointer, (size, _) in self.live.items():
            start, length = segments[bisect.bisect(segments, (pointer, 1 << 62)) - 1]
            assert start <= pointer
            assert pointer + size <= start + length

    @invariant()
    def statistics_agree(self):
        stats = self.allocator.counters()
        assert stats.allocated == self.allocated()
        assert stats.requested == sum(requested for _, requested in self.live.values())
        assert stats.reserved == self.backend.reserved
        assert stats.peak_allocated == self.peak
        assert stats.peak_reserved >= stats.reserved
        assert (stats.n_allocations, stats.n_frees) == (self.n_allocations, self.n_frees)

    @invariant()
    def free_chunks_are_merged(self):
        for chunk in self.allocator.chunks():
            if chunk.state == FREE and chunk.next is not None:
                assert chunk.next.state != FREE

    @invariant()
    def chunks_tile_their_segments(self):
        covered = {}
        for chunk in self.allocator.chunks():
            segment = chunk.segment
            at = covered.setdefault(segment.pointer, segment.pointer)
            assert chunk.pointer == at
            covered[segment.pointer] = at + chunk.size
            assert chunk.next is None or chunk.next.previous is chunk
            assert (chunk.state == LIVE) == (chunk.pointer in self.live)
        ends = {pointer: pointer + size for pointer, size in self.backend.segments.items()}
        assert covered == ends

    def teardown(self):
        self.no_collection.stop()
        if not hasattr(self, "allocator"):
            return
        for block in self.blocks:
            self.allocator.free(block)
        self.allocator.empty_cache()
        assert self.backend.segments == {}
        assert self.allocator.statistics().reserved == 0

    def allocated(self):
        return sum(size for size, _ in self.live.values())

    def check_that_there_is_no_room(self, nbytes):
        """Out of memory is raised only when no free chunk fits and no segment can be had."""
        small = nbytes <= MIB
        for chunk in self.allocator.chunks():
            if (chunk.segment.pool.name == "small") is small and chunk.state != LIVE:
                assert chunk.state == FREE
                assert chunk.size < nbytes
        segment = 2 * MIB if small else -(-nbytes // (2 * MIB)) * 2 * MIB
        room = 0 if self.backend.failing else self.backend.available()
        if self.limit is not None:
            room = min(room, self.limit - self.backend.reserved)
        assert segment > room


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

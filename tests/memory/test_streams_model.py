"""The allocator with streams, private pools and both kinds of segments, against a model.

The model knows which addresses a block has until it was freed *and* every stream that was recorded
for it has done the work that it was given before that.
"""

import gc
import itertools
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from blutrain.device.stream import enter_place, leave_place
from blutrain.errors import DeviceError, OutOfMemoryError
from blutrain.memory.allocator import MIB, CachingAllocator
from blutrain.memory.block import CACHED, FREE, HOLE, LIVE, PENDING
from blutrain.memory.private_pool import MemoryPool
from tests.memory.pretend_backend import PretendBackend, PretendEvents, PretendVirtual

SIZES = st.one_of(
    st.integers(1, 4096),
    st.sampled_from([MIB, MIB + 1, 2 * MIB, 10 * MIB]),
    st.integers(1 * MIB, 90 * MIB),
)
STREAMS = st.integers(0, 2)


class StreamsMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.sampled_from([16 * MIB, 100 * MIB, 300 * MIB]), expandable=st.booleans()
    )
    def start(self, capacity, expandable):
        self.no_collection = mock.patch("blutrain.memory.allocator.gc.collect")
        self.no_collection.start()
        self.backend = PretendBackend(capacity)
        self.virtual = PretendVirtual(self.backend)
        self.events = PretendEvents()
        virtual = self.virtual if expandable else None
        self.allocator = CachingAllocator(self.backend, virtual, self.events)
        self.blocks = []  # (block, place, {stream: turn of the last recorded work})
        self.used = []  # freed: (start, end, place, {stream: turn})
        self.pools = []
        self.capturing = False
        self.limit = None
        self.peak = self.peak_active = 0

    # What the model says -------------------------------------------------------------------------

    def still_used(self):
        self.used = [
            entry
            for entry in self.used
            if any(self.events.done.get(s, 0) < turn for s, turn in entry[3].items())
        ]
        return self.used

    def reserved(self):
        return self.backend.reserved + self.virtual.mapped_bytes

    def memory_of(self, private):
        """{address: bytes} of the memory of private pools."""
        found = {}
        for pool in self.allocator.pools():
            if pool.arena.private in private:
                for segment in pool.segments.values():
                    found.update(segment.pieces or {segment.pointer: segment.size})
        return found

    # Rules ---------------------------------------------------------------------------------------

    @rule(nbytes=SIZES, stream=STREAMS, pool=st.integers(0, 2), shareable=st.booleans())
    def malloc(self, nbytes, stream, pool, shareable):
        private = self.pools[pool - 1].number if 0 < pool <= len(self.pools) else 0
        malloc = self.allocator.malloc
        if shareable and pool == 2:
            private, malloc = -1, self.allocator.malloc_shareable
        enter_place(max(private, 0), stream)
        try:
            block = malloc(nbytes)
        except OutOfMemoryError:
            self.check_that_there_is_no_room(nbytes, (private, stream))
            return
        finally:
            leave_place()
        assert block.pointer % 512 == 0
        assert block.size >= block.requested == nbytes
        end = block.pointer + block.size
        for start, stop, _, _ in self.still_used():
            assert end <= start or stop <= block.pointer, "another stream still uses it"
        arena = block.chunk.segment.pool.arena
        assert (arena.private, arena.stream) == (private, stream)
        self.blocks.append((block, (private, stream), {}))
        allocated = sum(b.size for b, _, _ in self.blocks)
        self.peak = max(self.peak, allocated)
        stats = self.allocator.counters()
        self.peak_active = max(self.peak_active, allocated + stats.pending)

    @rule(nbytes=st.integers(1, 40 * MIB), count=st.integers(1, 6))
    def malloc_many(self, nbytes, count):
        for _ in range(count):
            self.malloc(nbytes, 0, 0, False)

    @rule(which=st.integers(0, 1000))
    def free(self, which):
        if not self.blocks:
            return
        block, place, streams = self.blocks.pop(which % len(self.blocks))
        self.allocator.free(block)
        # The event is recorded when the allocator next looks, which may be later, not earlier.
        if streams:
            turns = {s: self.events.given.get(s, 0) for s in streams}
            self.used.append((block.pointer, block.pointer + block.size, place, turns))
        with pytest.raises(DeviceError, match="freed before"):
            self.allocator.free(block)
        with pytest.raises(DeviceError, match="freed before"):
            self.allocator.record_stream(block, 1)

    @rule(which=st.integers(0, 1000), count=st.integers(1, 8))
    def free_many(self, which, count):
        for _ in range(count):
            self.free(which)

    @rule(which=st.integers(0, 1000), stream=STREAMS)
    def record_stream(self, which, stream):
        if self.blocks:
            block, place, streams = self.blocks[which % len(self.blocks)]
            turn = self.events.work(stream)
            self.allocator.record_stream(block, stream)
            if stream != place[1]:
                streams[stream] = turn

    @rule(nbytes=SIZES, stream=STREAMS, other=STREAMS)
    def use_elsewhere_free_and_ask_again(self, nbytes, stream, other):
        """The very request that would get the memory at once, were it not used elsewhere."""
        n_blocks = len(self.blocks)
        self.malloc(nbytes, stream, 0, False)
        if len(self.blocks) > n_blocks:
            self.record_stream(n_blocks, other)
            self.free(n_blocks)
            self.malloc(nbytes, stream, 0, False)

    @rule(stream=STREAMS, turns=st.integers(1, 5))
    def streams_go_on(self, stream, turns):
        self.events.run(stream, turns)

    @rule()
    def new_pool(self):
        if len(self.pools) < 2:
            self.pools.append(MemoryPool(self.allocator))

    @rule(which=st.integers(0, 1))
    def drop_pool(self, which):
        if which < len(self.pools):
            del self.pools[which]

    @rule()
    def capture_starts_or_ends(self):
        self.capturing = not self.capturing
        if self.capturing:
            self.allocator.begin_capture()
        else:
            self.allocator.end_capture()

    @rule()
    def empty_cache(self):
        pinned = {pool.number for pool in self.pools}
        kept = self.memory_of(pinned)
        self.allocator.empty_cache()
        assert self.memory_of(pinned) == kept
        if self.capturing:
            return
        for chunk in self.allocator.chunks():
            arena = chunk.segment.pool.arena
            if arena.private in pinned or chunk.state in (LIVE, PENDING, HOLE):
                continue
            # What is free and stays is a part of a segment or piece of which another part is used.
            pieces = chunk.segment.pieces
            if pieces is None:
                assert chunk.size < chunk.segment.size
            else:
                end = chunk.pointer + chunk.size
                assert not any(chunk.pointer <= p and p + n <= end for p, n in pieces.items())

    @rule(failing=st.booleans(), has_addresses=st.booleans())
    def device(self, failing, has_addresses):
        self.backend.failing, self.virtual.has_addresses = failing, has_addresses

    @rule(limit=st.one_of(st.none(), st.integers(1, 200)))
    def set_limit(self, limit):
        self.limit = None if limit is None else limit * MIB
        self.allocator.set_limit(self.limit)

    # Invariants ----------------------------------------------------------------------------------

    @invariant()
    def nothing_overlaps_and_all_has_memory(self):
        spans = sorted((b.pointer, b.pointer + b.size) for b, _, _ in self.blocks)
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start
        memory = sorted([*self.backend.segments.items(), *self.virtual.pieces.items()])
        joined = []  # stretches of addresses with memory
        for pointer, size in memory:
            if joined and joined[-1][1] == pointer:
                joined[-1][1] = pointer + size
            else:
                joined.append([pointer, pointer + size])
        for start, end in spans:
            assert any(a <= start and end <= b for a, b in joined)

    @invariant()
    def statistics_agree(self):
        stats = self.allocator.statistics()
        live = [b for b, _, _ in self.blocks]
        assert stats.allocated == sum(b.size for b in live)
        assert stats.requested == sum(b.requested for b in live)
        assert stats.n_allocations - stats.n_frees == len(live)
        assert stats.peak_allocated == self.peak
        assert stats.reserved == self.reserved()
        chunks = self.allocator.chunks()
        assert stats.pending == sum(c.size for c in chunks if c.state == PENDING)
        assert stats.n_segments == len(self.backend.segments) + len(self.virtual.ranges)
        keys = stats.as_dict()
        for key in ("allocated_bytes", "active_bytes", "reserved_bytes", "segment", "allocation"):
            for kind in ("current", "allocated", "freed"):
                parts = (keys[f"{key}.{pool}_pool.{kind}"] for pool in ("small", "large"))
                assert keys[f"{key}.all.{kind}"] == sum(parts), (key, kind)
        assert keys["active_bytes.all.peak"] == self.peak_active
        for pool in ("all", "small_pool", "large_pool"):
            assert keys[f"active_bytes.{pool}.peak"] >= keys[f"active_bytes.{pool}.current"]
        free = sum(c.size for c in chunks if c.state in (CACHED, FREE))
        assert stats.reserved == stats.allocated + stats.pending + free
        assert keys["inactive_split_bytes.all.current"] <= free

    @invariant()
    def chunks_tile_their_segments(self):
        at = {}
        holes = {c.pointer for c in self.allocator.chunks() if c.state == HOLE}
        for chunk in self.allocator.chunks():
            segment = chunk.segment
            assert chunk.pointer == at.get(id(segment), segment.pointer)
            at[id(segment)] = chunk.pointer + chunk.size
            assert chunk.size > 0
            for state in (FREE, HOLE):
                both = chunk.next is not None and chunk.state == chunk.next.state == state
                assert not both, "neighbours that are not merged"
            assert segment.holes.keys() <= holes
            if segment.pieces is not None:
                assert (chunk.state == HOLE) == (segment.holes.get(chunk.pointer) is chunk)

    def teardown(self):
        if not hasattr(self, "allocator"):
            return
        self.no_collection.stop()
        if self.capturing:
            self.allocator.end_capture()
        for block, _, _ in self.blocks:
            self.allocator.free(block)
        for stream in range(3):
            self.events.run(stream, 10**6)
        self.pools.clear()
        gc.collect()
        self.allocator.empty_cache()
        stats = self.allocator.statistics()
        assert (stats.allocated, stats.pending, stats.reserved, stats.n_segments) == (0, 0, 0, 0)
        assert not self.backend.segments
        assert not self.virtual.ranges
        assert not self.virtual.pieces
        assert self.events.alive == 0

    def check_that_there_is_no_room(self, nbytes, place):
        """No free chunk of the arena fits, and the backend cannot give what is missing."""
        rounded = -(-nbytes // 512) * 512 if nbytes <= MIB else -(-nbytes // 65536) * 65536
        for chunk in self.allocator.chunks():
            pool = chunk.segment.pool
            if (pool.arena.private, pool.arena.stream) == place and chunk.state != HOLE:
                same = (pool.name == "small") == (nbytes <= MIB)
                fits = chunk.state in (CACHED, FREE) and chunk.size >= rounded
                assert not (same and fits)
        # It was waited for, unless a capture forbids that.
        assert self.capturing or self.allocator.counters().pending == 0
        room = 0 if self.backend.failing else self.backend.available()
        if self.limit is not None:
            room = min(room, self.limit - self.reserved())
        # A whole new segment would do in any case.
        assert -(-rounded // (2 * MIB)) * 2 * MIB > room


TestStreams = StreamsMachine.TestCase
TestStreams.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

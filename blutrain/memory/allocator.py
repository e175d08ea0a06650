"""The caching allocator: memory is reserved in segments, divided, and kept for the next request.

A request is rounded up (to 512 bytes; above 1 MiB to 64 KiB: at most 6 % are lost, where powers of
two lose a third) and served from the first of these that can:

1. the *bin* of that very size: a chunk that was freed and left as it is. A training step asks for
   the same sizes again and again, so this is the path that matters, and it is a list's `pop`;
2. the *free* chunks, after all bins were emptied into them and neighbours merged: the smallest
   that fits, divided if larger. Among equals the lowest address, which keeps the ends free;
3. new memory of the backend (`growth`);
4. new memory after all that is free was given back: it may have the wrong size or sit in another
   pool;
5. memory that other streams have meanwhile done with, or that was garbage in cycles.

If the backend has no room then, `OutOfMemoryError` says who has the memory.

Freed memory is given out again at once although kernels may still use it: every stream has an
*arena* of its own, from which only requests made on that stream are served, and the next user's
kernels come after those. Of memory that other streams use as well (`record_stream`), an event is
recorded on each of them when it is freed, and it waits until they have passed. A *private pool*
has arenas of its own too: what a graph captured keeps its addresses.

Threads may allocate and free at the same time. `free` takes no lock, it only appends to a queue
that the next `malloc` empties: Python may run a tensor's finalizer at any moment, even inside
`malloc`.
"""

from __future__ import annotations

import gc
import threading
from collections import deque

from blutrain.device.stream import enter_place, here, leave_place
from blutrain.errors import DeviceError, OutOfMemoryError, message
from blutrain.memory import report
from blutrain.memory.arenas import SHAREABLE, Arenas
from blutrain.memory.backend import Backend, InOrder, StreamEvents, VirtualMemory
from blutrain.memory.block import CACHED, LIVE, Block, Chunk, Pool
from blutrain.memory.chunks import best_fit, chunks_of, divide, empty_bins
from blutrain.memory.growth import KIB, MIB, Growth
from blutrain.memory.history import History
from blutrain.memory.statistics import PoolCounts, Statistics, statistics_of
from blutrain.memory.stream_waits import StreamWaits

__all__ = ["ALIGNMENT", "KIB", "MIB", "CachingAllocator"]

ALIGNMENT = 512
SMALL_LIMIT = 1 * MIB
_new = object.__new__


class CachingAllocator:
    """Memory of one backend, in pieces of any size, cached.

    Args:
        backend: where plain segments come from.
        virtual: where expandable segments get addresses and memory; None for plain ones only.
        events: how to know that a stream has done with a block.

    Attributes:
        expandable: whether segments grow in place.
        history: where every event is noted; None for nowhere.

    Example:
        >>> from blutrain.memory.backend import HostBackend
        >>> allocator = CachingAllocator(HostBackend())
        >>> block = allocator.malloc(1000)
        >>> block.pointer % 512, block.size, block.requested
        (0, 1024, 1000)
        >>> allocator.free(block)
        >>> allocator.statistics().reserved
        2097152
        >>> allocator.empty_cache()
        >>> allocator.statistics().reserved
        0
    """

    def __init__(
        self,
        backend: Backend,
        virtual: VirtualMemory | None = None,
        events: StreamEvents | None = None,
    ) -> None:
        # Re-entrant: a finalizer that runs inside malloc may itself allocate.
        self._lock = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._backend = backend
        self._counts = PoolCounts()
        self._total = self._counts.total
        self._growth = Growth(backend, virtual, self._total)
        self.expandable = virtual is not None
        self._arenas = Arenas(self.expandable, self._counts)
        arena = self._arenas.at((0, 0))
        self._small, self._large = arena.small, arena.large
        self._n_retries = self._n_out_of_memory = 0
        self._freed: deque[Chunk] = deque()
        self._waits = StreamWaits(events or InOrder(), self._total, self._to_bin)
        self.history: History | None = None

    # The hot path --------------------------------------------------------------------------------

    def malloc(self, nbytes: int) -> Block:
        """Memory of at least `nbytes` bytes, aligned to 512, with whatever was in it.

        It belongs to the current stream: kernels on others may use it only if `record_stream` is
        told before it is freed.

        Raises:
            OutOfMemoryError: there is no room, even after the cache was given back.
        """
        place = here.place
        if nbytes <= SMALL_LIMIT:
            if nbytes <= 0:
                return self._empty_block(nbytes)
            size = (nbytes + 511) & -512
            pool = self._small if place is None else self._arenas.at(place).small
        else:
            size = (nbytes + 65535) & -65536
            pool = self._large if place is None else self._arenas.at(place).large
        # A `with` would take twice the time.
        self._acquire()
        try:
            freed, held = self._freed, self._waits.held
            if freed and not held and self.history is None:
                # What was just freed often has the very size: then only its owner changes. Use in
                # all stays as it was, so there is no peak to note either.
                chunk = freed.popleft()
                mine = chunk.segment.pool is pool and chunk.streams is None
                if mine and chunk.requested == nbytes:
                    counts = pool.counts
                    counts.allocated.freed += size
                    counts.requested.freed += nbytes
                    counts.allocations.freed += 1
                    block = _new(Block)  # a call of `__init__` would be a sixth of the time
                    block.pointer, block.size = chunk.pointer, size
                    block.requested, block.chunk = nbytes, chunk
                    return block
                freed.appendleft(chunk)
            if freed or held:
                self._take_freed()
            try:
                chunk = pool.bins[size].pop()
            except (KeyError, IndexError):
                chunk = self._find(pool, size, nbytes)
            chunk.state = LIVE
            chunk.requested = nbytes
            counts = pool.counts
            counts.allocations.current += 1
            counts.requested.current += nbytes
            counts.allocated.current += size
            if self.history is not None:
                chunk.frames = self.history.note("alloc", chunk)
            return Block(chunk.pointer, size, nbytes, chunk)
        finally:
            self._release()

    def free(self, block: Block) -> None:
        """Take back what `malloc` gave.

        Raises:
            DeviceError: it was freed before.
        """
        try:
            chunk = block.chunk
            # Of two threads that free one block, this succeeds for one only.
            del block.chunk
        except AttributeError:
            wrong = "a block must be freed once, this one was freed before"
            raise DeviceError(message("free", wrong, block)) from None
        if chunk is not None:
            if self.history is not None:
                self.history.note("free_requested", chunk)
            self._freed.append(chunk)

    def _take_freed(self) -> None:
        """Put what was freed since the last call into the bins, and what streams are done with."""
        self._counts.note_peaks()
        freed = self._freed
        while freed:
            chunk = freed.popleft()
            counts = chunk.segment.pool.counts
            counts.allocated.remove(chunk.size)
            counts.requested.remove(chunk.requested)
            counts.allocations.remove(1)
            if chunk.streams:
                self._waits.add(chunk)
            else:
                self._to_bin(chunk)
        if self._waits.held:
            self._waits.take_passed()

    def _to_bin(self, chunk: Chunk) -> None:
        chunk.state = CACHED
        bins = chunk.segment.pool.bins
        bins.setdefault(chunk.size, []).append(chunk)
        if self.history is not None:
            self.history.note("free_completed", chunk, frames=False)

    def _empty_block(self, nbytes: int) -> Block:
        if nbytes < 0:
            raise DeviceError(message("malloc", "nbytes must not be negative", nbytes))
        return Block(0, 0, 0, None)

    def malloc_shareable(self, nbytes: int) -> Block:
        """Like `malloc`, from plain segments, which CUDA can share with other processes."""
        enter_place(SHAREABLE, None)
        try:
            return self.malloc(nbytes)
        finally:
            leave_place()

    def unpin(self, private: int) -> None:
        """Let the memory of a private pool go, as soon as nothing in it is in use."""
        with self._lock:
            self._arenas.unpin(private)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that work on `stream` uses a block, so that `free` waits for it.

        Args:
            block: what `malloc` gave and nobody freed yet.
            stream: handle of the stream, 0 for the default one.

        Raises:
            DeviceError: the block was freed before.
        """
        try:
            chunk = block.chunk
        except AttributeError:
            wrong = "a block must be in use, this one was freed before"
            raise DeviceError(message("record_stream", wrong, block)) from None
        if chunk is not None and chunk.segment.pool.arena.stream != stream:
            chunk.streams = {stream} | (chunk.streams or set())

    def begin_capture(self) -> None:
        """Record no events and give nothing back until `end_capture`: a capture forbids both."""
        with self._lock:
            self._take_freed()
            self._waits.begin_capture()

    def end_capture(self) -> None:
        """See `begin_capture`."""
        with self._lock:
            self._waits.end_capture()

    def empty_cache(self) -> None:
        """Give all that is free back to the backend, as far as segments can be given back."""
        with self._lock:
            self._release_free()

    def set_limit(self, nbytes: int | None) -> None:
        """Never reserve more than `nbytes` from now on; None takes the limit away.

        Raises:
            DeviceError: the limit is not positive.
        """
        if nbytes is not None and nbytes <= 0:
            wrong = "the limit must be a positive number of bytes, or None"
            raise DeviceError(message("set_memory_limit", wrong, nbytes))
        with self._lock:
            self._growth.limit = nbytes

    def record_history(self, history: History | None) -> None:
        """Note every event in `history` from now on; None ends it."""
        with self._lock:
            self.history = history
            self._growth.note = None if history is None else history.add

    def statistics(self) -> Statistics:
        """The numbers as of now, in a copy. Takes time in proportion to the number of blocks."""
        with self._lock:
            return report.with_free(self.counters(), self.pools())

    def counters(self) -> Statistics:
        """The numbers that are counted as things happen: all but those of free blocks."""
        with self._lock:
            self._take_freed()
            return statistics_of(self._counts, self._n_retries, self._n_out_of_memory)

    def reset_peak(self) -> None:
        """Let the peaks start again from what is allocated and reserved now."""
        with self._lock:
            self._take_freed()
            self._counts.reset_peaks()

    def device_total(self) -> int:
        """Bytes of memory of the device, whatever the limit is."""
        return self._backend.total()

    def total(self) -> int:
        """Bytes of memory that can be had at most: the device's, or the limit if that is less."""
        total, limit = self.device_total(), self._growth.limit
        return total if limit is None else min(total, limit)

    def pools(self) -> list[Pool]:
        """The pools of every arena."""
        return self._arenas.pools()

    def chunks(self) -> list[Chunk]:
        """Every chunk of every segment, by pool, in the order of addresses within a segment."""
        with self._lock:
            self._take_freed()
            segments = [s for pool in self.pools() for s in pool.segments.values()]
            return [chunk for segment in segments for chunk in chunks_of(segment)]

    def _find(self, pool: Pool, size: int, nbytes: int) -> Chunk:
        """A chunk of just `size` bytes that is in no bin and not among the free ones."""
        empty_bins(pool)
        chunk = best_fit(pool, size) or self._growth.grow(pool, size)
        if chunk is None:
            self._n_retries += 1
            self._release_free()
            chunk = self._growth.grow(pool, size)
        if chunk is None:
            # Tensors in reference cycles are garbage that still holds memory.
            gc.collect()
            self._take_freed()
            self._waits.take_passed(wait=True)
            self._release_free()
            chunk = best_fit(pool, size) or self._growth.grow(pool, size)
        if chunk is None:
            self._n_out_of_memory += 1
            raise self._out_of_memory(pool, nbytes)
        divide(pool, chunk, size)
        return chunk

    def _release_free(self) -> None:
        self._take_freed()
        for pool in self.pools():
            empty_bins(pool)
            # A capture forbids the calls that give memory back.
            if not pool.arena.pinned and not self._waits.capturing:
                self._growth.trim(pool)
        self._arenas.forget_empty()

    def _out_of_memory(self, pool: Pool, nbytes: int) -> OutOfMemoryError:
        available = self._backend.available()
        if self.history is not None:
            self.history.out_of_memory(nbytes, available, pool.arena.stream)
        return report.out_of_memory(
            nbytes,
            pool,
            self.pools(),
            self.statistics(),
            limit=self._growth.limit,
            available=available,
            total=self._backend.total(),
            capturing=self._waits.capturing,
        )

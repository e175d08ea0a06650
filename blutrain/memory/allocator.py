"""The caching allocator: memory is reserved in segments, divided, and kept for the next request.

A request is rounded up (to 512 bytes; above 1 MiB to 64 KiB: at most 6 % are lost, where powers of
two lose a third) and served from the first of these that can:

1. the *bin* of that very size: a chunk that was freed and left as it is. A training step asks for
   the same sizes again and again, so this is the path that matters, and it is a list's `pop`;
2. the *free* chunks, after all bins were emptied into them and neighbours merged: the smallest
   that fits, divided if larger. Among equals the lowest address, which keeps the ends free;
3. a new segment of the backend: 2 MiB for the small pool (up to 1 MiB), 20 MiB for requests up to
   10 MiB, just as much as needed above;
4. a new segment after all segments without a live chunk were released: their cached memory may
   have the wrong size or sit in the other pool.

If the backend has no room then, `OutOfMemoryError` says who has the memory.

Freed memory is given out again at once although kernels may still use it: on one stream, which is
what blutrain launches on, the next user's kernels come after those.

Threads may allocate and free at the same time. `free` takes no lock, it only appends to a queue
that the next `malloc` empties: Python may run a tensor's finalizer at any moment, even inside
`malloc`.
"""

from __future__ import annotations

import gc
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator

from blutrain.errors import DeviceError, OutOfMemoryError, message
from blutrain.memory.backend import Backend
from blutrain.memory.block import CACHED, FREE, GONE, LIVE, Block, Chunk, Pool, Segment
from blutrain.memory.statistics import Statistics, format_bytes

KIB, MIB = 1 << 10, 1 << 20
ALIGNMENT = 512
SMALL_LIMIT = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_GRANULARITY = 64 * KIB
MEDIUM_LIMIT = 10 * MIB
MEDIUM_SEGMENT = 20 * MIB
SEGMENT_GRANULARITY = 2 * MIB


class CachingAllocator:
    """Memory of one backend, in pieces of any size, cached.

    Args:
        backend: where segments come from.

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

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._small = Pool("small", ALIGNMENT)
        self._large = Pool("large", LARGE_GRANULARITY)
        self._limit: int | None = None
        self._stats = Statistics()
        self._freed: deque[Chunk] = deque()
        # Re-entrant: a finalizer that runs inside malloc may itself allocate.
        self._lock = threading.RLock()

    # The hot path --------------------------------------------------------------------------------

    def malloc(self, nbytes: int) -> Block:
        """Memory of at least `nbytes` bytes, aligned to 512, with whatever was in it.

        Raises:
            OutOfMemoryError: there is no room, even after the cache was given back.
        """
        if nbytes <= SMALL_LIMIT:
            if nbytes <= 0:
                return self._empty_block(nbytes)
            size = (nbytes + 511) & -512
            pool = self._small
        else:
            size = (nbytes + 65535) & -65536
            pool = self._large
        with self._lock:
            if self._freed:
                self._take_freed()
            try:
                chunk = pool.bins[size].pop()
            except (KeyError, IndexError):
                chunk = self._find(pool, size, nbytes)
            chunk.state = LIVE
            chunk.requested = nbytes
            stats = self._stats
            stats.n_allocations += 1
            stats.requested += nbytes
            stats.allocated = allocated = stats.allocated + size
            if allocated > stats.peak_allocated:
                stats.peak_allocated = allocated
            return Block(chunk.pointer, size, nbytes, chunk)

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
            self._freed.append(chunk)

    def _take_freed(self) -> None:
        """Put what was freed since the last call into the bins."""
        stats = self._stats
        freed = self._freed
        while freed:
            chunk = freed.popleft()
            size = chunk.size
            chunk.state = CACHED
            stats.n_frees += 1
            stats.allocated -= size
            stats.requested -= chunk.requested
            bins = chunk.segment.pool.bins
            if size in bins:
                bins[size].append(chunk)
            else:
                bins[size] = [chunk]

    def _empty_block(self, nbytes: int) -> Block:
        if nbytes < 0:
            raise DeviceError(message("malloc", "nbytes must not be negative", nbytes))
        return Block(0, 0, 0, None)

    # Everything else -----------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Give every segment in which nothing is live back to the backend."""
        with self._lock:
            self._release_free_segments()

    def set_limit(self, nbytes: int | None) -> None:
        """Never reserve more than `nbytes` from now on; None takes the limit away.

        Raises:
            DeviceError: the limit is not positive.
        """
        if nbytes is not None and nbytes <= 0:
            wrong = "the limit must be a positive number of bytes, or None"
            raise DeviceError(message("set_memory_limit", wrong, nbytes))
        with self._lock:
            self._limit = nbytes

    def statistics(self) -> Statistics:
        """The numbers as of now, in a copy. Takes time in proportion to the number of blocks."""
        with self._lock:
            stats = self.counters()
            stats.largest_free = max(self._free_runs(), default=0)
            stats.n_segments = len(self._small.segments) + len(self._large.segments)
            return stats

    def counters(self) -> Statistics:
        """The numbers that are counted as things happen: all but those of free blocks."""
        with self._lock:
            self._take_freed()
            return self._stats.copy()

    def reset_peak(self) -> None:
        """Let the peaks start again from what is allocated and reserved now."""
        with self._lock:
            self._take_freed()
            self._stats.peak_allocated = self._stats.allocated
            self._stats.peak_reserved = self._stats.reserved

    def device_total(self) -> int:
        """Bytes of memory of the device, whatever the limit is."""
        return self._backend.total()

    def total(self) -> int:
        """Bytes of memory that can be had at most: the device's, or the limit if that is less."""
        total = self.device_total()
        return total if self._limit is None else min(total, self._limit)

    def chunks(self) -> list[Chunk]:
        """Every chunk of every segment, by pool, in the order of addresses within a segment."""
        found = []
        with self._lock:
            self._take_freed()
            for pool in (self._small, self._large):
                for segment in pool.segments.values():
                    chunk: Chunk | None = segment.first
                    while chunk is not None:
                        found.append(chunk)
                        chunk = chunk.next
        return found

    def _find(self, pool: Pool, size: int, nbytes: int) -> Chunk:
        """A chunk of just `size` bytes that is in no bin and not among the free ones."""
        _empty_bins(pool)
        chunk = _best_fit(pool, size)
        if chunk is None:
            chunk = self._new_segment(pool, size)
        if chunk is None:
            self._stats.n_retries += 1
            self._release_free_segments()
            chunk = self._new_segment(pool, size)
        if chunk is None:
            # Tensors in reference cycles are garbage that still holds memory.
            gc.collect()
            self._release_free_segments()
            chunk = _best_fit(pool, size) or self._new_segment(pool, size)
        if chunk is None:
            self._stats.n_out_of_memory += 1
            raise self._out_of_memory(nbytes)
        _divide(pool, chunk, size)
        return chunk

    def _new_segment(self, pool: Pool, size: int) -> Chunk | None:
        """A free chunk that fills a new segment; None when there is no room for one."""
        for nbytes in _segment_sizes(pool, size):
            if self._limit is not None and self._stats.reserved + nbytes > self._limit:
                continue
            pointer = self._backend.reserve(nbytes)
            if pointer is None:
                continue
            segment = Segment(pointer, nbytes, pool)
            pool.segments[pointer] = segment
            self._stats.reserved += nbytes
            self._stats.peak_reserved = max(self._stats.peak_reserved, self._stats.reserved)
            return segment.first
        return None

    def _release_free_segments(self) -> None:
        self._take_freed()
        for pool in (self._small, self._large):
            _empty_bins(pool)
            for segment in list(pool.segments.values()):
                first = segment.first
                if first.state == FREE and first.size == segment.size:
                    _remove_free(pool, first)
                    first.state = GONE
                    del pool.segments[segment.pointer]
                    self._stats.reserved -= segment.size
                    self._backend.release(segment.pointer, segment.size)

    def _free_runs(self) -> Iterator[int]:
        """The sizes that free and cached chunks would have if all were merged now."""
        run, segment = 0, None
        for chunk in self.chunks():
            if run and (chunk.state == LIVE or chunk.segment is not segment):
                yield run
                run = 0
            segment = chunk.segment
            run += 0 if chunk.state == LIVE else chunk.size
        if run:
            yield run

    def _out_of_memory(self, nbytes: int) -> OutOfMemoryError:
        stats = self.statistics()
        cached = stats.reserved - stats.allocated
        limit = "" if self._limit is None else f" of a limit of {format_bytes(self._limit)}"
        got = (
            f"{format_bytes(stats.allocated)} allocated and {format_bytes(stats.reserved)} reserved"
            f"{limit}, {format_bytes(self._backend.available())} left of the device's "
            f"{format_bytes(self._backend.total())}, largest free block "
            f"{format_bytes(stats.largest_free)}, fragmentation {stats.fragmentation:.0%}"
        )
        advice = "use a smaller batch or sequence, bfloat16, or bt.checkpoint to recompute"
        if cached > nbytes:
            advice = "keep tensors of changing sizes from living side by side; " + advice
        wrong = f"there must be room for {format_bytes(nbytes)} more"
        return OutOfMemoryError(message("malloc", wrong, got, advice))


def _segment_sizes(pool: Pool, size: int) -> list[int]:
    """Sizes of a segment for a chunk of `size` bytes: the one wished for, then the least."""
    least = (size + SEGMENT_GRANULARITY - 1) // SEGMENT_GRANULARITY * SEGMENT_GRANULARITY
    if pool.name == "small":
        return [SMALL_SEGMENT]
    return [MEDIUM_SEGMENT, least] if size <= MEDIUM_LIMIT else [least]


def _best_fit(pool: Pool, size: int) -> Chunk | None:
    """Take the smallest free chunk of at least `size` bytes out of the free ones."""
    at = bisect_left(pool.free, (size, 0))
    if at == len(pool.free):
        return None
    _, pointer = pool.free.pop(at)
    return pool.chunks.pop(pointer)


def _divide(pool: Pool, chunk: Chunk, size: int) -> None:
    """Cut a chunk down to `size` bytes and put the rest among the free ones."""
    rest = chunk.size - size
    if rest == 0:
        return
    behind = Chunk(chunk.pointer + size, rest, chunk.segment)
    behind.previous, behind.next = chunk, chunk.next
    if chunk.next is not None:
        chunk.next.previous = behind
    chunk.next = behind
    chunk.size = size
    _add_free(pool, behind)


def _empty_bins(pool: Pool) -> None:
    """Merge every cached chunk with its neighbours that are not live, into the free ones."""
    for cached in pool.bins.values():
        while cached:
            chunk = cached.pop()
            if chunk.state == CACHED:
                _add_free(pool, _merge(pool, chunk))
    pool.bins.clear()


def _merge(pool: Pool, chunk: Chunk) -> Chunk:
    """The chunk that remains when `chunk` has absorbed all its neighbours that are not live.

    An absorbed chunk that is still in a bin is GONE, by which `_empty_bins` knows it.
    """
    while chunk.previous is not None and chunk.previous.state != LIVE:
        chunk = chunk.previous
    if chunk.state == FREE:
        _remove_free(pool, chunk)
    while chunk.next is not None and chunk.next.state != LIVE:
        absorbed = chunk.next
        if absorbed.state == FREE:
            _remove_free(pool, absorbed)
        absorbed.state = GONE
        chunk.size += absorbed.size
        chunk.next = absorbed.next
        if absorbed.next is not None:
            absorbed.next.previous = chunk
    return chunk


def _add_free(pool: Pool, chunk: Chunk) -> None:
    chunk.state = FREE
    insort(pool.free, (chunk.size, chunk.pointer))
    pool.chunks[chunk.pointer] = chunk


def _remove_free(pool: Pool, chunk: Chunk) -> None:
    del pool.free[bisect_left(pool.free, (chunk.size, chunk.pointer))]
    del pool.chunks[chunk.pointer]

"""How pools grow and shrink: segments of the backend, whole or growing in place.

A *plain* segment is taken as a whole and given back as a whole: 2 MiB for the small pool, 20 MiB
for requests up to 10 MiB, just as much as needed above.

An *expandable* segment is a range of addresses, more than the device has memory, of which only a
part has memory behind it. A pool that has no room gets more behind the end of what it has, or
in a hole, and only what is missing there: what was free beside it counts. So the reserved memory
stays near the allocated, and a request is not lost for lying between two segments. What is free is
given back in the pieces in which it was taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from blutrain.memory.backend import Backend, VirtualMemory
from blutrain.memory.block import CACHED, FREE, GONE, HOLE, Chunk, Pool, Segment
from blutrain.memory.chunks import (
    add_free,
    chunks_of,
    merge,
    merge_hole,
    remove_free,
    split,
)
from blutrain.memory.statistics import Counts

KIB, MIB = 1 << 10, 1 << 20
SMALL_SEGMENT = 2 * MIB
MEDIUM_LIMIT = 10 * MIB
MEDIUM_SEGMENT = 20 * MIB
SEGMENT_GRANULARITY = 2 * MIB
# A piece can only be given back whole; smaller ones would cost more calls of the driver.
LARGEST_PIECE = 64 * MIB


class Growth:
    """Takes memory for pools and gives it back, within a limit.

    Attributes:
        limit: bytes that may be reserved at most; None for no limit.
        total: the counts of all pools together.
        note: told (action, pointer, size, stream) of all that is taken and given back.
    """

    def __init__(self, backend: Backend, virtual: VirtualMemory | None, total: Counts) -> None:
        self._backend = backend
        self._virtual = virtual
        self.limit: int | None = None
        self.total = total
        self.note: Callable[[str, int, int, int], Any] | None = None

    def grow(self, pool: Pool, size: int) -> Chunk | None:
        """A chunk of at least `size` bytes, among no free ones; None when there is no room."""
        if pool.arena.expandable and self._virtual is not None:
            return self._extend(self._virtual, pool, size)
        return self._new_segment(pool, size)

    def trim(self, pool: Pool) -> None:
        """Give back all that is free in a pool whose bins are empty."""
        for segment in list(pool.segments.values()):
            if segment.pieces is not None:
                self._shrink(segment, segment.pieces)
            elif segment.first.state == FREE and segment.first.size == segment.size:
                remove_free(pool, segment.first)
                self._drop(segment)
                self._backend.release(segment.pointer, segment.size)
                self._count(pool, -segment.size, "segment_free", segment.pointer)

    # Plain segments ------------------------------------------------------------------------------

    def _new_segment(self, pool: Pool, size: int) -> Chunk | None:
        for nbytes in _segment_sizes(pool, size):
            if not self._may_take(nbytes):
                continue
            pointer = self._backend.reserve(nbytes)
            if pointer is None:
                continue
            segment = self._enter(Segment(pointer, nbytes, pool))
            self._count(pool, nbytes, "segment_alloc", pointer)
            return segment.first
        return None

    # Expandable segments -------------------------------------------------------------------------

    def _extend(self, virtual: VirtualMemory, pool: Pool, size: int) -> Chunk | None:
        holes = [h for s in pool.segments.values() for h in s.holes.values()]
        needs = [(_missing(h, size, virtual.granularity), h.pointer, h) for h in holes]
        possible = [need for need in needs if need[0] is not None]
        if possible:
            nbytes, _, hole = min(possible, key=lambda need: need[:2])
            return self._fill(virtual, hole, nbytes or 0)
        if not self._may_take(_round_up(size, virtual.granularity)):
            return None
        # More addresses than memory, so that one range usually is all that a pool ever needs.
        most = _round_up(virtual.total() // 8 * 9, virtual.granularity)
        if size > most:
            return None
        pointer = virtual.reserve_addresses(most)
        if pointer is None:  # the system has a limit on addresses
            return self._new_segment(pool, size)
        segment = self._enter(Segment(pointer, most, pool, expandable=True))
        chunk = self._fill(virtual, segment.first, _round_up(size, virtual.granularity))
        if chunk is None:
            self._drop(segment)
            virtual.release_addresses(pointer, most)
        return chunk

    def _fill(self, virtual: VirtualMemory, hole: Chunk, nbytes: int) -> Chunk | None:
        """Put memory behind the first bytes of a hole; the chunk with what is free beside it."""
        segment, start = hole.segment, hole.pointer
        if not self._may_take(nbytes) or not self._map(virtual, segment, start, nbytes):
            return None
        del segment.holes[start]
        if hole.size > nbytes:
            rest = split(hole, nbytes)
            segment.holes[rest.pointer] = rest
        hole.state = CACHED
        self._count(segment.pool, nbytes, "segment_map", start)
        return merge(segment.pool, hole)

    def _map(self, virtual: VirtualMemory, segment: Segment, start: int, nbytes: int) -> bool:
        pieces = segment.pieces
        assert pieces is not None
        taken: list[tuple[int, int]] = []
        for offset in range(0, nbytes, LARGEST_PIECE):
            piece = (start + offset, min(LARGEST_PIECE, nbytes - offset))
            if not virtual.map(*piece):
                for other in taken:
                    virtual.unmap(*other)
                return False
            taken.append(piece)
        pieces.update(taken)
        return True

    def _shrink(self, segment: Segment, pieces: dict[int, int]) -> None:
        """Give back the pieces that lie within free chunks, and an empty range of addresses."""
        virtual, pool = self._virtual, segment.pool
        assert virtual is not None
        starts = sorted(pieces)
        for chunk in chunks_of(segment):
            if chunk.state != FREE:
                continue
            first = bisect_left(starts, chunk.pointer)
            last, end = first, chunk.pointer
            while last < len(starts) and starts[last] + pieces[starts[last]] <= (
                chunk.pointer + chunk.size
            ):
                end = starts[last] + pieces[starts[last]]
                last += 1
            if last > first:
                # Unlike cuMemFree, taking the memory away does not wait for kernels that use it.
                virtual.settle()
                for start in starts[first:last]:
                    virtual.unmap(start, pieces.pop(start))
                _punch(pool, chunk, starts[first], end)
                self._count(pool, starts[first] - end, "segment_unmap", starts[first])
        if not pieces:
            self._drop(segment)
            virtual.release_addresses(segment.pointer, segment.size)

    # Accounts ------------------------------------------------------------------------------------

    def _may_take(self, nbytes: int) -> bool:
        return self.limit is None or self.total.reserved.current + nbytes <= self.limit

    def _enter(self, segment: Segment) -> Segment:
        segment.pool.segments[segment.pointer] = segment
        for counts in (segment.pool.counts, self.total):
            counts.segments.add(1)
        return segment

    def _drop(self, segment: Segment) -> None:
        segment.first.state = GONE
        del segment.pool.segments[segment.pointer]
        for counts in (segment.pool.counts, self.total):
            counts.segments.remove(1)

    def _count(self, pool: Pool, nbytes: int, action: str, pointer: int) -> None:
        for counts in (pool.counts, self.total):
            if nbytes > 0:
                counts.reserved.add(nbytes)
            else:
                counts.reserved.remove(-nbytes)
        if self.note is not None:
            self.note(action, pointer, abs(nbytes), pool.arena.stream)


def _missing(hole: Chunk, size: int, granularity: int) -> int | None:
    """Bytes of a hole that must get memory for a free chunk of `size` there; None if too few."""
    before, behind = hole.previous, hole.next
    have = before.size if before is not None and before.state == FREE else 0
    nbytes = _round_up(size - have, granularity)
    if nbytes <= hole.size:
        return nbytes
    have += behind.size if behind is not None and behind.state == FREE else 0
    return hole.size if have + hole.size >= size else None


def _punch(pool: Pool, chunk: Chunk, start: int, end: int) -> None:
    """Make the part of a free chunk from `start` to `end` a hole."""
    remove_free(pool, chunk)
    hole = chunk
    if start > chunk.pointer:
        hole = split(chunk, start - chunk.pointer)
        add_free(pool, chunk)
    if hole.pointer + hole.size > end:
        add_free(pool, split(hole, end - start))
    hole.state = HOLE
    merge_hole(hole)


def _round_up(nbytes: int, granularity: int) -> int:
    return -(-nbytes // granularity) * granularity


def _segment_sizes(pool: Pool, size: int) -> list[int]:
    """Sizes of a segment for a chunk of `size` bytes: the one wished for, then the least."""
    if pool.name == "small":
        return [SMALL_SEGMENT]
    least = _round_up(size, SEGMENT_GRANULARITY)
    return [MEDIUM_SEGMENT, least] if size <= MEDIUM_LIMIT else [least]


def segment_bytes(segment: Segment) -> int:
    """Bytes of memory that a segment has."""
    return segment.size if segment.pieces is None else sum(segment.pieces.values())

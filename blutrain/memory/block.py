"""What `malloc` gives out, and the pieces of memory behind it."""

from __future__ import annotations

from typing import Final

# The states of a chunk.
LIVE: Final = 0  # given out
CACHED: Final = 1  # in its pool's bin, ready for a request of the very same size
FREE: Final = 2  # among its pool's free chunks, merged with its free neighbours
GONE: Final = 3  # merged into a neighbour, or its segment was released


class Segment:
    """One piece of memory that a backend reserved.

    Attributes:
        pointer: its address.
        size: its bytes.
        pool: the pool whose chunks divide it.
        first: the chunk at its start.
    """

    __slots__ = ("first", "pointer", "pool", "size")

    def __init__(self, pointer: int, size: int, pool: Pool) -> None:
        self.pointer = pointer
        self.size = size
        self.pool = pool
        self.first = Chunk(pointer, size, self)


class Chunk:
    """A part of a segment, linked to the parts before and behind it."""

    __slots__ = ("next", "pointer", "previous", "requested", "segment", "size", "state")

    def __init__(self, pointer: int, size: int, segment: Segment) -> None:
        self.pointer = pointer
        self.size = size
        self.segment = segment
        self.previous: Chunk | None = None
        self.next: Chunk | None = None
        self.requested = 0
        self.state: int = FREE


class Pool:
    """The segments and chunks for requests of one range of sizes.

    Attributes:
        name: "small" or "large".
        granularity: every chunk's size is a multiple of it.
        bins: for each size the cached chunks of just that size.
        free: (size, pointer) of every free chunk, sorted, so that best fit is a bisection.
        chunks: the free chunks by pointer.
        segments: the segments by pointer.
    """

    __slots__ = ("bins", "chunks", "free", "granularity", "name", "segments")

    def __init__(self, name: str, granularity: int) -> None:
        self.name = name
        self.granularity = granularity
        self.bins: dict[int, list[Chunk]] = {}
        self.free: list[tuple[int, int]] = []
        self.chunks: dict[int, Chunk] = {}
        self.segments: dict[int, Segment] = {}


class Block:
    """Memory that was given out and not yet freed.

    Attributes:
        pointer: address on the device, a multiple of 512 (0 for an empty block).
        size: bytes set aside.
        requested: bytes asked for.
        chunk: the allocator's own; absent once the block was freed.
    """

    __slots__ = ("__weakref__", "chunk", "pointer", "requested", "size")

    def __init__(self, pointer: int, size: int, requested: int, chunk: Chunk | None) -> None:
        self.pointer = pointer
        self.size = size
        self.requested = requested
        self.chunk = chunk

    def __repr__(self) -> str:
        state = "" if hasattr(self, "chunk") else ", freed"
        return f"Block({self.pointer:#x}, {self.requested} of {self.size} bytes{state})"

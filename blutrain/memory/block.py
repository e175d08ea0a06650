"""What `malloc` gives out, and the pieces of memory behind it."""

from __future__ import annotations

from typing import Any, Final

from blutrain.memory.statistics import Counts

# The states of a chunk.
LIVE: Final = 0  # given out
CACHED: Final = 1  # in its pool's bin, ready for a request of the very same size
FREE: Final = 2  # among its pool's free chunks, merged with its free neighbours
GONE: Final = 3  # merged into a neighbour, or its segment was released
PENDING: Final = 4  # taken back, but another stream may still use it
HOLE: Final = 5  # addresses of an expandable segment without memory behind them


class Segment:
    """One piece of memory, or of addresses, that a backend reserved.

    Attributes:
        pointer: its address.
        size: its bytes.
        pool: the pool whose chunks divide it.
        first: the chunk at its start.
        pieces: of an expandable segment: the memory behind it, {address: bytes}; else None.
        holes: of an expandable segment: {address: chunk} of what has no memory behind it.
    """

    __slots__ = ("first", "holes", "pieces", "pointer", "pool", "size")

    def __init__(self, pointer: int, size: int, pool: Pool, expandable: bool = False) -> None:
        self.pointer = pointer
        self.size = size
        self.pool = pool
        self.first = Chunk(pointer, size, self)
        self.pieces: dict[int, int] | None = None
        self.holes: dict[int, Chunk] = {}
        if expandable:
            self.pieces = {}
            self.first.state = HOLE
            self.holes[pointer] = self.first


class Chunk:
    """A part of a segment, linked to the parts before and behind it.

    Attributes:
        streams: other streams that use it, as `record_stream` was told; None for none.
        frames: the Python stack that asked for it, while history is recorded.
    """

    __slots__ = (
        "frames", "next", "pointer", "previous", "requested", "segment", "size", "state", "streams",
    )  # fmt: skip

    def __init__(self, pointer: int, size: int, segment: Segment) -> None:
        self.pointer = pointer
        self.size = size
        self.segment = segment
        self.previous: Chunk | None = None
        self.next: Chunk | None = None
        self.requested = 0
        self.state: int = FREE
        self.streams: set[int] | None = None
        self.frames: Any = None


class Pool:
    """The segments and chunks for requests of one range of sizes, of one arena.

    Attributes:
        name: "small" or "large".
        counts: the numbers of all pools of that name.
        arena: whose pool it is.
        bins: for each size the cached chunks of just that size.
        free: (size, pointer) of every free chunk, sorted, so that best fit is a bisection.
        chunks: the free chunks by pointer.
        segments: the segments by pointer.
    """

    __slots__ = ("arena", "bins", "chunks", "counts", "free", "name", "segments")

    def __init__(self, name: str, counts: Counts, arena: Arena) -> None:
        self.name = name
        self.counts = counts
        self.arena = arena
        self.bins: dict[int, list[Chunk]] = {}
        self.free: list[tuple[int, int]] = []
        self.chunks: dict[int, Chunk] = {}
        self.segments: dict[int, Segment] = {}


class Arena:
    """The two pools of one stream, outside or inside one private pool.

    Attributes:
        stream: the stream in whose order its memory is used again.
        private: the number of the private pool, 0 outside of any.
        expandable: whether its segments grow in place.
        pinned: its memory stays reserved whatever happens: a captured graph uses the addresses.
        small, large: for requests up to 1 MiB, and above.
    """

    __slots__ = ("expandable", "large", "pinned", "private", "small", "stream")

    def __init__(
        self, stream: int, private: int, expandable: bool, small: Counts, large: Counts
    ) -> None:
        self.stream = stream
        self.private = private
        self.expandable = expandable
        self.pinned = private > 0
        self.small = Pool("small", small, self)
        self.large = Pool("large", large, self)


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

"""Backends whose memory is only addresses: any capacity, failures at will, nothing touched."""

MIB = 1 << 20


class PretendBackend:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.segments: dict[int, int] = {}
        self._next = 1 << 40
        self.failing = False
        self.elsewhere = lambda: 0  # bytes that another source has taken of the same capacity

    @property
    def reserved(self) -> int:
        return sum(self.segments.values())

    def reserve(self, nbytes: int) -> int | None:
        if self.failing or nbytes > self.available():
            return None
        pointer = self._next
        # Segments that touch: merging across them would be seen.
        self._next += nbytes
        self.segments[pointer] = nbytes
        return pointer

    def release(self, pointer: int, nbytes: int) -> None:
        assert self.segments.pop(pointer) == nbytes

    def total(self) -> int:
        return self.capacity

    def available(self) -> int:
        return self.capacity - self.reserved - self.elsewhere()


class PretendVirtual:
    """Ranges and mapped pieces, over the capacity of a `PretendBackend`."""

    granularity = 2 * MIB

    def __init__(self, backend: PretendBackend) -> None:
        self.backend = backend
        backend.elsewhere = lambda: self.mapped_bytes
        self.ranges: dict[int, int] = {}
        self.pieces: dict[int, int] = {}
        self.settled = True
        self.has_addresses = True
        self._next = 1 << 50

    @property
    def mapped_bytes(self) -> int:
        return sum(self.pieces.values())

    def total(self) -> int:
        return self.backend.capacity

    def reserve_addresses(self, nbytes: int) -> int | None:
        if not self.has_addresses:
            return None
        pointer, self._next = self._next, self._next + nbytes
        self.ranges[pointer] = nbytes
        return pointer

    def release_addresses(self, pointer: int, nbytes: int) -> None:
        assert self.ranges.pop(pointer) == nbytes
        assert not any(pointer <= piece < pointer + nbytes for piece in self.pieces)

    def map(self, pointer: int, nbytes: int) -> bool:
        assert nbytes > 0
        assert pointer % self.granularity == nbytes % self.granularity == 0
        assert any(p <= pointer and pointer + nbytes <= p + n for p, n in self.ranges.items())
        for piece, size in self.pieces.items():
            assert pointer + nbytes <= piece or piece + size <= pointer
        if self.backend.failing or nbytes > self.backend.available():
            return False
        self.pieces[pointer] = nbytes
        self.settled = False
        return True

    def unmap(self, pointer: int, nbytes: int) -> None:
        assert self.pieces.pop(pointer) == nbytes

    def settle(self) -> None:
        self.settled = True


class PretendEvents:
    """Streams that do their work when the test says so; an event is (stream, its turn)."""

    def __init__(self) -> None:
        self.given: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.alive = 0

    def work(self, stream: int) -> int:
        """Give a stream work; its turn."""
        self.given[stream] = self.given.get(stream, 0) + 1
        return self.given[stream]

    def run(self, stream: int, turns: int) -> None:
        self.done[stream] = min(self.given.get(stream, 0), self.done.get(stream, 0) + turns)

    def record(self, stream: int) -> tuple[int, int]:
        self.alive += 1
        return stream, self.given.get(stream, 0)

    def passed(self, event: tuple[int, int]) -> bool:
        return self.done.get(event[0], 0) >= event[1]

    def wait(self, event: tuple[int, int]) -> None:
        self.done[event[0]] = max(self.done.get(event[0], 0), event[1])

    def recycle(self, event: tuple[int, int]) -> None:
        self.alive -= 1

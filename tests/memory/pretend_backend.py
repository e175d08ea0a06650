"""A backend whose memory is only addresses: any capacity, failures at will, nothing touched."""


class PretendBackend:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.segments: dict[int, int] = {}
        self._next = 1 << 40
        self.failing = False

    @property
    def reserved(self) -> int:
        return sum(self.segments.values())

    def reserve(self, nbytes: int) -> int | None:
        if self.failing or self.reserved + nbytes > self.capacity:
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
        return self.capacity - self.reserved

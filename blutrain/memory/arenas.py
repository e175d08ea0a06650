"""The arenas of an allocator: one for each stream, outside and inside every private pool."""

from __future__ import annotations

import threading

from blutrain.memory.block import Arena, Pool
from blutrain.memory.statistics import PoolCounts

# The number of the private pool whose memory other processes can be given: plain segments.
SHAREABLE = -1


class Arenas:
    """The arenas by place, which is (number of the private pool or 0, stream).

    Args:
        expandable: whether their segments grow in place, but for those that are shareable.
        counts: of the small and the large pools.
    """

    def __init__(self, expandable: bool, counts: PoolCounts) -> None:
        self._expandable = expandable
        self._counts = counts
        self._arenas: dict[tuple[int, int], Arena] = {}
        self._lock = threading.Lock()

    def at(self, place: tuple[int, int]) -> Arena:
        """The arena of a place, made when first asked for."""
        arena = self._arenas.get(place)
        if arena is None:
            with self._lock:
                arena = self._arenas.setdefault(place, self._make(*place))
        return arena

    def _make(self, private: int, stream: int) -> Arena:
        expandable = self._expandable and private != SHAREABLE
        return Arena(stream, private, expandable, self._counts.small, self._counts.large)

    def pools(self) -> list[Pool]:
        """The pools of every arena."""
        return [pool for a in list(self._arenas.values()) for pool in (a.small, a.large)]

    def unpin(self, private: int) -> None:
        """Nobody needs the addresses of a private pool any more."""
        for arena in list(self._arenas.values()):
            if arena.private == private:
                arena.pinned = False

    def forget_empty(self) -> None:
        """Drop the arenas of private pools that are gone and have no memory left."""
        for place, arena in list(self._arenas.items()):
            empty = not arena.small.segments and not arena.large.segments
            if arena.private > 0 and not arena.pinned and empty:
                del self._arenas[place]

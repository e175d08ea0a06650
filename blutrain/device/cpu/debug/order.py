"""What happens before what: barriers, and atomics with fences, put accesses in order.

Threads of a block are ordered by its barriers, those of a warp also by `syncwarp`. (A shuffle or a
vote orders no memory: CUDA promises nothing.) Blocks have no order but what they make for
themselves: a thread stores, passes a `threadfence` and updates a cell atomically; whoever updates
the same cell atomically after that sees the store, and after its next barrier so does its block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from blutrain.device.cpu.interpret.events import Kind, Place, Site
from blutrain.device.cpu.interpret.machine import WARP


class Access(NamedTuple):
    """One access, with the time at which it happened.

    Attributes:
        place: by whom.
        epoch: barriers that the block had passed.
        clock: warp barriers that the thread had passed.
        kind, site, value: what, by which expression, and what was stored.
        array, index: the element.
    """

    place: Place
    epoch: int
    clock: int
    kind: Kind
    site: Site
    value: Any
    array: str
    index: Any


# Of a block, by its number: up to which epoch what it did is known, and the threads of which it is
# known in that epoch too.
Seen = dict[int, tuple[int, frozenset[int]]]


class Order:
    """The order that one launch has made so far."""

    def __init__(self) -> None:
        self.epoch: defaultdict[int, int] = defaultdict(int)
        self.clock: defaultdict[Place, int] = defaultdict(int)
        # By thread: what clocks of its warp's threads it has seen since the block's last barrier.
        self._lanes: defaultdict[Place, dict[Place, int]] = defaultdict(dict)
        self._fenced: set[Place] = set()
        self._published: defaultdict[tuple[str, int], Seen] = defaultdict(dict)
        self._thread_seen: defaultdict[Place, Seen] = defaultdict(dict)
        self._block_seen: defaultdict[int, Seen] = defaultdict(dict)

    def before(self, earlier: Access, place: Place) -> bool:
        """Whether an access happened before all that a thread does now."""
        then = earlier.place
        if then == place:
            return True
        if then.block == place.block:
            if earlier.epoch < self.epoch[place.block]:
                return True
            if then.thread // WARP != place.thread // WARP:
                return False
            return self._lanes[place].get(then, -1) >= earlier.clock
        for seen in (self._block_seen.get(place.block), self._thread_seen.get(place)):
            known = seen.get(then.block) if seen else None
            if known and (
                earlier.epoch < known[0] or (earlier.epoch == known[0] and then.thread in known[1])
            ):
                return True
        return False

    def pass_barrier(self, places: Sequence[Place]) -> None:
        """Threads of a block pass its barrier."""
        block = places[0].block
        self.epoch[block] += 1
        for place in places:
            self._lanes.pop(place, None)
            if place in self._thread_seen:
                _merge(self._block_seen[block], self._thread_seen.pop(place))

    def pass_warp_barrier(self, places: Sequence[Place]) -> None:
        """Lanes of a warp pass a `syncwarp`."""
        joined: dict[Place, int] = {}
        for place in places:
            for lane, clock in self._lanes[place].items():
                joined[lane] = max(joined.get(lane, -1), clock)
            joined[place] = self.clock[place]
        for place in places:
            self._lanes[place] = dict(joined)
            self.clock[place] += 1

    def pass_fence(self, place: Place) -> None:
        """A thread passes a `threadfence`."""
        self._fenced.add(place)

    def store(self, place: Place) -> None:
        """A thread stores to global memory: its last fence does not cover that."""
        self._fenced.discard(place)

    def synchronise(self, cell: tuple[str, int], place: Place) -> None:
        """A thread updates a cell atomically."""
        published = self._published[cell]
        _merge(self._thread_seen[place], published)
        if place in self._fenced:
            own = {place.block: (self.epoch[place.block], frozenset([place.thread]))}
            _merge(published, own)
            _merge(published, self._thread_seen[place])
            _merge(published, self._block_seen[place.block])


def _merge(into: Seen, what: Seen) -> None:
    """Add what is known."""
    for block, (epoch, threads) in what.items():
        old_epoch, old = into.get(block, (-1, frozenset()))
        if epoch > old_epoch:
            into[block] = (epoch, threads)
        elif epoch == old_epoch:
            into[block] = (epoch, old | threads)

"""Memory set apart: what a captured graph uses stays at its addresses while the graph lives."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

from blutrain.device.stream import enter_place, leave_place

if TYPE_CHECKING:
    from blutrain.memory.allocator import CachingAllocator

_numbers = itertools.count(1)


class MemoryPool:
    """A private pool: inside `with pool:` this thread allocates from it alone.

    Its memory stays reserved, `empty_cache` or not, as long as the pool lives; after that it goes
    as soon as nothing in it is in use. Several graphs may share one, if they are replayed in the
    order in which they were captured: what one has freed, the next may use.

    Attributes:
        number: distinguishes it, in snapshots too.

    Example:
        >>> import blutrain as bt
        >>> pool = bt.memory.MemoryPool()
        >>> with pool:
        ...     x = bt.zeros(1000)
        >>> bt.memory.snapshot()["segments"][-1]["segment_pool_id"][0] >= 0
        True
    """

    def __init__(self, allocator: CachingAllocator | None = None) -> None:
        if allocator is None:
            from blutrain.memory import allocator as of_target

            allocator = of_target
        self.number = next(_numbers)
        weakref.finalize(self, allocator.unpin, self.number).atexit = False

    def __enter__(self) -> MemoryPool:
        enter_place(self.number, None)
        return self

    def __exit__(self, *error: object) -> None:
        leave_place()

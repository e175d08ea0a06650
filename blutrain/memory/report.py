"""What is free, and why a request failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blutrain.errors import OutOfMemoryError, message
from blutrain.memory.block import HOLE, LIVE, PENDING, Pool
from blutrain.memory.chunks import chunks_of
from blutrain.memory.growth import segment_bytes
from blutrain.memory.statistics import Statistics, format_bytes

_IN_THE_WAY = frozenset((LIVE, PENDING, HOLE))


def free_runs(pools: Iterable[Pool]) -> Iterator[tuple[Pool, int, bool]]:
    """(pool, bytes, whether nothing else is in its segment) of what is free, if merged now."""
    for pool in pools:
        for segment in pool.segments.values():
            run, whole = 0, True
            for chunk in chunks_of(segment):
                if chunk.state not in _IN_THE_WAY:
                    run += chunk.size
                    continue
                whole = whole and chunk.state == HOLE
                if run:
                    yield pool, run, whole
                    run = 0
            if run:
                yield pool, run, whole


def with_free(stats: Statistics, pools: Iterable[Pool]) -> Statistics:
    """The statistics, with the numbers of free blocks entered into them."""
    for pool, size, whole in free_runs(pools):
        stats.largest_free = max(stats.largest_free, size)
        if not whole:
            for name in ("all", f"{pool.name}_pool"):
                stats.pools[name].inactive_split += 1
                stats.pools[name].inactive_split_bytes += size
    return stats


def out_of_memory(
    nbytes: int,
    pool: Pool,
    pools: list[Pool],
    stats: Statistics,
    *,
    limit: int | None,
    available: int,
    total: int,
    capturing: bool,
) -> OutOfMemoryError:
    """The error for a request of `nbytes` from `pool`: who has the memory, and what to do."""
    pinned = (s for p in pools if p.arena.pinned for s in p.segments.values())
    private = sum(map(segment_bytes, pinned))
    of_limit = "" if limit is None else f" of a limit of {format_bytes(limit)}"
    got = (
        f"{format_bytes(stats.allocated)} allocated and {format_bytes(stats.reserved)} reserved"
        f"{of_limit}, {format_bytes(available)} left of the device's {format_bytes(total)}, "
        f"largest free block {format_bytes(stats.largest_free)}, "
        f"fragmentation {stats.fragmentation:.0%}"
    )
    if private:
        got += f", {format_bytes(private)} reserved in private pools"
    if stats.pending:
        got += f", {format_bytes(stats.pending)} still used by other streams"
    advice = ["use a smaller batch or sequence, bfloat16, or bt.checkpoint to recompute"]
    if stats.cached > nbytes:
        advice.insert(0, "keep tensors of changing sizes from living side by side")
        if not pool.arena.expandable:
            advice[0] = "unset BLUTRAIN_ALLOCATOR=segments where it is set, or " + advice[0]
    if private > nbytes:
        advice.insert(0, "let go of captured graphs, or let them share a pool")
    if capturing:
        advice.insert(0, "call bt.memory.empty_cache before the capture, which cannot give it back")
    wrong = f"there must be room for {format_bytes(nbytes)} more"
    return OutOfMemoryError(message("malloc", wrong, got, "; ".join(advice)))

"""Who allocated what, when, and from where: in the form that pytorch.org/memory_viz reads.

A snapshot is a dict of plain lists, dicts, strings and ints, as `torch.cuda.memory._snapshot`
makes it: `segments` with their blocks as they are now, and `device_traces` with what happened
since `record_history`. Both carry Python stacks of the calls that asked for memory.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from types import CodeType
from typing import Any

from blutrain.memory.block import HOLE, LIVE, PENDING, Chunk, Pool, Segment
from blutrain.memory.chunks import chunks_of

Frames = tuple[tuple[CodeType, int], ...]
_STATES = {LIVE: "active_allocated", PENDING: "active_pending_free"}
_PACKAGE = __name__.rsplit(".", 1)[0] + "."


class History:
    """The events of an allocator since it was told to note them.

    Args:
        max_entries: how many of the latest are kept.
        stack_depth: how many calls of each stack, the innermost first.
    """

    def __init__(self, max_entries: int = 1_000_000, stack_depth: int = 32) -> None:
        self._depth = stack_depth
        # (action, address, bytes, stream, microseconds since 1970, frames)
        self._events: deque[tuple[str, int, int, int, int, Frames]] = deque(maxlen=max_entries)

    def add(self, action: str, pointer: int, size: int, stream: int, frames: bool = True) -> Frames:
        """Note an event with the present stack; which is returned."""
        stack = self._stack() if frames else ()
        self._events.append((action, pointer, size, stream, time.time_ns() // 1000, stack))
        return stack

    def note(self, action: str, chunk: Chunk, frames: bool = True) -> Frames:
        """Note what happened to a chunk."""
        stream = chunk.segment.pool.arena.stream
        return self.add(action, chunk.pointer, chunk.size, stream, frames)

    def out_of_memory(self, size: int, available: int, stream: int) -> None:
        """Note a request that failed, and what the device had left."""
        self.add("oom", available, size, stream)

    def _stack(self) -> Frames:
        frame = sys._getframe(2)
        found: list[tuple[CodeType, int]] = []
        while frame is not None and len(found) < self._depth:
            # The allocator's own calls say nothing about who asked.
            if found or not frame.f_globals.get("__name__", "").startswith(_PACKAGE):
                found.append((frame.f_code, frame.f_lineno))
            if frame.f_back is None:
                break
            frame = frame.f_back
        return tuple(found)

    def trace(self) -> list[dict[str, Any]]:
        """The events, oldest first."""
        entries = []
        for action, pointer, size, stream, time_us, frames in list(self._events):
            entry = {
                "action": action,
                "addr": pointer,
                "size": size,
                "stream": stream,
                "time_us": time_us,
                "frames": _readable(frames),
            }
            if action == "oom":
                entry["device_free"] = entry.pop("addr")
            entries.append(entry)
        return entries


def _readable(frames: Frames | None) -> list[dict[str, Any]]:
    return [
        {"filename": code.co_filename, "line": line, "name": code.co_name}
        for code, line in frames or ()
    ]


def segments(pools: Iterable[Pool]) -> list[dict[str, Any]]:
    """Every stretch of memory with its blocks, as PyTorch's snapshots list them."""
    found = [
        _described(pool, segment, stretch)
        for pool in pools
        for segment in pool.segments.values()
        for stretch in _stretches(segment)
    ]
    return sorted(found, key=lambda described: int(described["address"]))


def _stretches(segment: Segment) -> Iterable[list[Chunk]]:
    """Chunks between the holes."""
    stretch: list[Chunk] = []
    for chunk in chunks_of(segment):
        if chunk.state != HOLE:
            stretch.append(chunk)
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _described(pool: Pool, segment: Segment, stretch: list[Chunk]) -> dict[str, Any]:
    assert all(a.pointer + a.size == b.pointer for a, b in pairwise(stretch))
    blocks = [
        {
            "address": chunk.pointer,
            "size": chunk.size,
            "requested_size": chunk.requested if chunk.state in _STATES else 0,
            "state": _STATES.get(chunk.state, "inactive"),
            "frames": _readable(chunk.frames if chunk.state in _STATES else None),
        }
        for chunk in stretch
    ]
    return {
        "device": 0,
        "address": stretch[0].pointer,
        "total_size": sum(c.size for c in stretch),
        "allocated_size": sum(c.size for c in stretch if c.state == LIVE),
        "active_size": sum(c.size for c in stretch if c.state in _STATES),
        "requested_size": sum(c.requested for c in stretch if c.state in _STATES),
        "stream": pool.arena.stream,
        "segment_type": pool.name,
        "segment_pool_id": (pool.arena.private, 0),
        "is_expandable": segment.pieces is not None,
        "frames": [],
        "blocks": blocks,
    }

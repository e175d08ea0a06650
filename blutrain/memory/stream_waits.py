"""Blocks that were freed while another stream may still use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from blutrain.memory.backend import StreamEvents
from blutrain.memory.block import PENDING, Chunk
from blutrain.memory.statistics import Counts


class _Waiting:
    """A chunk that some streams still use; `n_streams` of them."""

    __slots__ = ("chunk", "n_streams")

    def __init__(self, chunk: Chunk, n_streams: int) -> None:
        self.chunk = chunk
        self.n_streams = n_streams


class StreamWaits:
    """Holds chunks back until an event that was recorded on each of their streams has passed.

    Args:
        events: how to know that.
        total: the counts of all pools, in which what is held back counts as active.
        done: takes a chunk that is not used any more.

    Attributes:
        held: bytes that are held back now.
    """

    def __init__(self, events: StreamEvents, total: Counts, done: Callable[[Chunk], None]) -> None:
        self._events = events
        self._total = total
        self._done = done
        # By stream, in the order in which the events were recorded there.
        self._queues: dict[int, deque[tuple[Any, _Waiting]]] = {}
        self.held = 0
        self._n_captures = 0
        self._after_capture: list[Chunk] = []

    @property
    def capturing(self) -> bool:
        """Whether a graph is being captured, which forbids to record and to ask for events."""
        return self._n_captures > 0

    def begin_capture(self) -> None:
        """Record no events until `end_capture`."""
        self._n_captures += 1

    def end_capture(self) -> None:
        """Record the events for what was added meanwhile."""
        self._n_captures -= 1
        if not self._n_captures:
            chunks, self._after_capture = self._after_capture, []
            for chunk in chunks:
                self._record(chunk)

    def add(self, chunk: Chunk) -> None:
        """Hold a chunk back until its streams have done what they were given until now."""
        chunk.state = PENDING
        self.held += chunk.size
        for counts in (chunk.segment.pool.counts, self._total):
            counts.active.current += chunk.size
        if self._n_captures:
            self._after_capture.append(chunk)
        else:
            self._record(chunk)

    def _record(self, chunk: Chunk) -> None:
        streams, chunk.streams = chunk.streams or set(), None
        waiting = _Waiting(chunk, len(streams))
        for stream in streams:
            event = self._events.record(stream)
            self._queues.setdefault(stream, deque()).append((event, waiting))

    def take_passed(self, wait: bool = False) -> None:
        """Let go of all that no stream uses any more; with `wait`, of all."""
        if self._n_captures:
            return
        for stream, queue in list(self._queues.items()):
            # Events of one stream pass in their order, so the first that has not is the last asked.
            while queue:
                event, waiting = queue[0]
                if wait:
                    self._events.wait(event)
                elif not self._events.passed(event):
                    break
                queue.popleft()
                self._events.recycle(event)
                waiting.n_streams -= 1
                if not waiting.n_streams:
                    self._let_go(waiting.chunk)
            if not queue:
                del self._queues[stream]

    def _let_go(self, chunk: Chunk) -> None:
        self.held -= chunk.size
        for counts in (chunk.segment.pool.counts, self._total):
            counts.active.current -= chunk.size
        self._done(chunk)

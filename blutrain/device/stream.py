"""Streams and events: the order of work on the device, and its timing.

Without a stream everything goes to CUDA's legacy default stream, which also is Numba's and
PyTorch's default: work of all three in one process happens in the order in which it was asked for.
A `Stream` of one's own runs beside other streams, but not beside the default one: each waits for
what the other was given before, unless the stream was made with `blocking=False`.

    with stream:            # launches, copies and allocations of this thread go to it
        y = f(x)

Memory belongs to the stream on which it was allocated. If another stream uses it, tell the
allocator so before it is freed: `bt.memory.record_stream(x, other)`.

On the cpu target a launch has run when it returns, so streams order nothing and events only note
the time.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from typing import Any

from blutrain.device.target import TARGET
from blutrain.errors import DeviceError, message


class Here(threading.local):
    """Where a thread's work goes when nothing else is said.

    Attributes:
        handle: the current stream.
        place: (number of the private pool, stream) that memory comes from, None for (0, 0).
        capture: the graph that takes this thread's work instead of the device.
        entered: what was current outside of each `with` block.
    """

    handle: int = 0
    place: tuple[int, int] | None = None
    capture: Any = None

    def __init__(self) -> None:
        self.entered: list[tuple[int, tuple[int, int] | None]] = []


here = Here()


def enter_place(private: int | None, handle: int | None) -> None:
    """Make a private pool, a stream or both current; None leaves the one that is."""
    here.entered.append((here.handle, here.place))
    if handle is not None:
        here.handle = handle
    if private is None:
        private = 0 if here.place is None else here.place[0]
    here.place = (private, here.handle) if private or here.handle else None


def leave_place() -> None:
    """Undo the latest `enter_place`."""
    here.handle, here.place = here.entered.pop()


def refuse_in_capture(where: str) -> None:
    """Raise if this thread's work is being captured: the graph could not do it again.

    Raises:
        DeviceError: a capture is under way.
    """
    if here.capture is not None:
        wrong = "cannot be captured: it waits for the device, or moves data from or to the host"
        raise DeviceError(message(where, wrong, do="do it before or after the capture"))


# By (blocking, priority). A stream is never destroyed but used again: memory that is cached for
# its handle then stays in the order of one queue.
_unused: dict[tuple[bool, int], list[int]] = {}
_numbers = itertools.count(1)


class Stream:
    """A queue of work on the device.

    Args:
        priority: 0 for the lowest, down to `priority_range()[1]` for the highest; a number
            outside the range means the nearest in it.
        blocking: whether it and the default stream wait for each other's earlier work.

    Attributes:
        handle: the driver's handle, 0 for the default stream; on the cpu target a number.

    Example:
        >>> stream = Stream()
        >>> with stream:
        ...     pass  # launch kernels, allocate
        >>> stream.synchronize()
        >>> stream.query()
        True
    """

    def __init__(self, priority: int = 0, blocking: bool = True) -> None:
        lowest, highest = priority_range()
        self.priority = max(highest, min(lowest, priority))
        self.blocking = blocking
        unused = _unused.setdefault((blocking, self.priority), [])
        try:
            self.handle = unused.pop()
        except IndexError:
            self.handle = _create(blocking, self.priority)
        weakref.finalize(self, unused.append, self.handle).atexit = False

    def __enter__(self) -> Stream:
        enter_place(None, self.handle)
        return self

    def __exit__(self, *error: object) -> None:
        leave_place()

    def synchronize(self) -> None:
        """Wait until all work of this stream is done."""
        refuse_in_capture("Stream.synchronize")
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.synchronize_stream(self.handle)

    def query(self) -> bool:
        """Whether all work of this stream is done."""
        refuse_in_capture("Stream.query")
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            return driver.stream_is_idle(self.handle)
        return True

    def wait(self, event: Event) -> None:
        """Let later work of this stream start only once `event` has happened."""
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.stream_wait(self.handle, event.handle)


def _create(blocking: bool, priority: int) -> int:
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        return driver.create_stream(blocking, priority)
    return next(_numbers)


def priority_range() -> tuple[int, int]:
    """(lowest, highest) priority of streams; the highest is the lower number."""
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        return driver.priority_range()
    return 0, 0


class Event:
    """A point in a stream that can be waited for and timed.

    Args:
        timing: whether it notes its time; one that does not costs less.

    Example:
        >>> start, end = Event(), Event()
        >>> start.record()
        >>> end.record()
        >>> start.elapsed(end) >= 0
        True
    """

    def __init__(self, timing: bool = True) -> None:
        self.handle: Any = None
        self.timing = timing
        self._time: float | None = None
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            self.handle = driver.create_event(timing)
            weakref.finalize(self, driver.destroy_event, self.handle).atexit = False

    def record(self, stream: Stream | None = None) -> None:
        """Put this event behind all work that `stream` (the current one when None) was given."""
        self._time = time.perf_counter()
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.record_event(self.handle, here.handle if stream is None else stream.handle)

    def synchronize(self) -> None:
        """Wait until the event has happened."""
        refuse_in_capture("Event.synchronize")
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.synchronize_event(self.handle)

    def query(self) -> bool:
        """Whether the event has happened."""
        refuse_in_capture("Event.query")
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            return driver.event_passed(self.handle)
        return True

    def elapsed(self, end: Event) -> float:
        """Seconds from this event to `end`, waiting for `end`.

        Raises:
            DeviceError: one of the two was never recorded, or notes no time.
        """
        if self._time is None or end._time is None:
            raise DeviceError(message("Event.elapsed", "both events must be recorded first"))
        if not (self.timing and end.timing):
            wrong = "both events must note their time"
            raise DeviceError(message("Event.elapsed", wrong, do="make them without timing=False"))
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            end.synchronize()
            return driver.elapsed_seconds(self.handle, end.handle)
        return end._time - self._time


def synchronize() -> None:
    """Wait until the device has done all work of all streams; errors of kernels appear here."""
    refuse_in_capture("synchronize")
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        driver.synchronize()

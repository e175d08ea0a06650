"""Streams and events: the order of work on the device, and its timing.

Without a stream everything goes to CUDA's legacy default stream, which also is Numba's and
PyTorch's default: work of all three in one process happens in the order in which it was asked for.
A `Stream` of one's own runs beside other streams, but not beside the default one: each waits for
what the other was given before. Memory that the allocator took back may be handed out again at
once, which is safe in that order; memory used on two streams of one's own must outlive both uses.

On the cpu target a launch has run when it returns, so streams order nothing and events only note
the time.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

from blutrain.device.target import TARGET
from blutrain.errors import DeviceError, message


class Stream:
    """A queue of work on the device.

    Attributes:
        handle: the driver's handle, 0 for the default stream.

    Example:
        >>> stream = Stream()
        >>> stream.synchronize()
    """

    def __init__(self) -> None:
        self.handle = 0
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            self.handle = driver.create_stream()
            # The end of the process destroys it anyway, and may find the driver gone.
            weakref.finalize(self, driver.destroy_stream, self.handle).atexit = False

    def synchronize(self) -> None:
        """Wait until all work of this stream is done."""
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.synchronize_stream(self.handle)

    def wait(self, event: Event) -> None:
        """Let later work of this stream start only once `event` has happened."""
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.stream_wait(self.handle, event.handle)


class Event:
    """A point in a stream that can be waited for and timed.

    Example:
        >>> start, end = Event(), Event()
        >>> start.record()
        >>> end.record()
        >>> start.elapsed(end) >= 0
        True
    """

    def __init__(self) -> None:
        self.handle: Any = None
        self._time: float | None = None
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            self.handle = driver.create_event()
            weakref.finalize(self, driver.destroy_event, self.handle).atexit = False

    def record(self, stream: Stream | None = None) -> None:
        """Put this event behind all work that `stream` (the default one when None) was given."""
        self._time = time.perf_counter()
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.record_event(self.handle, 0 if stream is None else stream.handle)

    def synchronize(self) -> None:
        """Wait until the event has happened."""
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            driver.synchronize_event(self.handle)

    def elapsed(self, end: Event) -> float:
        """Seconds from this event to `end`, waiting for `end`.

        Raises:
            DeviceError: one of the two was never recorded.
        """
        if self._time is None or end._time is None:
            raise DeviceError(message("Event.elapsed", "both events must be recorded first"))
        if TARGET == "cuda":
            from blutrain.device.cuda import driver

            end.synchronize()
            return driver.elapsed_seconds(self.handle, end.handle)
        return end._time - self._time


def synchronize() -> None:
    """Wait until the device has done all work of all streams; errors of kernels appear here."""
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        driver.synchronize()

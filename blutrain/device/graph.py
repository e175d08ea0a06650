"""Graphs: work captured once and replayed with one call.

    with capture_graph() as graph:
        y = f(x)                 # nothing runs: launches, fills and device copies are noted
    copy_to_device(x.pointer, new)
    graph.replay()               # all of it runs, on the memory that it was captured with

A replay does the same work on the same addresses, with the same scalars: what changes from one
replay to the next must be in device memory. A number that the host counts up, such as the step of
an optimizer, is frozen as it was during the capture; random numbers are refused for that reason.

Memory that is allocated inside comes from a private pool, which stays reserved while the graph
lives, so the addresses remain its own. Tensors from outside must be kept alive by their owner.

On the cuda target the driver captures a stream of its own (`cuStreamBeginCapture`, thread-local:
other threads go on as they like). On the cpu target the launches themselves are kept in a list.
What cannot be captured is the same on both: anything that waits for the device, moves data from
or to the host, or draws random numbers raises `DeviceError`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blutrain.device.stream import Stream, enter_place, here, leave_place
from blutrain.device.target import TARGET
from blutrain.errors import DeviceError, message

if TYPE_CHECKING:
    from blutrain.memory import MemoryPool


class _Captures(threading.local):
    """The stream that a thread captures on: one, so that graphs that share a pool share memory."""

    stream: Stream | None = None


_captures = _Captures()


class Graph:
    """What `capture_graph` gives.

    Attributes:
        pool: the private pool of its memory, for `capture_graph(pool=...)` of a further graph.
        n_nodes: how many launches, fills and copies it has.
    """

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self.n_nodes = 0
        self._executable: int | None = None
        self._steps: list[Callable[[], object]] = []
        self._ready = False

    def add(self, step: Callable[[], object]) -> None:
        """Note work of the cpu target."""
        self._steps.append(step)

    def replay(self) -> None:
        """Do all of it, in the order of the current stream.

        Raises:
            DeviceError: its capture has not ended, or failed, or another capture is under way: a
                graph does not hold graphs.
        """
        if not self._ready:
            wrong = "the graph must have been captured to the end"
            raise DeviceError(message("Graph.replay", wrong))
        if here.capture is not None:
            do = "capture what the graph does instead, or replay it after the capture"
            raise DeviceError(message("Graph.replay", "a capture must not be under way", do=do))
        if TARGET == "cuda":
            from blutrain.device.cuda import capture

            if self._executable is not None:
                capture.launch_graph(self._executable, here.handle)
        else:
            for step in self._steps:
                step()

    def _end(self, stream: Stream) -> None:
        """Take what was captured."""
        if TARGET == "cuda":
            from blutrain.device.cuda import capture

            captured = capture.end_capture(stream.handle)
            self.n_nodes = capture.count_nodes(captured)
            self._executable = capture.instantiate_graph(captured)
            weakref.finalize(self, capture.destroy_graph, self._executable).atexit = False
        else:
            self.n_nodes = len(self._steps)
        self._ready = True


@contextmanager
def capture_graph(pool: MemoryPool | None = None) -> Iterator[Graph]:
    """Capture the work of the `with` block, in this thread, instead of doing it.

    Run the same work once before: kernels are compiled then, and what is cached on the device is
    there.

    Args:
        pool: the pool of an earlier graph, to share its memory. The graphs must then be replayed
            in the order of their captures, and results of one are lost to the next.

    Raises:
        DeviceError: a capture is under way already, or something cannot be captured.

    Example:
        >>> import blutrain as bt
        >>> x = bt.ones(3)
        >>> _ = x * 2  # compiles the kernel
        >>> with capture_graph() as graph:
        ...     y = x * 2
        >>> graph.replay()
        >>> y.tolist()
        [2.0, 2.0, 2.0]
    """
    from blutrain import memory

    if here.capture is not None:
        wrong = "one capture cannot contain another"
        raise DeviceError(message("capture_graph", wrong, do="replay a graph inside instead"))
    if _captures.stream is None:
        # The legacy default stream cannot be captured, nor one that waits for it.
        _captures.stream = Stream(blocking=False)
    stream = _captures.stream
    graph = Graph(memory.MemoryPool() if pool is None else pool)
    memory.allocator.begin_capture()
    try:
        if TARGET == "cuda":
            from blutrain.device.cuda import capture

            capture.begin_capture(stream.handle)
        enter_place(graph.pool.number, stream.handle)
        here.capture = graph
        try:
            yield graph
        except BaseException:
            here.capture = None
            leave_place()
            _abandon(stream)
            raise
        here.capture = None
        leave_place()
        graph._end(stream)
    finally:
        memory.allocator.end_capture()


@contextmanager
def outside_capture() -> Iterator[None]:
    """Do the work of the `with` block at once although a capture may be under way, and wait for it.

    For what a captured kernel only reads and later launches find done, such as a table on the
    device: a graph would do it again at every replay, and nothing before the first.

    Example:
        >>> import blutrain as bt
        >>> with capture_graph():
        ...     with outside_capture():
        ...         table = bt.ones(3)
        >>> table.tolist()
        [1.0, 1.0, 1.0]
    """
    under_way = here.capture
    if under_way is None:
        yield
        return
    side = Stream(blocking=False)
    here.capture = None
    enter_place(0, side.handle)
    try:
        if TARGET == "cuda":
            from blutrain.device.cuda import capture, driver

            with capture.during_capture():
                yield
                driver.synchronize_stream(side.handle)
        else:
            yield
    finally:
        leave_place()
        here.capture = under_way


def _abandon(stream: Stream) -> None:
    """End a capture whose work is not wanted; the error on its way says more than the driver's."""
    if TARGET != "cuda":
        return
    from blutrain.device.cuda import capture

    try:
        capture.discard_graph(capture.end_capture(stream.handle))
    except DeviceError:
        return

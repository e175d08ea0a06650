"""Capturing a stream's work into a graph, and launching that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_void_p

from blutrain.device.cuda import driver

_THREAD_LOCAL, _RELAXED = 1, 2  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, ..._RELAXED


@contextmanager
def during_capture() -> Iterator[None]:
    """Let this thread make calls that a capture forbids, but that are no work of any stream."""
    if not driver.threads.is_capturing:
        yield
        return
    mode = c_int(_RELAXED)
    driver.call("cuThreadExchangeStreamCaptureMode", byref(mode))
    try:
        yield
    finally:
        driver.call("cuThreadExchangeStreamCaptureMode", byref(mode))


def begin_capture(stream: int) -> None:
    """Let a stream note its work from now on instead of doing it."""
    # Thread-local: what other threads do meanwhile, such as loading data, is no error.
    driver.call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
    driver.threads.is_capturing = True


def end_capture(stream: int) -> int:
    """The graph of the work that the stream was given since `begin_capture`.

    Raises:
        DeviceError: something in it cannot be captured.
    """
    driver.threads.is_capturing = False
    graph = c_void_p()
    driver.call("cuStreamEndCapture", stream, byref(graph))
    return int(graph.value or 0)


def instantiate_graph(graph: int) -> int:
    """What `launch_graph` takes; the graph itself is destroyed."""
    executable = c_void_p()
    try:
        driver.call("cuGraphInstantiateWithFlags", byref(executable), graph, 0)
    finally:
        driver.call("cuGraphDestroy", graph)
    return int(executable.value or 0)


def discard_graph(graph: int) -> None:
    """Destroy a graph that was not instantiated."""
    driver.call("cuGraphDestroy", graph)


def count_nodes(graph: int) -> int:
    """How many kernels, copies and fills a graph has."""
    count = c_size_t()
    driver.call("cuGraphGetNodes", graph, None, byref(count))
    return count.value


def launch_graph(executable: int, stream: int) -> None:
    """Queue all work of a graph."""
    driver.call("cuGraphLaunch", executable, stream)


def destroy_graph(executable: int) -> None:
    """Destroy an instantiated graph, once its work is done; returns at once.

    It may be garbage that is found while another graph is captured.
    """
    with during_capture():
        driver.call("cuGraphExecDestroy", executable)

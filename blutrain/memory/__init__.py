"""Device memory: allocation, its cache, and how much of it is in use.

    block = malloc(4096)
    ...                          # block.pointer is an address on the device
    free(block)

One caching allocator serves the target: on cuda it divides memory of the driver, on cpu memory of
the process. The statistics have PyTorch's names and meanings. Segments grow in place where the
device can do that; `BLUTRAIN_ALLOCATOR=segments` (or `expandable`) chooses.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from blutrain.device.stream import Stream
from blutrain.device.target import TARGET
from blutrain.errors import DeviceError, message
from blutrain.memory.allocator import CachingAllocator
from blutrain.memory.backend import Backend, HostBackend, StreamEvents, VirtualMemory
from blutrain.memory.block import Block
from blutrain.memory.history import History, segments
from blutrain.memory.host_arena import HostArena
from blutrain.memory.private_pool import MemoryPool

__all__ = [
    "Block",
    "CachingAllocator",
    "MemoryPool",
    "dump_snapshot",
    "empty_cache",
    "free",
    "malloc",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "record_history",
    "record_stream",
    "reset_peak_memory_stats",
    "set_memory_fraction",
    "set_memory_limit",
    "shareable_buffer",
    "snapshot",
]


def _sources() -> tuple[Backend, VirtualMemory | None, StreamEvents | None]:
    """Where the target's memory comes from, as `BLUTRAIN_ALLOCATOR` says.

    Raises:
        DeviceError: it says something else, or what the device cannot do.
    """
    asked = os.environ.get("BLUTRAIN_ALLOCATOR", "")
    if asked not in ("", "segments", "expandable"):
        wrong = "must be segments or expandable"
        raise DeviceError(message("BLUTRAIN_ALLOCATOR", wrong, repr(asked)))
    if TARGET == "cpu":
        return HostBackend(), None if asked == "segments" else HostArena(), None
    from blutrain.device.cuda import virtual_memory
    from blutrain.memory.cuda_backend import CudaArena, CudaBackend, CudaEvents

    can_expand = asked != "segments" and virtual_memory.supported()
    if asked == "expandable" and not can_expand:
        wrong = "this device has no virtual memory management"
        raise DeviceError(message("BLUTRAIN_ALLOCATOR", wrong, asked, "unset it"))
    return CudaBackend(), CudaArena() if can_expand else None, CudaEvents()


allocator = CachingAllocator(*_sources())
# Bound once: a wrapper would cost as much again as the call.
malloc = allocator.malloc
free = allocator.free
shareable_buffer = allocator.malloc_shareable

if TARGET == "cuda":
    from blutrain.device.cuda import numba_memory

    numba_memory.install(shareable_buffer, free)


def record_stream(used: Any, stream: Stream) -> None:
    """Say that work on `stream` uses memory that was allocated on another.

    When it is freed, it is given out again only after that stream has come to the present point.

    Args:
        used: a tensor, an `Array` of one, or a `Block`.
        stream: the other stream.

    Raises:
        DeviceError: the memory is not from this allocator, or was freed before.

    Example:
        >>> import blutrain as bt
        >>> x, side = bt.zeros(100), bt.device.Stream()
        >>> with side:
        ...     y = x + 1
        >>> record_stream(x, side)
        >>> del x  # its memory waits for `side`
    """
    block = used
    while block is not None and not isinstance(block, Block):
        if hasattr(block, "storage"):  # a tensor
            block = block.storage._block
        else:  # a window on one
            block = getattr(block, "owner", None)
    if block is None:
        wrong = "the memory must come from blutrain's allocator"
        raise DeviceError(message("record_stream", wrong, type(used).__name__))
    allocator.record_stream(block, stream.handle)


def record_history(enabled: bool = True, max_entries: int = 1_000_000) -> None:
    """Note every allocation and release from now on, with Python stacks; or stop.

    Args:
        enabled: False stops, and forgets what was noted.
        max_entries: how many of the latest events are kept.
    """
    allocator.record_history(History(max_entries) if enabled else None)


def snapshot() -> dict[str, Any]:
    """All memory as it is, and what happened since `record_history`, for pytorch.org/memory_viz.

    Example:
        >>> sorted(snapshot())
        ['allocator_settings', 'device_traces', 'segments']
    """
    allocator.counters()  # what was freed is taken back first
    history = allocator.history
    return {
        "segments": segments(allocator.pools()),
        "device_traces": [[] if history is None else history.trace()],
        "allocator_settings": {
            "expandable_segments": allocator.expandable,
            "garbage_collection_threshold": 0.0,
            "max_split_size": -1,
        },
    }


def dump_snapshot(path: str | Path) -> None:
    """Write a snapshot to a file that pytorch.org/memory_viz opens."""
    Path(path).write_bytes(pickle.dumps(snapshot()))


def memory_allocated() -> int:
    """Bytes set aside for tensors that live.

    Example:
        >>> before = memory_allocated()
        >>> block = malloc(1000)
        >>> memory_allocated() - before
        1024
        >>> free(block)
    """
    return allocator.counters().allocated


def max_memory_allocated() -> int:
    """The most that `memory_allocated` was since the start or `reset_peak_memory_stats`."""
    return allocator.counters().peak_allocated


def memory_reserved() -> int:
    """Bytes taken from the device: for tensors that live, and cached."""
    return allocator.counters().reserved


def max_memory_reserved() -> int:
    """The most that `memory_reserved` was since the start or `reset_peak_memory_stats`."""
    return allocator.counters().peak_reserved


def reset_peak_memory_stats() -> None:
    """Let the two maxima start again from the present."""
    allocator.reset_peak()


def memory_stats() -> dict[str, int]:
    """All that is counted, under the keys of `torch.cuda.memory_stats`.

    Example:
        >>> memory_stats()["num_ooms"] >= 0, "allocated_bytes.small_pool.peak" in memory_stats()
        (True, True)
    """
    return allocator.statistics().as_dict()


def memory_summary() -> str:
    """A table of all that is counted, for people."""
    return allocator.statistics().summary(f"blutrain memory, target {TARGET}")


def empty_cache() -> None:
    """Give cached memory back to the device, so that other programs can have it."""
    allocator.empty_cache()


def set_memory_limit(nbytes: int | None) -> None:
    """Let blutrain take at most `nbytes` of the device; None takes the limit away.

    A request beyond it raises `OutOfMemoryError`, just as on a device with less memory.

    Raises:
        DeviceError: the limit is not positive.
    """
    allocator.set_limit(nbytes)


def set_memory_fraction(fraction: float) -> None:
    """Let blutrain take at most this share of the device's memory; 1 is all of it.

    Args:
        fraction: above 0, at most 1.

    Raises:
        DeviceError: the fraction is outside that range.

    Example:
        >>> set_memory_fraction(0.5)
        >>> set_memory_limit(None)
    """
    if not 0 < fraction <= 1:
        wrong = "the fraction must be above 0 and at most 1"
        raise DeviceError(message("set_memory_fraction", wrong, fraction))
    allocator.set_limit(max(1, int(fraction * allocator.device_total())))

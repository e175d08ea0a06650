"""Device memory: allocation, its cache, and how much of it is in use.

    block = malloc(4096)
    ...                          # block.pointer is an address on the device
    free(block)

One caching allocator serves the target: on cuda it divides memory of the driver, on cpu memory of
the process. The statistics have PyTorch's names and meanings.
"""

from __future__ import annotations

from blutrain.device.target import TARGET
from blutrain.errors import DeviceError, message
from blutrain.memory.allocator import CachingAllocator
from blutrain.memory.backend import Backend, HostBackend
from blutrain.memory.block import Block

__all__ = [
    "Block",
    "CachingAllocator",
    "empty_cache",
    "free",
    "malloc",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "set_memory_fraction",
    "set_memory_limit",
]


def _backend() -> Backend:
    if TARGET == "cpu":
        return HostBackend()
    from blutrain.memory.cuda_backend import CudaBackend

    return CudaBackend()


_allocator = CachingAllocator(_backend())
# Bound once: a wrapper would cost as much again as the call.
malloc = _allocator.malloc
free = _allocator.free

if TARGET == "cuda":
    from blutrain.device.cuda import numba_memory

    numba_memory.install(malloc, free)


def memory_allocated() -> int:
    """Bytes set aside for tensors that live.

    Example:
        >>> before = memory_allocated()
        >>> block = malloc(1000)
        >>> memory_allocated() - before
        1024
        >>> free(block)
    """
    return _allocator.counters().allocated


def max_memory_allocated() -> int:
    """The most that `memory_allocated` was since the start or `reset_peak_memory_stats`."""
    return _allocator.counters().peak_allocated


def memory_reserved() -> int:
    """Bytes taken from the device: for tensors that live, and cached."""
    return _allocator.counters().reserved


def max_memory_reserved() -> int:
    """The most that `memory_reserved` was since the start or `reset_peak_memory_stats`."""
    return _allocator.counters().peak_reserved


def reset_peak_memory_stats() -> None:
    """Let the two maxima start again from the present."""
    _allocator.reset_peak()


def memory_stats() -> dict[str, int]:
    """All that is counted, under the keys of `torch.cuda.memory_stats`.

    Example:
        >>> sorted(memory_stats())[0]
        'allocated_bytes.all.current'
    """
    return _allocator.statistics().as_dict()


def memory_summary() -> str:
    """A table of all that is counted, for people."""
    return _allocator.statistics().summary(f"blutrain memory, target {TARGET}")


def empty_cache() -> None:
    """Give cached memory back to the device, so that other programs can have it."""
    _allocator.empty_cache()


def set_memory_limit(nbytes: int | None) -> None:
    """Let blutrain take at most `nbytes` of the device; None takes the limit away.

    A request beyond it raises `OutOfMemoryError`, just as on a device with less memory.

    Raises:
        DeviceError: the limit is not positive.
    """
    _allocator.set_limit(nbytes)


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
    _allocator.set_limit(max(1, int(fraction * _allocator.device_total())))

"""Where the caching allocator gets its segments from."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Protocol


class Backend(Protocol):
    """A source of large pieces of memory."""

    def reserve(self, nbytes: int) -> int | None:
        """The address of new memory, aligned to 512 bytes or more; None when there is no room."""

    def release(self, pointer: int, nbytes: int) -> None:
        """Give back what `reserve` gave, once no kernel uses it any more."""

    def total(self) -> int:
        """Bytes of memory of the device."""

    def available(self) -> int:
        """Bytes of it that nobody uses now."""


class VirtualMemory(Protocol):
    """Ranges of addresses, and memory to put behind parts of them."""

    @property
    def granularity(self) -> int:
        """Addresses and sizes of all pieces are multiples of this."""

    def total(self) -> int:
        """Bytes of memory of the device."""

    def reserve_addresses(self, nbytes: int) -> int | None:
        """The start of a new range without memory; None when there are no addresses left."""

    def release_addresses(self, pointer: int, nbytes: int) -> None:
        """Give back a range that has no memory any more."""

    def map(self, pointer: int, nbytes: int) -> bool:
        """Put new memory behind a part of a range; False when there is no room."""

    def unmap(self, pointer: int, nbytes: int) -> None:
        """Give back the memory of a part, just as it was mapped, that nobody uses any more."""

    def settle(self) -> None:
        """Wait until no kernel uses any memory."""


class StreamEvents(Protocol):
    """How to know that a stream has done what it was given until now."""

    def record(self, stream: int) -> Any:
        """An event behind all work of the stream."""

    def passed(self, event: Any) -> bool:
        """Whether the stream has come to it."""

    def wait(self, event: Any) -> None:
        """Return when the stream has come to it."""

    def recycle(self, event: Any) -> None:
        """The event is not needed any more."""


class InOrder:
    """The events of a target that has done all work when a call returns."""

    def record(self, stream: int) -> None:
        """Nothing to note."""

    def passed(self, event: None) -> bool:
        """Everything has passed."""
        return True

    def wait(self, event: None) -> None:
        """Nothing to wait for."""

    recycle = wait


class HostBackend:
    """Anonymous mappings of the process: aligned to pages, back with the system when released.

    Linux promises more memory than there is and kills the process that touches it, so a request
    is refused here when the machine (or the control group) has less than that left.
    """

    def __init__(self) -> None:
        self._mappings: dict[int, mmap.mmap] = {}

    def reserve(self, nbytes: int) -> int | None:
        """The address of a new mapping; None when the machine has no such room."""
        if nbytes > self.available():
            return None
        try:
            mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError):
            return None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Fewer page faults and misses of the translation buffer; a kernel without it refuses.
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self._mappings[pointer] = mapping
        return pointer

    def release(self, pointer: int, nbytes: int) -> None:
        """Unmap."""
        self._mappings.pop(pointer).close()

    def total(self) -> int:
        """The machine's memory, or the control group's limit if that is less."""
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = _number_in(Path("/sys/fs/cgroup/memory.max"))
        return physical if limit is None else min(physical, limit)

    def available(self) -> int:
        """What the system could give without swapping, and the control group without killing."""
        room = self.total()
        for line in _lines_of(Path("/proc/meminfo")):
            if line.startswith("MemAvailable:"):
                room = min(room, int(line.split()[1]) * 1024)
        limit = _number_in(Path("/sys/fs/cgroup/memory.max"))
        used = _number_in(Path("/sys/fs/cgroup/memory.current"))
        if limit is not None and used is not None:
            room = min(room, limit - used)
        return room


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # no such file on this system
        return []


def _number_in(file: Path) -> int | None:
    lines = _lines_of(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None

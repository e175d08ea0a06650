"""Ranges of addresses in the process, and memory behind parts of them: the cpu target's arenas."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

from blutrain.errors import DeviceError, message
from blutrain.memory.backend import HostBackend

# Of <sys/mman.h> on Linux; Python's mmap cannot map without access.
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x02, 0x20, 0x4000
_MADV_DONTNEED, _MADV_HUGEPAGE = 4, 14
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = address
    libc.mmap.argtypes = (
        address, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    libc.munmap.argtypes = (address, size)
    for function in (libc.mprotect, libc.madvise):
        function.argtypes = (address, size, ctypes.c_int)
    return libc


class HostArena:
    """Mappings without access, parts of which are made readable and writeable.

    Example:
        >>> arena = HostArena()
        >>> start = arena.reserve_addresses(1 << 30)
        >>> arena.map(start, 2 << 20)
        True
        >>> arena.unmap(start, 2 << 20)
        >>> arena.release_addresses(start, 1 << 30)
    """

    granularity = 2 << 20  # a huge page, so that the system can use one

    def __init__(self) -> None:
        self._host = HostBackend()

    def total(self) -> int:
        """The machine's memory, or the control group's limit if that is less."""
        return self._host.total()

    def reserve_addresses(self, nbytes: int) -> int | None:
        """The start of a new aligned range; None where addresses are limited."""
        # The system aligns to pages only: map more, and cut off what is outside.
        length = nbytes + self.granularity
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        start = _libc().mmap(None, length, _PROT_NONE, flags, -1, 0)
        if start == _FAILED:
            return None
        aligned = -(-start // self.granularity) * self.granularity
        self._call("munmap", aligned + nbytes, start + length - aligned - nbytes)
        if aligned > start:
            self._call("munmap", start, aligned - start)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Advice: a kernel without huge pages refuses, and nothing is lost.
            _libc().madvise(aligned, nbytes, _MADV_HUGEPAGE)
        return int(aligned)

    def release_addresses(self, pointer: int, nbytes: int) -> None:
        """Unmap a range."""
        self._call("munmap", pointer, nbytes)

    def map(self, pointer: int, nbytes: int) -> bool:
        """Let a part of a range be used; False when the machine has less room than that left."""
        if nbytes > self._host.available():
            return False
        return bool(_libc().mprotect(pointer, nbytes, _PROT_READ_WRITE) == 0)

    def unmap(self, pointer: int, nbytes: int) -> None:
        """Give the pages back to the system; touching them is a fault then."""
        self._call("madvise", pointer, nbytes, _MADV_DONTNEED)
        self._call("mprotect", pointer, nbytes, _PROT_NONE)

    def settle(self) -> None:
        """All work is done when a launch returns."""

    @staticmethod
    def _call(name: str, *arguments: int) -> None:
        if getattr(_libc(), name)(*arguments):
            reason = os.strerror(ctypes.get_errno())
            raise DeviceError(message(name, f"the system refused ({reason})", hex(arguments[0])))

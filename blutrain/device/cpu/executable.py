"""A compiled kernel, and how its blocks are spread over the machine's processors."""

from __future__ import annotations

import ctypes
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from blutrain.device.cpu import native
from blutrain.errors import KernelError, message

_ENTRY = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *([ctypes.c_int64] * 7)
)
# A launch shorter than this runs on the calling thread: waking others would cost more.
_WORTH_THREADS = 1e-3
_pool: ThreadPoolExecutor | None = None


def n_workers() -> int:
    """Threads that a long launch uses: BLUTRAIN_CPU_THREADS, else the processors there are."""
    asked = os.environ.get("BLUTRAIN_CPU_THREADS", "")
    if asked:
        return max(1, int(asked))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _workers() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(n_workers(), thread_name_prefix="blutrain-cpu")
    return _pool


def _forget_workers() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


class NegativeArgument(Exception):  # noqa: N818
    """A scalar argument is negative where the program was compiled for others."""


class CompiledKernel:
    """Machine code for one kernel, block shape and tuple of argument types.

    Attributes:
        name: the kernel's name.
        source: the Python program that was compiled, to be read.
        serial: whether blocks run in order on one thread, because they update memory atomically.
    """

    def __init__(
        self,
        name: str,
        source: str,
        code: tuple[str, bytes],
        serial: bool,
        without_assumption: Callable[[], CompiledKernel],
    ) -> None:
        self.name, self.source, self.serial = name, source, serial
        self._without_assumption = without_assumption
        self._general: CompiledKernel | None = None
        address, self._library = native.load(*code, name)
        self._entry = _ENTRY(address)
        self._seconds_a_block: float | None = None

    def run(self, grid: tuple[int, int, int], shared_bytes: int, slots: int) -> None:
        """Run all blocks, and return when they are done.

        Args:
            grid: blocks in x, y and z.
            shared_bytes: size of dynamic shared memory.
            slots: address of the packed arguments (`blutrain.device.arguments`).

        Raises:
            KernelError: the kernel raised.
        """
        try:
            self._run(grid, shared_bytes, slots)
        except NegativeArgument:
            # Nothing was written yet.
            if self._general is None:
                self._general = self._without_assumption()
            self._general.run(grid, shared_bytes, slots)

    def _run(self, grid: tuple[int, int, int], shared_bytes: int, slots: int) -> None:
        n_blocks = grid[0] * grid[1] * grid[2]
        expected = self._seconds_a_block
        if expected is None or self.serial or expected * n_blocks < _WORTH_THREADS or n_blocks == 1:
            began = time.perf_counter()
            self._run_blocks(0, n_blocks, grid, shared_bytes, slots)
            taken = (time.perf_counter() - began) / max(1, n_blocks)
            self._seconds_a_block = taken if expected is None else min(taken, expected)
            return
        workers = n_workers()
        # A few shares a worker, so that one that was held up does not keep all waiting.
        share = max(1, -(-n_blocks // (workers * 4)))
        tasks = [
            _workers().submit(
                self._run_blocks, first, min(first + share, n_blocks), grid, shared_bytes, slots
            )
            for first in range(0, n_blocks, share)
        ]
        for task in tasks:
            task.result()

    def _run_blocks(
        self, first: int, last: int, grid: tuple[int, int, int], shared_bytes: int, slots: int
    ) -> None:
        """Run some of the blocks on this thread. ctypes lets other Python threads run meanwhile."""
        result, exception = ctypes.c_void_p(), ctypes.c_void_p()
        status = self._entry(
            ctypes.addressof(result), ctypes.addressof(exception), first, last, *grid,
            shared_bytes, slots,
        )  # fmt: skip
        if status:
            self._fail(exception.value)

    def _fail(self, exception: int | None) -> None:
        """Raise what the kernel raised as a KernelError."""
        what: Any = "raised an exception"
        if exception:
            data = ctypes.cast(exception, ctypes.POINTER(ctypes.c_void_p))[0]
            size = ctypes.c_int32.from_address(exception + ctypes.sizeof(ctypes.c_void_p)).value
            if data and size > 0:
                kind, arguments, *_ = pickle.loads(ctypes.string_at(data, size))
                if kind is NegativeArgument:
                    raise NegativeArgument
                what = f"raised {getattr(kind, '__name__', kind)}"
                if arguments:
                    what += f"({', '.join(map(repr, arguments))})"
        raise KernelError(message(f"kernel {self.name}", what))

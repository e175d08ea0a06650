"""A compiled kernel, and how its blocks are spread over the machine's processors."""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from blutrain.device.cpu import bounds, cooperative, native
from blutrain.errors import KernelError, message

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *([ctypes.c_int64] * 8))
# A launch shorter than this runs on the calling thread: waking others would cost more.
_WORTH_THREADS = 1e-3
_POINTER = ctypes.sizeof(ctypes.c_void_p)
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
        # Some systems give threads far less stack than the main thread has.
        before = threading.stack_size(8 << 20)
        _pool = ThreadPoolExecutor(n_workers(), thread_name_prefix="blutrain-cpu")
        # They start with the first tasks, so all are given one now.
        list(_pool.map(time.sleep, [0.001] * n_workers()))
        threading.stack_size(before)
    return _pool


def _forget_workers() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


class NegativeArgument(Exception):
    """A scalar argument is negative where the program was compiled for others."""


class Order(NamedTuple):
    """In which order blocks run.

    Attributes:
        serial: in order on one thread, because they update memory atomically.
        in_turns: each on a thread of its own, in turns, because they meet.
    """

    serial: bool = False
    in_turns: bool = False


class CompiledKernel:
    """Machine code for one kernel, block shape and tuple of argument types.

    Attributes:
        name: the kernel's name.
        source: the Python program that was compiled, to be read.
        order: in which order blocks run.
        scratch_bytes: memory that each thread needs beyond its stack.
    """

    def __init__(
        self,
        name: str,
        source: str,
        code: tuple[str, bytes],
        order: Order,
        scratch_bytes: int,
        sites: Sequence[tuple[str, Any]],
        without_assumption: Callable[[], CompiledKernel],
    ) -> None:
        self.name, self.source, self.order = name, source, order
        self.scratch_bytes, self._sites = scratch_bytes, sites
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
        if self.order.in_turns:
            self._run_in_turns(n_blocks, grid, shared_bytes, slots)
            return
        expected = (self._seconds_a_block or 0.0) * n_blocks
        workers = (
            1 if self.order.serial or expected < _WORTH_THREADS else min(n_workers(), n_blocks)
        )
        if workers == 1:
            seconds = self._run_blocks(0, n_blocks, grid, shared_bytes, slots)
        else:
            # A few shares a worker, so that one that was held up does not keep all waiting.
            share = max(1, -(-n_blocks // (workers * 4)))
            turns = itertools.count()  # next() cannot be interrupted: each share is run once

            def work() -> float:
                taken = 0.0
                while (first := next(turns) * share) < n_blocks:
                    last = min(first + share, n_blocks)
                    taken += self._run_blocks(first, last, grid, shared_bytes, slots)
                return taken

            others = [_workers().submit(work) for _ in range(workers - 1)]
            try:
                seconds = work()
            finally:
                # Whoever has not begun by now has nothing left to do.
                begun = [task for task in others if not task.cancel()]
                wait(begun)
            seconds += sum(task.result() for task in begun)
        # The last launch tells best what the next will cost: shapes change, and a kernel's first
        # run finds the caches cold.
        self._seconds_a_block = seconds / max(1, n_blocks)

    def _run_in_turns(
        self, n_blocks: int, grid: tuple[int, int, int], shared_bytes: int, slots: int
    ) -> None:
        def run_block(block: int) -> None:
            self._run_blocks(block, block + 1, grid, shared_bytes, slots)

        cooperative.run(f"kernel {self.name}", n_blocks, run_block)

    def _run_blocks(
        self, first: int, last: int, grid: tuple[int, int, int], shared_bytes: int, slots: int
    ) -> float:
        """Run some of the blocks on this thread. ctypes lets other Python threads run meanwhile.

        Returns:
            Seconds of this thread's own, however busy the machine is.
        """
        # Numba's places for a result and an exception, then the report of a bounds check.
        outcome = (ctypes.c_int64 * (bounds.FIRST + len(bounds.REPORT)))()
        where = ctypes.addressof(outcome)
        scratch = 0
        if self.scratch_bytes:
            memory = ctypes.create_string_buffer(self.scratch_bytes + 64)
            scratch = -(-ctypes.addressof(memory) // 64) * 64
        began = time.thread_time()
        status = self._entry(
            where, where + _POINTER, first, last, *grid, shared_bytes, scratch, slots
        )
        if status:
            self._fail(outcome[1], outcome[bounds.FIRST :], grid)
        return time.thread_time() - began

    def _fail(self, exception: int, report: Sequence[int], grid: tuple[int, int, int]) -> None:
        """Raise what the kernel raised as a KernelError."""
        what: Any = "raised an exception"
        cause: BaseException | None = None
        if exception:
            data = ctypes.cast(exception, ctypes.POINTER(ctypes.c_void_p))[0]
            size = ctypes.c_int32.from_address(exception + _POINTER).value
            if data and size > 0:
                kind, arguments, *_ = pickle.loads(ctypes.string_at(data, size))
                if kind is NegativeArgument:
                    raise NegativeArgument
                if kind is bounds.OutOfBounds:
                    raise KernelError(
                        message(f"kernel {self.name}", bounds.describe(report, self._sites, grid))
                    )
                cause = kind(*arguments or ())
                what = f"raised {getattr(kind, '__name__', kind)}"
                if arguments:
                    what += f"({', '.join(map(repr, arguments))})"
        raise KernelError(message(f"kernel {self.name}", what)) from cause

"""Runs the threads of one block, one after the other between the places where they meet."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.np.numpy_support import as_dtype

from blutrain.device.cpu.explain.counting import LANES
from blutrain.device.cpu.explain.recorder import Site
from blutrain.device.cpu.explain.rewrite import generator_of
from blutrain.device.cpu.explain.traced import Traced, Watch, site_of
from blutrain.device.geometry import Dim3
from blutrain.errors import BlutrainError, KernelError, message

SHARED_ALIGNMENT = 128
_AXES = ("x", "y", "z")

# What a thread yields where it meets others: (what, site, operands).
Meeting = tuple[str, tuple[str, int, int], tuple[Any, ...]]
Thread = Generator[Meeting, Any, None]


class Block:
    """One block of a grid: its shared memory and its threads' meetings.

    Args:
        watch: who is told what the threads do.
        place: the block's index in the grid.
        shape, grid: threads of a block and blocks of the grid.
        dynamic: bytes of dynamic shared memory.
    """

    def __init__(self, watch: Watch, place: Dim3, shape: Dim3, grid: Dim3, dynamic: int) -> None:
        self.watch, self.place, self.shape, self.grid = watch, place, shape, grid
        self._arrays: dict[Site, Traced] = {}
        self._dynamic = np.zeros(dynamic, np.uint8)
        self._end = -(-dynamic // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    def shared_array(self, site: Site, shape: Any, dtype: Any) -> Traced:
        """The shared array that is declared at a place of the source."""
        found = self._arrays.get(site)
        if found is None:
            kind = as_dtype(dtype)
            if shape in (0, (0,)):
                data = self._dynamic[: self._dynamic.size // kind.itemsize * kind.itemsize]
                found = Traced(data.view(kind), "shared", 0, self.watch)
            else:
                data = np.zeros(shape, kind)
                found = Traced(data, "shared", self._end, self.watch)
                self._end += -(-data.nbytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
            self._arrays[site] = found
        return found

    def run(self, kernel: Any, arguments: Sequence[Any]) -> None:
        """Run all threads to their ends.

        Raises:
            KernelError: threads wait for each other for ever.
        """
        function = generator_of(kernel)
        nx, ny, nz = self.shape
        places = [(x, y, z) for z in range(nz) for y in range(ny) for x in range(nx)]
        threads: list[Thread] = [
            function(Cuda(self, place, n), *arguments) for n, place in enumerate(places)
        ]
        waiting: dict[int, Meeting] = {}
        answers: dict[int, Any] = dict.fromkeys(range(len(threads)))
        # As on a GPU, a division by zero gives infinity, and nobody is told.
        with np.errstate(all="ignore"):
            while answers:
                for n in sorted(answers):
                    waiting.pop(n, None)
                    met = self._continue(threads[n], n, answers[n])
                    if met is not None:
                        waiting[n] = met
                answers = dict(self._answers(waiting))
        if waiting:
            n = min(waiting)
            wrong = f"thread {n} waits for ever at {waiting[n][0]}"
            raise KernelError(
                message(f"kernel {self.watch.kernel}", wrong, do="let all come there")
            )

    def _continue(self, thread: Thread, n: int, answer: Any) -> Meeting | None:
        """Run a thread on to where it meets others, or to its end."""
        self.watch.thread = n
        try:
            return thread.send(answer)
        except StopIteration:
            return None
        except BlutrainError:
            raise
        except Exception as error:  # a kernel's own mistakes can be any
            frame = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"thread {n} failed in `{frame.line}`"
            got = f"{type(error).__name__}: {error}"
            raise KernelError(message(f"kernel {self.watch.kernel}", wrong, got)) from error

    def _answers(self, waiting: dict[int, Meeting]) -> Iterator[tuple[int, Any]]:
        """What those get who wait and have all come: warps first, then the block."""
        warps: dict[tuple[int, tuple[str, int, int]], list[int]] = {}
        for n, (what, site, _) in waiting.items():
            if not what.startswith("syncthreads"):
                warps.setdefault((n // LANES, site), []).append(n)
        if not warps and len({what for what, _, _ in waiting.values()}) == 1:
            warps[(0, ("", 0, 0))] = list(waiting)
        for members in warps.values():
            members.sort()
            for n in members:
                what, site, _ = waiting[n]
                if what.startswith("sync"):
                    self.watch.recorder.barrier(Site(*site), n)
            yield from zip(members, _exchanged(members, waiting), strict=True)


def _exchanged(members: Sequence[int], waiting: dict[int, Meeting]) -> list[Any]:
    """What each of the threads that meet gets from the others."""
    what = waiting[members[0]][0]
    operands = [waiting[n][2] for n in members]
    if what in ("syncthreads", "syncwarp"):
        return [None] * len(members)
    if what.startswith("syncthreads_"):
        votes = [bool(given[0]) for given in operands]
        answer = {"count": sum(votes), "and": int(all(votes)), "or": int(any(votes))}
        return [answer[what.removeprefix("syncthreads_")]] * len(members)
    if what in ("any_sync", "all_sync", "ballot_sync"):
        votes = [bool(given[1]) for given in operands]
        ballot = sum(1 << n % LANES for n, vote in zip(members, votes, strict=True) if vote)
        answers = {"any_sync": any(votes), "all_sync": all(votes), "ballot_sync": ballot}
        return [answers[what]] * len(members)
    if what in _SOURCES:
        by_lane = {n % LANES: given[1] for n, given in zip(members, operands, strict=True)}
        return [
            by_lane.get(_SOURCES[what](n % LANES, int(given[2])), given[1])
            for n, given in zip(members, operands, strict=True)
        ]
    raise KernelError(message("explain", "this cannot be followed", f"cuda.{what}"))


# From which lane a shuffle takes its value: (own lane, the operand) -> lane.
_SOURCES: dict[str, Callable[[int, int], int]] = {
    "shfl_sync": lambda lane, source: source % LANES,
    "shfl_xor_sync": lambda lane, mask: lane ^ mask,
    "shfl_up_sync": lambda lane, delta: lane - delta,
    "shfl_down_sync": lambda lane, delta: lane + delta,
}


class Cuda:
    """`numba.cuda` as one thread sees it."""

    warpsize = LANES

    def __init__(self, block: Block, place: Dim3, number: int) -> None:
        self._block, self._recorder = block, block.watch.recorder
        self.threadIdx, self.blockIdx, self.blockDim, self.gridDim = (
            SimpleNamespace(**dict(zip(_AXES, extents, strict=True)))
            for extents in (place, block.place, block.shape, block.grid)
        )
        self._positions = tuple(
            b * n + t for b, n, t in zip(block.place, block.shape, place, strict=True)
        )
        self.laneid, self._number = number % LANES, number
        self.shared = SimpleNamespace(array=self._shared_array)
        self.local = SimpleNamespace(array=self._local_array)
        self.atomic = _Atomic

    def __getattr__(self, name: str) -> Any:
        where = f"kernel {self._block.watch.kernel}"
        raise KernelError(message(where, "explain cannot follow this name", f"cuda.{name}"))

    def grid(self, ndim: int) -> Any:
        """The thread's position in the grid."""
        return self._positions[0] if ndim == 1 else self._positions[:ndim]

    def gridsize(self, ndim: int) -> Any:
        """Threads of the grid."""
        sizes = tuple(a * b for a, b in zip(self._block.grid, self._block.shape, strict=True))
        return sizes[0] if ndim == 1 else sizes[:ndim]

    def decide(self, site: tuple[str, int, int], test: Any) -> bool:
        """Note a decision."""
        self._recorder.branch(Site(*site), self._number, bool(test))
        return bool(test)

    def turns(self, site: tuple[str, int, int], values: Iterable[Any]) -> Iterator[Any]:
        """Note the decision before each turn of a loop, and the last, which leaves it."""
        for value in values:
            self._recorder.branch(Site(*site), self._number, True)
            yield value
        self._recorder.branch(Site(*site), self._number, False)

    @staticmethod
    def popc(value: Any) -> int:
        """Bits that are set."""
        return int(value).bit_count()

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        """a * b + c."""
        return a * b + c

    def _shared_array(self, shape: Any, dtype: Any, alignment: int = 0) -> Traced:
        return self._block.shared_array(site_of(sys._getframe(1)), shape, dtype)

    def _local_array(self, shape: Any, dtype: Any, alignment: int = 0) -> Traced:
        return Traced(np.zeros(shape, as_dtype(dtype)), "", 0, self._block.watch)


class _Atomic:
    """`cuda.atomic`."""

    @staticmethod
    def add(array: Traced, index: Any, value: Any) -> Any:
        return array.update(index, lambda old: old + value)

    @staticmethod
    def sub(array: Traced, index: Any, value: Any) -> Any:
        return array.update(index, lambda old: old - value)

    @staticmethod
    def max(array: Traced, index: Any, value: Any) -> Any:
        return array.update(index, lambda old: max(old, value))

    @staticmethod
    def min(array: Traced, index: Any, value: Any) -> Any:
        return array.update(index, lambda old: min(old, value))

    @staticmethod
    def exch(array: Traced, index: Any, value: Any) -> Any:
        return array.update(index, lambda old: value)

    @staticmethod
    def cas(array: Traced, index: Any, expected: Any, value: Any) -> Any:
        return array.update(index, lambda old: value if old == expected else old)

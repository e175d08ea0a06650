"""What a launch is run by: who runs at present, who is told, and the grid's blocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numba import types
from numba.np.numpy_support import as_dtype

from blutrain.device.cpu.interpret.events import Launch, Observer, Place, Space

Order = Literal["ascending", "reversed"] | int
WARP = 32


class Machine:
    """The state of one launch.

    Attributes:
        launch: the kernel's name, the grid and the block.
        place: the thread that runs at present.
        on_access: those who are told of accesses, by space; likewise the lists of others.
    """

    def __init__(self, launch: Launch, observers: Sequence[Observer], order: Order) -> None:
        self.launch = launch
        self.place = Place(0, 0)
        self.order = order
        # Seeds give the same orders on every machine.
        self._random = random.Random(order if isinstance(order, int) else 0)
        spaces: tuple[Space, ...] = ("global", "shared", "local")
        self.on_access = {
            space: _overriding([o for o in observers if space in o.spaces], "access")
            for space in spaces
        }
        self.on_allocate = _overriding(observers, "allocate")
        self.on_barrier = _overriding(observers, "barrier")
        self.on_warp = _overriding(observers, "warp")
        self.on_fence = _overriding(observers, "fence")
        self.on_branch = _overriding(observers, "branch")
        self.on_block_begin = _overriding(observers, "block_begin")
        self.on_block_end = _overriding(observers, "block_end")
        for begin in _overriding(observers, "begin"):
            begin(launch)

    def ordered(self, threads: Iterable[int]) -> list[int]:
        """Threads, or blocks, in the order in which they are to run."""
        listed = sorted(threads)
        if self.order == "reversed":
            listed.reverse()
        elif self.order != "ascending":
            self._random.shuffle(listed)
        return listed

    @staticmethod
    def dtype_of(kind: Any) -> np.dtype[Any]:
        """The NumPy type of elements that a kernel asks for."""
        kind = getattr(kind, "dtype", kind)
        if isinstance(kind, types.Type):
            kind = as_dtype(kind)
        made: np.dtype[Any] = np.dtype(kind)
        return made


def _overriding(observers: Sequence[Observer], method: str) -> list[Callable[..., None]]:
    """The method of all observers that have one of their own."""
    return [
        getattr(o, method)
        for o in observers
        if getattr(type(o), method) is not getattr(Observer, method)
    ]

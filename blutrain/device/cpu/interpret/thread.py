"""`numba.cuda` as one thread sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from blutrain.device.cpu.interpret.events import Place, Site
from blutrain.device.cpu.interpret.machine import WARP
from blutrain.device.cpu.interpret.view import Memory, View
from blutrain.device.geometry import Dim3
from blutrain.errors import KernelError, message

if TYPE_CHECKING:
    from blutrain.device.cpu.interpret.block import Block

_AXES = ("x", "y", "z")


class Cuda:
    """The names of `numba.cuda` for one thread.

    Args:
        block: the thread's block.
        number: the linear number of the thread in it.
        position: its index in the block.
    """

    warpsize = WARP
    # The grid is known by its `sync` alone.
    cg = SimpleNamespace(this_grid=lambda: None)

    def __init__(self, block: Block, number: int, position: Dim3) -> None:
        launch = block.machine.launch
        self._block, self._machine = block, block.machine
        self._here = Place(block.number, number)
        self.threadIdx, self.blockIdx, self.blockDim, self.gridDim = (
            SimpleNamespace(**dict(zip(_AXES, extents, strict=True)))
            for extents in (position, block.position, launch.block, launch.grid)
        )
        self._positions = tuple(
            b * n + t for b, n, t in zip(block.position, launch.block, position, strict=True)
        )
        self.laneid = number % WARP
        self.atomic = Atomic
        # The grid's `sync()` is where threads meet; the object itself is never looked at.
        self.cg = SimpleNamespace(this_grid=lambda: None)

    def __getattr__(self, name: str) -> Any:
        where = f"kernel {self._machine.launch.kernel}"
        wrong = "the interpreter cannot run this name"
        raise KernelError(message(where, wrong, f"cuda.{name}", "run the kernel compiled"))

    def grid(self, ndim: int) -> Any:
        """The thread's position in the grid."""
        return self._positions[0] if ndim == 1 else self._positions[:ndim]

    def gridsize(self, ndim: int) -> Any:
        """Threads of the grid."""
        launch = self._machine.launch
        sizes = tuple(a * b for a, b in zip(launch.grid, launch.block, strict=True))
        return sizes[0] if ndim == 1 else sizes[:ndim]

    def branch(self, site: Site, test: Any) -> bool:
        """Tell of a decision."""
        taken = bool(test)
        for observer in self._machine.on_branch:
            observer(site, self._here, taken)
        return taken

    def turns(self, site: Site, values: Iterable[Any]) -> Iterator[Any]:
        """Tell of the decision before each turn of a loop, and of the last, which leaves it."""
        for value in values:
            self.branch(site, True)
            yield value
        self.branch(site, False)

    def fence(self, site: Site) -> None:
        """Tell of a `threadfence`; the interpreter's memory is in order anyhow."""
        for observer in self._machine.on_fence:
            observer(site, self._here)

    def cast(self, kind: Any, value: Any) -> Any:
        """`type(v)(x)`."""
        return np.float64(value) if kind is float else kind(value)

    def shared_array(self, site: Site, name: str, shape: Any, dtype: Any) -> View:
        """`cuda.shared.array`: the same for all threads of the block."""
        return self._block.shared_array(site, name, shape, self._machine.dtype_of(dtype))

    def local_array(self, site: Site, name: str, shape: Any, dtype: Any) -> View:
        """`cuda.local.array`."""
        data = np.zeros(shape, self._machine.dtype_of(dtype))
        memory = Memory("local", name, 0, data.nbytes)
        for observer in self._machine.on_allocate:
            observer(memory, self._here)
        return View(self._machine, memory, data)

    def array_at(self, address: Any, first: Any, size: Any, like: View) -> View:
        """`blutrain.device.pointer.array_at`."""
        start, n = int(address) + int(first) * like.itemsize, int(size)
        # Only the window is looked at; a later check of each index keeps within it.
        kept = (ctypes.c_char * (n * like.itemsize)).from_address(start)
        data: np.ndarray[Any, Any] = np.ndarray((n,), like.dtype, memoryview(kept))
        memory = Memory("global", "array_at", start, data.nbytes)
        return View(self._machine, memory, data, 0, like.half)

    def instruction(self, function: Any, site: Site, *_: Any) -> Any:
        """Inline PTX."""
        where = f"kernel {self._machine.launch.kernel} ({site.file}:{site.line})"
        wrong = "inline PTX cannot be interpreted"
        raise KernelError(
            message(where, wrong, f"`{site.source}`", "run the kernel compiled, without debug mode")
        )


class Atomic:
    """`cuda.atomic`; every function gives the old value."""

    @staticmethod
    def add(array: View, index: Any, value: Any, site: Site) -> Any:
        """old + value."""
        return array.update(index, lambda old: old + value, site)

    @staticmethod
    def sub(array: View, index: Any, value: Any, site: Site) -> Any:
        """old - value."""
        return array.update(index, lambda old: old - value, site)

    @staticmethod
    def max(array: View, index: Any, value: Any, site: Site) -> Any:
        """The larger one; of a number and NaN the number."""
        return array.update(index, lambda old: value if value > old or old != old else old, site)

    @staticmethod
    def min(array: View, index: Any, value: Any, site: Site) -> Any:
        """The smaller one; of a number and NaN the number."""
        return array.update(index, lambda old: value if value < old or old != old else old, site)

    nanmax, nanmin = max, min

    @staticmethod
    def and_(array: View, index: Any, value: Any, site: Site) -> Any:
        """Bits in both."""
        return array.update(index, lambda old: old & value, site)

    @staticmethod
    def or_(array: View, index: Any, value: Any, site: Site) -> Any:
        """Bits in either."""
        return array.update(index, lambda old: old | value, site)

    @staticmethod
    def xor(array: View, index: Any, value: Any, site: Site) -> Any:
        """Bits in one alone."""
        return array.update(index, lambda old: old ^ value, site)

    @staticmethod
    def exch(array: View, index: Any, value: Any, site: Site) -> Any:
        """The new value."""
        return array.update(index, lambda old: value, site)

    @staticmethod
    def inc(array: View, index: Any, top: Any, site: Site) -> Any:
        """One more, or 0 from `top` on."""
        return array.update(index, lambda old: 0 if old >= top else old + 1, site)

    @staticmethod
    def dec(array: View, index: Any, top: Any, site: Site) -> Any:
        """One less, or `top` from 0 or beyond it."""
        return array.update(index, lambda old: top if old == 0 or old > top else old - 1, site)

    @staticmethod
    def cas(array: View, index: Any, expected: Any, value: Any, site: Site) -> Any:
        """`value` where the old one is as expected."""
        return array.update(index, lambda old: value if old == expected else old, site)

    @staticmethod
    def compare_and_swap(array: View, expected: Any, value: Any, site: Site) -> Any:
        """As `cas`, of the first element."""
        return Atomic.cas(array, 0, expected, value, site)

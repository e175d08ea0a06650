"""What an interpreted kernel does, as its observers are told."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from blutrain.device.geometry import Dim3

if TYPE_CHECKING:
    from blutrain.device.cpu.interpret.view import Memory, View

Kind = Literal["load", "store", "atomic"]
Space = Literal["global", "shared", "local"]


class Site(NamedTuple):
    """A place in the source.

    Attributes:
        file, line, column: where it starts; lines count from 1, columns from 0.
        source: the expression.
    """

    file: str
    line: int
    column: int
    source: str

    @property
    def text(self) -> str:
        """The whole line of the source."""
        return linecache.getline(self.file, self.line).strip() or self.source

    def __str__(self) -> str:
        return f"{self.file}:{self.line} `{self.text}`"


class Place(NamedTuple):
    """Who does something.

    Attributes:
        block: the linear number of the block in the grid.
        thread: the linear number of the thread in the block.
    """

    block: int
    thread: int


class Launch(NamedTuple):
    """What is being run."""

    kernel: str
    grid: Dim3
    block: Dim3

    def who(self, place: Place) -> str:
        """`thread (3, 0, 0) of block (1, 0, 0)`, as CUDA counts them."""
        return f"thread {_at(place.thread, self.block)} of block {_at(place.block, self.grid)}"


def _at(number: int, extents: Dim3) -> Dim3:
    nx, ny, _ = extents
    return (number % nx, number // nx % ny, number // (nx * ny))


class Observer:
    """Is told what a kernel does; override what you want to know.

    A method that is not overridden costs nothing, nor do accesses to memory that is not among its
    `spaces`. Threads of a block run one after another between
    the places where they meet, blocks one after another between grid-wide barriers.
    """

    spaces: Collection[Space] = ("global", "shared", "local")

    def begin(self, launch: Launch) -> None:
        """A launch starts."""

    def block_begin(self, block: int) -> None:
        """A block starts."""

    def block_end(self, block: int) -> None:
        """All threads of a block are at their ends."""

    def allocate(self, memory: Memory, place: Place) -> None:
        """A block makes a shared array, or a thread a local one."""

    def access(
        self, site: Site, kind: Kind, array: View, index: Any, offset: int, place: Place, value: Any
    ) -> None:
        """An element is about to be read or written.

        Args:
            site: by which expression.
            kind: "load", "store" or "atomic".
            array: has `name`, `space` ("global", "shared" or "local"), `itemsize` and `memory`.
            index: as the kernel wrote it: an integer, or a tuple of them.
            offset: bytes from `array.memory.address`, of the first of `array.itemsize` bytes.
            place: by whom.
            value: what is stored; None for others.
        """

    def barrier(self, what: str, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """Threads pass a barrier of the block ("syncthreads"...) or of the grid ("grid.sync").

        Args:
            what: its name in `numba.cuda`.
            sites: where each of the threads is.
            places: the threads.
        """

    def warp(self, what: str, mask: int, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """Lanes of a warp pass a `syncwarp`, a shuffle, a vote or a match."""

    def fence(self, site: Site, place: Place) -> None:
        """A thread passes a `threadfence`."""

    def branch(self, site: Site, place: Place, taken: bool) -> None:
        """A thread decides at an `if` or before a turn of a loop."""

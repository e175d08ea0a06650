"""What the interpreter tells of a kernel, brought to the recorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from blutrain.device.cpu.explain.loops import Span
from blutrain.device.cpu.explain.recorder import Recorder
from blutrain.device.cpu.interpret import Observer, Place, Site


class Watch(Observer):
    """Notes each block in a recorder of its own.

    Args:
        kernel: the lines of the kernel's function.

    Attributes:
        recorders: of the blocks, by their linear number.
    """

    def __init__(self, kernel: Span | None) -> None:
        self._kernel = kernel
        self.recorders: dict[int, Recorder] = {}

    def block_begin(self, block: int) -> None:
        """A block starts."""
        self.recorders[block] = Recorder(self._kernel)

    def access(
        self,
        site: Site,
        kind: Literal["load", "store", "atomic"],
        array: Any,
        index: Any,
        offset: int,
        place: Place,
        value: Any,
    ) -> None:
        """An element is read or written; those of local arrays count as registers."""
        if array.space != "local":
            address = array.memory.address + offset
            self.recorders[place.block].access(
                site, kind, array.space, place.thread, address, array.itemsize
            )

    def branch(self, site: Site, place: Place, taken: bool) -> None:
        """A thread decides."""
        self.recorders[place.block].branch(site, place.thread, taken)

    def barrier(self, what: str, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """Threads pass a barrier of the block or of the grid."""
        for site, place in zip(sites, places, strict=True):
            self.recorders[place.block].barrier(site, place.thread)

    def warp(self, what: str, mask: int, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """Lanes of a warp meet."""
        if what == "syncwarp":
            self.barrier(what, sites, places)

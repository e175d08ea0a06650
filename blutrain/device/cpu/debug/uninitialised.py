"""Shared and local memory that is read before anything was written to it."""

from __future__ import annotations

from typing import Any

from blutrain.device.cpu.interpret.events import Kind, Launch, Observer, Place, Site
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.view import Memory, View, plain


class Uninitialised(Observer):
    """Finds reads of bytes that nobody has written since the block, or the thread, began.

    Memory that a launch was given is not looked at: who gave it knows what is in it.
    """

    def begin(self, launch: Launch) -> None:
        """A launch starts."""
        self._launch = launch
        self._written: dict[Memory, bytearray] = {}

    def allocate(self, memory: Memory, place: Place) -> None:
        """Nothing is written yet."""
        self._written[memory] = bytearray(memory.size)

    def block_end(self, block: int) -> None:
        """Arrays of other blocks are kept only while those stand at a barrier of the grid."""
        self._written = {m: w for m, w in self._written.items() if m.space == "shared"}

    def access(
        self, site: Site, kind: Kind, array: View, index: Any, offset: int, place: Place, value: Any
    ) -> None:
        """A store writes; what others read must be written."""
        written = self._written.get(array.memory)
        if written is None:
            return
        end = offset + array.itemsize
        if kind == "store":
            written[offset:end] = b"\1" * array.itemsize
        elif 0 in written[offset:end]:
            self._refuse(site, kind, array, index, place)

    def _refuse(self, site: Site, kind: Kind, array: View, index: Any, place: Place) -> None:
        does = "loads" if kind == "load" else "updates"
        first = "store to it first"
        if array.space == "shared":
            first += ", and put a cuda.syncthreads() between"
        raise KernelFault(
            "uninitialised read", self._launch, site,
            f"{self._launch.who(place)} {does} {array.space} array {array.name}[{plain(index)}], "
            "to which nothing was stored", first, [place], array=array.name, index=index,
        )  # fmt: skip

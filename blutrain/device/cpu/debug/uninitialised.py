"""Shared and local memory that is read before anything was written to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blutrain.device.cpu.interpret.events import Kind, Launch, Observer, Place, Site
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.view import Memory, View, plain


class Uninitialised(Observer):
    """Finds reads of bytes that nobody has written since the block, or the thread, began.

    Memory that a launch was given is not looked at: who gave it knows what is in it.

    If another thread writes a shared cell before the next barrier, then it is a race, which depends
    on no order. So a read of shared memory is judged at the barrier.
    """

    spaces = ("shared", "local")

    def begin(self, launch: Launch) -> None:
        """A launch starts."""
        self._launch = launch
        self._written: dict[Memory, bytearray] = {}
        self._found: dict[int, KernelFault] = {}

    def allocate(self, memory: Memory, place: Place) -> None:
        """Nothing is written yet."""
        self._written[memory] = bytearray(memory.size)

    def barrier(self, what: str, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """Whoever was to write has written."""
        self._judge(places[0].block)

    def block_end(self, block: int) -> None:
        """A thread's arrays are gone; shared ones of other blocks may stand at a grid's barrier."""
        self._judge(block)
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
            fault = self._fault(site, kind, array, index, place)
            if array.space == "local":
                raise fault
            self._found.setdefault(place.block, fault)
            if kind == "atomic":
                written[offset:end] = b"\1" * array.itemsize

    def _judge(self, block: int) -> None:
        if block in self._found:
            raise self._found.pop(block)

    def _fault(self, site: Site, kind: Kind, array: View, index: Any, place: Place) -> KernelFault:
        does = "loads" if kind == "load" else "updates"
        first = "store to it first"
        if array.space == "shared":
            first += ", and put a cuda.syncthreads() between"
        return KernelFault(
            "uninitialised read", self._launch, site,
            f"{self._launch.who(place)} {does} {array.space} array {array.name}[{plain(index)}], "
            "to which nothing was stored", first, [place], array=array.name, index=index,
        )  # fmt: skip

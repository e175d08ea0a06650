"""Races: two threads, one cell, one of them writes, and nothing says who comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blutrain.device.cpu.debug.order import Access, Order
from blutrain.device.cpu.interpret.events import Kind, Launch, Observer, Place, Site
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.machine import WARP
from blutrain.device.cpu.interpret.rewrite import GRID_SYNC
from blutrain.device.cpu.interpret.view import View, plain

# Accesses of one kind that are remembered of a cell: the first and the latest.
_KEPT = 4
_WORD = 4
_DOES = {"load": "loads", "store": "stores to", "atomic": "atomically updates"}


class _Cell:
    """What was done to a cell: reads and writes that may still race."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: list[Access] = []
        self.writes: list[Access] = []


class Races(Observer):
    """Finds races in shared and in global memory, within blocks and between them.

    Two stores of the same value are none: one of them is what a later reader sees. Atomics do not
    race among each other; with a plain access they do.
    """

    spaces = ("global", "shared")

    def begin(self, launch: Launch) -> None:
        """A launch starts."""
        self._launch = launch
        self._order = Order()
        self._cells: dict[tuple[str, int], _Cell] = {}

    def barrier(self, what: str, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """All before it happens before all after it."""
        if what == GRID_SYNC:
            self.begin(self._launch)
        else:
            self._order.pass_barrier(places)

    def warp(self, what: str, mask: int, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """Of all the ways in which lanes meet, `syncwarp` alone orders memory."""
        if what == "syncwarp":
            self._order.pass_warp_barrier(places)

    def fence(self, site: Site, place: Place) -> None:
        """What the thread stored before may be published."""
        self._order.pass_fence(place)

    def block_end(self, block: int) -> None:
        """Nobody sees the block's shared memory any more."""
        space = f"shared {block}"
        self._cells = {key: cell for key, cell in self._cells.items() if key[0] != space}

    def access(
        self, site: Site, kind: Kind, array: View, index: Any, offset: int, place: Place, value: Any
    ) -> None:
        """Compare with what others did to the cell."""
        space = "global" if array.space == "global" else f"shared {place.block}"
        address = array.memory.address + offset
        order = self._order
        now = Access(
            place, order.epoch[place.block], order.clock[place], kind, site, value, array.name,
            index,
        )  # fmt: skip
        # Elements of several words race in any of them; smaller ones lie in words of their own.
        for word in range(address, address + array.itemsize, _WORD):
            self._touch((space, word), now, array)
        if kind == "atomic":
            order.synchronise((space, address), place)
        elif kind == "store" and space == "global":
            order.store(place)

    def _touch(self, key: tuple[str, int], now: Access, array: View) -> None:
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
        before, place = self._order.before, now.place
        for then in cell.writes:
            if then.place != place and _conflict(then, now) and not before(then, place):
                self._refuse(then, now, array)
        if now.kind == "load":
            _keep(cell.reads, now)
            return
        for then in cell.reads:
            if then.place != place and not before(then, place):
                self._refuse(then, now, array)
        _keep(cell.writes, now)

    def _refuse(self, then: Access, now: Access, array: View) -> None:
        who, launch = self._launch.who, self._launch
        element = f"{array.space} array {now.array}[{plain(now.index)}]"
        did = f"{who(then.place)} {_DOES[then.kind]} it"
        as_else = f" as {then.array}[{plain(then.index)}]" if then.array != now.array else ""
        raise KernelFault(
            "race", launch, now.site,
            f"{who(now.place)} {_DOES[now.kind]} {element}, and {did}{as_else} "
            f"in {then.site}, with nothing that orders them",
            _advice(then, now), [now.place, then.place], [now.site, then.site],
            array=now.array, index=now.index,
        )  # fmt: skip


def _conflict(then: Access, now: Access) -> bool:
    """Whether an access conflicts with an earlier write."""
    if now.kind == "load":
        return True
    if then.kind == "atomic" and now.kind == "atomic":
        return False
    if then.kind == "store" and now.kind == "store":
        return not _same(then.value, now.value)
    return True


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or (a != a and b != b)


def _keep(accesses: list[Access], now: Access) -> None:
    """Remember an access; an older one of the same block that it follows says no more than it."""
    place, epoch, kind = now.place, now.epoch, now.kind
    accesses[:] = [
        a for a in accesses
        if not (a.place == place and a.kind == kind)
        and not (a.place.block == place.block and a.epoch < epoch)
    ]  # fmt: skip
    accesses.append(now)
    if len(accesses) > _KEPT:
        del accesses[1]


def _advice(then: Access, now: Access) -> str:
    atomic = "atomic" in (then.kind, now.kind)
    if then.place.block != now.place.block:
        if atomic:
            return "make both accesses atomic, or use two launches"
        return (
            "blocks have no order: use cuda.atomic or two launches, or publish what is stored by "
            "a cuda.threadfence() before an atomic"
        )
    if then.place.thread // WARP == now.place.thread // WARP:
        return "put a cuda.syncwarp() between them; lanes of a warp do not run in lockstep"
    return "put a cuda.syncthreads() between them"

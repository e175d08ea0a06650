"""Notes what the threads of a block do, and counts what it costs their warps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from blutrain.device.cpu.explain import counting
from blutrain.device.cpu.explain.costs import (
    Atomics,
    Branches,
    Cost,
    Figures,
    GlobalTraffic,
    SharedTraffic,
)
from blutrain.device.cpu.explain.loops import Loop, Span, Turns, around
from blutrain.device.cpu.explain.warps import Instructions, group
from blutrain.device.cpu.interpret import Site

Kind = Literal["load", "store", "atomic", "branch", "barrier"]
Space = Literal["global", "shared", ""]


class _Key(NamedTuple):
    """What is put together into instructions: the same thing, done at the same place."""

    site: Site
    kind: Kind
    space: Space
    size: int


class _Executions:
    """Of one place: each time the thread, what it brought, and its moment."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.values: list[int] = []
        self.moments: list[int] = []


class Recorder:
    """What the threads of one block did.

    Args:
        kernel: the lines of the kernel's function.

    Example:
        >>> recorder, site = Recorder(), Site("kernels.py", 3, 0, "x[i]")
        >>> for thread in range(32):
        ...     recorder.access(site, "load", "global", thread, 4 * thread, 4)
        >>> [(site.line, cost.global_loads.sectors) for site, cost in recorder.costs()]
        [(3, 4)]
    """

    def __init__(self, kernel: Span | None = None) -> None:
        self._done: defaultdict[_Key, _Executions] = defaultdict(_Executions)
        self._turns: defaultdict[int, Turns] = defaultdict(lambda: Turns(kernel))
        # Moments by number, so that they can be compared by the thousand.
        self._moments: dict[tuple[tuple[Loop, int], ...], int] = {}

    def access(
        self, site: Site, kind: Kind, space: Space, thread: int, address: int, size: int
    ) -> None:
        """A thread loads, stores or updates `size` bytes."""
        self._note(_Key(site, kind, space, size), thread, address)

    def branch(self, site: Site, thread: int, taken: bool) -> None:
        """A thread decides."""
        self._note(_Key(site, "branch", "", 0), thread, int(taken))
        self._turns[thread].decide(around(site.file, site.line), taken)

    def barrier(self, site: Site, thread: int) -> None:
        """A thread comes to a barrier."""
        self._note(_Key(site, "barrier", "", 0), thread, 0)

    def _note(self, key: _Key, thread: int, value: int) -> None:
        turns = self._turns[thread]
        turns.come_to(around(key.site.file, key.site.line))
        done = self._done[key]
        done.threads.append(thread)
        done.values.append(value)
        done.moments.append(self._moments.setdefault(turns.moment, len(self._moments)))

    def costs(self) -> Iterator[tuple[Site, Cost]]:
        """The cost at each place."""
        for key, done in self._done.items():
            yield key.site, _cost(key, group(done.threads, done.values, done.moments))


def _cost(key: _Key, done: Instructions) -> Cost:
    """What the instructions of one place cost."""
    n, lanes = len(done.active), int(done.active.sum())
    if key.kind == "barrier":
        return Cost(barriers=n)
    if key.kind == "branch":
        taking = np.where(done.active, done.values, 0).sum(1)
        divergent = int(((taking > 0) & (taking < done.active.sum(1))).sum())
        return Cost(branches=Branches(n, divergent, lanes))
    if key.kind == "atomic":
        turns = int(counting.turns(done.values, done.active).sum())
        return _alone(f"{key.space}_atomics", Atomics(n, lanes, turns))
    name = f"{key.space}_{key.kind}s"
    asked = lanes * key.size
    if key.space == "shared":
        took = int(counting.wavefronts(done.values, done.active, key.size).sum())
        least = int(counting.least_wavefronts(done.active, key.size).sum())
        return _alone(name, SharedTraffic(n, asked, took, least))
    moved = int(counting.sectors(done.values, done.active, key.size).sum())
    least = int(counting.least_sectors(done.active, key.size).sum())
    return _alone(name, GlobalTraffic(n, asked, moved, least))


def _alone(name: str, figures: Figures) -> Cost:
    """A cost of nothing else."""
    only: dict[str, Any] = {name: figures}
    return Cost(**only)

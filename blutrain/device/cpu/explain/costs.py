"""What was counted, by line and in total: figures that add up and scale.

Every figure is a sum over warp-wide instructions ("requests"): what the 32 threads of a warp ask
for at one time, of which the hardware makes one access.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from blutrain.device.cpu.explain.counting import SECTOR_BYTES


class Figures:
    """Figures that are added field by field, and multiplied."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(a + b for a, b in zip(self._fields(), other._fields(), strict=True)))

    def __mul__(self, factor: float) -> Self:
        return type(self)(*(value * factor for value in self._fields()))

    def __bool__(self) -> bool:
        return any(self._fields())

    def _fields(self) -> tuple[float, ...]:
        return tuple(vars(self).values())


@dataclass(frozen=True)
class GlobalTraffic(Figures):
    """Loads from, or stores to, global memory.

    Attributes:
        requests: warp-wide instructions.
        bytes_asked: bytes that the threads read or wrote.
        sectors: pieces of 32 bytes that were moved for them.
        least_sectors: as many as would do for so many bytes beside each other.

    Example:
        >>> column = GlobalTraffic(requests=1, bytes_asked=128, sectors=32, least_sectors=4)
        >>> column.bytes_moved, column.efficiency
        (1024, 0.125)
    """

    requests: float = 0
    bytes_asked: float = 0
    sectors: float = 0
    least_sectors: float = 0

    @property
    def bytes_moved(self) -> float:
        """Bytes of the sectors."""
        return SECTOR_BYTES * self.sectors

    @property
    def efficiency(self) -> float:
        """Bytes asked over bytes moved: above 1 where lanes share, 1 where nothing was moved."""
        return self.bytes_asked / self.bytes_moved if self.sectors else 1.0


@dataclass(frozen=True)
class SharedTraffic(Figures):
    """Loads from, or stores to, shared memory.

    Attributes:
        requests: warp-wide instructions.
        bytes_asked: bytes that the threads read or wrote.
        wavefronts: turns that the banks took.
        least_wavefronts: turns without conflicts.

    Example:
        >>> SharedTraffic(requests=1, bytes_asked=128, wavefronts=32, least_wavefronts=1).conflicts
        31
    """

    requests: float = 0
    bytes_asked: float = 0
    wavefronts: float = 0
    least_wavefronts: float = 0

    @property
    def conflicts(self) -> float:
        """Turns that conflicts added."""
        return self.wavefronts - self.least_wavefronts

    @property
    def ways(self) -> float:
        """Turns for each that would do: 1 without conflicts, 32 at worst."""
        return self.wavefronts / self.least_wavefronts if self.least_wavefronts else 1.0


@dataclass(frozen=True)
class Atomics(Figures):
    """Atomic operations on global or shared memory.

    Attributes:
        requests: warp-wide instructions.
        lanes: operations of single threads.
        turns: for each request the most lanes that met at one address, summed.

    Example:
        >>> Atomics(requests=1, lanes=32, turns=32).contention
        32.0
    """

    requests: float = 0
    lanes: float = 0
    turns: float = 0

    @property
    def contention(self) -> float:
        """Lanes of a warp that meet at one address, on average: 1 is none, 32 the worst."""
        return self.turns / self.requests if self.requests else 1.0


@dataclass(frozen=True)
class Branches(Figures):
    """Decisions as written: `if`, `while`, `for`. A compiler may unroll or predicate them.

    Attributes:
        executed: times that a warp came to one.
        divergent: times that its lanes disagreed, so that the warp walked both ways.
        lanes: lanes that came to one, summed over the executed.

    Example:
        >>> Branches(executed=2, divergent=1, lanes=48).active
        24.0
    """

    executed: float = 0
    divergent: float = 0
    lanes: float = 0

    @property
    def active(self) -> float:
        """Lanes of 32 that were active, on average."""
        return self.lanes / self.executed if self.executed else 32.0


@dataclass(frozen=True)
class Cost:
    """All that was counted of one line, of a block or of a grid.

    Attributes:
        global_loads, global_stores: traffic with global memory.
        shared_loads, shared_stores: traffic with shared memory.
        global_atomics, shared_atomics: atomic operations.
        branches: decisions.
        barriers: times that a warp came to a barrier.
    """

    global_loads: GlobalTraffic = field(default_factory=GlobalTraffic)
    global_stores: GlobalTraffic = field(default_factory=GlobalTraffic)
    shared_loads: SharedTraffic = field(default_factory=SharedTraffic)
    shared_stores: SharedTraffic = field(default_factory=SharedTraffic)
    global_atomics: Atomics = field(default_factory=Atomics)
    shared_atomics: Atomics = field(default_factory=Atomics)
    branches: Branches = field(default_factory=Branches)
    barriers: float = 0

    def __add__(self, other: Cost) -> Cost:
        mine, others = vars(self), vars(other)
        return Cost(**{name: mine[name] + others[name] for name in mine})

    def __mul__(self, factor: float) -> Cost:
        return Cost(**{name: value * factor for name, value in vars(self).items()})

    def __bool__(self) -> bool:
        return any(vars(self).values())


@dataclass(frozen=True)
class Line:
    """One line of the source and its cost.

    Attributes:
        file: where it is.
        number: its number there.
        text: the line, without the indentation that all lines share.
        cost: what was counted for one block.
    """

    file: str
    number: int
    text: str
    cost: Cost

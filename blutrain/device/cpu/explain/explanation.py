"""The result of `bt.explain`: figures to compute with, and a text to read."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blutrain.device.cpu.explain import report
from blutrain.device.cpu.explain.costs import Cost, Line
from blutrain.device.cpu.explain.occupancy import Occupancy

if TYPE_CHECKING:
    from blutrain.device.cuda.ptxas import Assembled

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a kernel costs; shown by source line.

    Attributes:
        kernel: its name.
        grid, block: as launched.
        blocks: those that were executed.
        lines: the kernel's source, each line with its cost for one block: the mean of the executed.
        dynamic_shared: bytes of dynamic shared memory a block.
        resources: registers, spills and static shared memory, as the assembler reports them; None
            where they could not be found.
        occupancy: blocks that a multiprocessor holds, with those resources.
        without_resources: why there are none.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    blocks: Sequence[Dim3]
    lines: Sequence[Line]
    dynamic_shared: int = 0
    resources: Assembled | None = None
    occupancy: Occupancy | None = None
    without_resources: str = ""

    @property
    def n_blocks(self) -> int:
        """Blocks of the grid."""
        x, y, z = self.grid
        return x * y * z

    @functools.cached_property
    def total(self) -> Cost:
        """The cost of one block: the mean of those that were executed."""
        return sum((line.cost for line in self.lines), Cost())

    @functools.cached_property
    def grid_total(self) -> Cost:
        """The cost of the whole grid, if its other blocks are like those that were executed."""
        return self.total * self.n_blocks

    def line(self, text: str) -> Line:
        """The first line whose source contains a text.

        Raises:
            KeyError: there is none.
        """
        for line in self.lines:
            if text in line.text:
                return line
        raise KeyError(f"no line of {self.kernel} contains {text!r}")

    def __repr__(self) -> str:
        executed = ", ".join(map(str, self.blocks[:3])) + (" ..." if len(self.blocks) > 3 else "")
        parts = [
            f"{self.kernel}: grid {self.grid}, block {self.block}",
            f"executed: block {executed} of {self.n_blocks}; the figures are for one block",
            "",
            *report.source(self.lines),
            "",
            "one block:",
            *("    " + line for line in report.figures(self.total)),
            f"grid of {self.n_blocks} blocks:",
            *("    " + line for line in report.figures(self.grid_total)),
        ]
        if self.resources and self.occupancy:
            parts += report.resources(self.resources, self.occupancy, self.dynamic_shared)
        else:
            parts.append(f"registers and occupancy are not known: {self.without_resources}")
        return "\n".join(parts)

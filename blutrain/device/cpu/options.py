"""How a kernel is compiled: as it should be, or so that its mistakes show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How a kernel is compiled.

    Attributes:
        reverse: run the threads of a block from the last to the first.
        shuffle: unless 0, run the threads of a block in an order drawn from this seed.
        poison: fill shared and carried float arrays with NaN before each block.
        check_barriers: raise when only some threads of a block reach a barrier.
        check_bounds: raise when an index is out of bounds; names array, block and thread.
        reassociate: let LLVM reorder floating-point sums (as `fastmath` does).
    """

    reverse: bool = False
    poison: bool = False
    check_barriers: bool = False
    check_bounds: bool = False
    reassociate: bool = False
    shuffle: int = 0

    @property
    def in_order(self) -> bool:
        """Whether the threads of a block run from the first to the last."""
        return not self.reverse and not self.shuffle

"""Guards of whole regions become the ends of their loops.

`for t in range(256): if base + t < n: ...` is `for t in range(min(256, n - base)): ...`: a loop
without a branch, which LLVM turns into plain vector instructions.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blutrain.device.cpu.program import Program


@dataclass(frozen=True)
class Bound:
    """Only threads whose `place` is below `limit` have anything to do."""

    place: str
    limit: str


def clip(
    body: Sequence[ast.stmt], values: Mapping[str, ast.expr], program: Program, keeps: bool
) -> tuple[list[ast.stmt], Bound | None]:
    """Take a guard off a region when the loop over its threads can end there instead."""
    return list(body), None

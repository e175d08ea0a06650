"""Which variables have the same value in all threads of a block.

A construct in which threads meet and whose test is uniform stays as it is, once for the block;
any other becomes a loop over all threads with a mask. So uniform is what keeps kernels fast, and
taking a varying value for uniform would be a wrong result: every doubtful case counts as varying.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from numba import types

from blutrain.device.cpu.program import WARP, Program
from blutrain.device.cpu.syntax import (  # fmt: skip
    THREAD_NAMES,
    called,
    loads_memory,
    meets,
    name_counts,
    stores_memory,
    walk,
    writes,
)
from blutrain.device.cpu.vocabulary import BLOCK_VOTES, WARP_VOTES

_PURE = frozenset({"min", "max", "abs", "int", "float", "bool", "len", "round", "range", "type"})

# Their functions compute from their operands and touch no memory (`array_at` makes a window on it).
_PURE_MODULES = ("blutrain.device.cpu", "blutrain.device.pointer")


def is_pure(call: ast.Call, program: Program) -> bool:
    """Whether a call depends on its operands alone: a cast, `min`, a function of `math`."""
    function = call.func
    if isinstance(function, ast.Call):  # type(x)(0)
        return called(function) == "type"
    if not isinstance(function, ast.Name):
        return False
    if function.id in _PURE:
        return True
    if function.id.startswith(("_atomic_", "__")):
        return False
    value: Any = program.objects.get(function.id)
    if isinstance(value, types.Type | type):
        return True
    module = getattr(value, "__module__", "") or ""
    return module in ("math", "numpy") or module.startswith(_PURE_MODULES)


def stored_arrays(body: Sequence[ast.stmt]) -> set[str]:
    """Names of arrays that the statements write, through a subscript or a call of any kind."""
    stored = set()
    for n in walk(body):
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store):
            stored |= {m.id for m in walk(n.value) if isinstance(m, ast.Name)}
        elif isinstance(n, ast.Call):
            stored |= {a.id for a in n.args if isinstance(a, ast.Name)}
        elif isinstance(n, ast.Assign) and isinstance(n.value, ast.Name):
            stored.add(n.value.id)  # a second name for an array
    return stored


class Uniformity:
    """The analysis of one kernel.

    Attributes:
        varying: variables that may differ between the threads of a block.
        counts: how often each name occurs.
        assigned: names that are assigned anywhere.
    """

    def __init__(
        self, body: Sequence[ast.stmt], parameters: Sequence[str], program: Program
    ) -> None:
        self.program = program
        # All threads read such an element between the same two barriers, so under another name
        # no thread may write it there: that would be a race on any device.
        self.read_only = set(parameters) - stored_arrays(body)
        self.varying: set[str] = set()
        self.counts = name_counts(body)
        self.assigned = writes(body)
        before = -1
        while before != len(self.varying):
            before = len(self.varying)
            self._visit(body, None)

    def of_expression(self, node: ast.AST) -> bool:
        """Whether an expression is uniform."""
        for n in walk(node):
            if isinstance(n, ast.Name):
                memory = n.id in self.program.shared or n.id in self.program.local
                if n.id in THREAD_NAMES or n.id in self.varying or memory:
                    return False
            elif isinstance(n, ast.Subscript):
                fixed = isinstance(n.value, ast.Attribute) and n.value.attr in ("shape", "strides")
                base = n.value
                if not fixed and not (isinstance(base, ast.Name) and base.id in self.read_only):
                    return False
            elif isinstance(n, ast.Call) and not is_pure(n, self.program):
                return False
        return True

    def of_statement(self, s: ast.stmt) -> bool:
        """Whether a statement computes uniform values and does nothing else."""
        if isinstance(s, ast.Assign):
            plain = all(isinstance(t, ast.Name | ast.Tuple) for t in s.targets)
            return plain and not stores_memory(s) and self.of_expression(s.value)
        if isinstance(s, ast.AugAssign):
            return isinstance(s.target, ast.Name) and self.of_expression(s.value)
        if isinstance(s, ast.If):
            return self.of_expression(s.test) and all(map(self.of_statement, s.body + s.orelse))
        return isinstance(s, ast.Pass)

    def of_construct(self, s: ast.stmt) -> bool:
        """Whether all threads of a block take the same way through an if or a loop."""
        if isinstance(s, ast.For):
            return self.of_expression(s.iter) and not writes(s.target) & self.varying
        assert isinstance(s, ast.If | ast.While)
        return self.of_expression(s.test)

    def _visit(self, body: Sequence[ast.stmt], inside: dict[str, int] | None) -> None:
        """Find varying variables.

        Args:
            body: statements.
            inside: how often each name occurs within the innermost masked construct around them;
                None outside of any. A variable that lives only inside may be uniform relative to
                it: the threads that are masked off never look at it.
        """

        def confined(found: set[str]) -> bool:
            return inside is None or all(inside.get(v) == self.counts[v] for v in found)

        def safe(s: ast.stmt) -> bool:
            # A mask may be what keeps an index within its array.
            return inside is None or not loads_memory(s)

        for s in body:
            written = writes(s)
            if not meets(s):
                fine = self.of_statement(s) and not written & self.varying and confined(written)
                fine = fine and safe(s)
                if not fine:
                    self.varying |= written
            elif isinstance(s, ast.If):
                uniform = self.of_expression(s.test)
                for branch in (s.body, s.orelse):
                    self._visit(branch, inside if uniform else name_counts(branch))
            elif isinstance(s, ast.For):
                target = writes(s.target)
                if not (self.of_expression(s.iter) and confined(target)):
                    self.varying |= target
                masked = not self.of_construct(s)
                self._visit(s.body, name_counts(s.body) if masked else inside)
            elif isinstance(s, ast.While):
                uniform = self.of_expression(s.test)
                self._visit(s.body, inside if uniform else name_counts(s.body))
            elif isinstance(s, ast.Assign) and not self._is_block_vote(s, inside):
                self.varying |= written

    def _is_block_vote(self, s: ast.Assign, inside: dict[str, int] | None) -> bool:
        kind = s.value.args[0].value if isinstance(s.value, ast.Call) else ""  # type: ignore[attr-defined]
        vote = kind in BLOCK_VOTES or (kind in WARP_VOTES and self.program.n_threads == WARP)
        return inside is None and vote

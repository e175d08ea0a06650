"""Split a loop around another loop, so that what comes first in it can be vectorised.

    for j in range(32):                 # a thread's own loop
        p = exp(s[j] - top)             # one exponential a turn: LLVM vectorises inner loops only
        total += p
        for d in range(64):
            acc[d] += p * v[j, d]

becomes two loops. The first is an inner loop now, the second takes up what it left behind:

    for j in range(32):
        p = exp(s[j] - top)
        total += p
        p__j[j] = p
    for j in range(32):
        p = p__j[j]
        for d in range(64):
            acc[d] += p * v[j, d]

Every operation stays, in its order, so results are the same bits. It is done where it pays (there
is a function of `math` in the first part) and where neither part can tell: see `_independent`.

Source: Kennedy and Allen, "Optimizing Compilers for Modern Architectures", 2001, sections 5.3
(scalar expansion) and 6.2 (loop distribution).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from blutrain.device.cpu.program import Program
from blutrain.device.cpu.syntax import (  # fmt: skip
    assign,
    called,
    clone,
    has,
    leaves_loop,
    name,
    names,
    reads,
    walk,
    writes,
)
from blutrain.device.cpu.uniformity import is_pure

# Values kept from the first loop to the second are on the stack.
_MOST_TURNS = 1024
_CHEAP = frozenset({"range", "_unsigned", "_minimum", "_maximum"})


class Distribution:
    """Splits the loops of one kernel.

    Args:
        parameters: names of the kernel's parameters.
        program: the compilation; arrays that it declares have no other name than theirs.

    Attributes:
        cells: arrays that the split loops use, with how many elements each has.
    """

    def __init__(self, parameters: Collection[str], program: Program) -> None:
        self.parameters, self.program = parameters, program
        self.cells: dict[str, int] = {}
        self.declared = {
            array + suffix
            for arrays in (program.local, program.shared)
            for array, memory in arrays.items()
            if memory.shape != (0,)
            for suffix in ("", "__t")
        }

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements, with the loops in them split."""
        out: list[ast.stmt] = []
        for s in body:
            if isinstance(s, ast.For | ast.While | ast.If):
                s.body, s.orelse = self.statements(s.body), self.statements(s.orelse)
            out += self._split(s) if isinstance(s, ast.For) else [s]
        return out

    def _split(self, s: ast.For) -> list[ast.stmt]:
        turns = _constant_turns(s)
        first, last = s.body[:-1], s.body[-1]
        if not turns or not first or not isinstance(last, ast.For):
            return [s]
        if not self._is_worth_it(first) or not self._independent(s, first, last):
            return [s]
        assert isinstance(s.target, ast.Name)
        j = s.target.id
        leave: list[ast.stmt] = []
        take: list[ast.stmt] = []
        for v in sorted(writes(first) & reads(last)):
            cell = self.program.fresh(f"{v}__{j}")
            self.cells[cell] = turns
            place = ast.Subscript(name(cell), name(j), ast.Load())
            leave.append(ast.Assign([ast.Subscript(name(cell), name(j), ast.Store())], name(v)))
            take.append(assign(v, place))
        ahead = ast.For(s.target, s.iter, [*first, *leave], [], lineno=0)
        behind = ast.For(clone(s.target), clone(s.iter), [*take, last], [], lineno=0)
        return [ahead, behind]

    def _is_worth_it(self, first: Sequence[ast.stmt]) -> bool:
        """Whether statements compute a function whose formula is long."""
        calls = {called(n) for n in walk(first) if isinstance(n, ast.Call)} - _CHEAP
        modules = {getattr(self.program.objects.get(f), "__module__", "") for f in calls}
        return "blutrain.device.cpu.math" in modules

    def _independent(self, s: ast.For, first: Sequence[ast.stmt], last: ast.For) -> bool:
        """Whether all turns of the first part may come before all turns of the second.

        Neither part may write what the other uses, but for variables that the first part gives to
        the second. Names tell arrays apart: one that the kernel declares is no parameter's memory.
        """
        simple = (ast.Assign, ast.AugAssign)
        if not all(isinstance(t, simple) for t in first) or has(s, (ast.Raise, ast.Assert)):
            return False
        if leaves_loop(last) or any(leaves_loop(t) for t in s.body):
            return False
        calls = [n for n in walk(s) if isinstance(n, ast.Call)]
        if not all(called(c) in _CHEAP or is_pure(c, self.program) for c in calls):
            return False
        arrays = {_base(n) for n in walk(s) if isinstance(n, ast.Subscript)} - {None}
        if not all(a in self.declared or a in self.parameters for a in arrays):
            return False
        if any(isinstance(a, ast.Name) and a.id in arrays for c in calls for a in c.args):
            return False
        stored_first, stored_last = _stored(first), _stored([last])
        if not (stored_first | stored_last) <= self.declared:
            return False
        assert isinstance(s.target, ast.Name)
        if s.target.id in writes(s.body):
            return False
        clash = (stored_last | writes(last)) & names(first) or stored_first & names(last)
        return not clash


def _constant_turns(s: ast.For) -> int:
    """The turns of a loop that counts up from 0 to a small constant; 0 for another."""
    if called(s.iter) != "range" or not isinstance(s.target, ast.Name):
        return 0
    assert isinstance(s.iter, ast.Call)
    stop = s.iter.args[0]
    if len(s.iter.args) != 1 or not isinstance(stop, ast.Constant) or type(stop.value) is not int:
        return 0
    return stop.value if 0 < stop.value <= _MOST_TURNS else 0


def _base(node: ast.Subscript) -> str | None:
    """The array that is indexed; None for an extent in a shape, "" for what has no name."""
    if isinstance(node.value, ast.Attribute):
        return None
    return node.value.id if isinstance(node.value, ast.Name) else ""


def _stored(body: Sequence[ast.stmt]) -> set[str]:
    """Arrays that are written."""
    return {
        _base(n) or ""
        for n in walk(body)
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)
    }

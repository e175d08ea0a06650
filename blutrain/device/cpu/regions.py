"""Cut a kernel into regions: stretches of statements in which threads do not meet.

Within a region, the threads of a block may run one after another; so a kernel becomes a tree of
regions (each a loop over the threads), of statements that run once for the block, and of the
control flow around them. Where control flow differs between threads and they meet inside, every
thread goes through it under a mask.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from blutrain.device.cpu import shuffles, strips
from blutrain.device.cpu.program import WARP, Program
from blutrain.device.cpu.syntax import (
    GRID,
    assign,
    call,
    conjunction,
    expression,
    loads_memory,
    meets,
    name,
    names,
    negation,
    statement,
    stores_memory,
    substitute,
    writes,
)  # fmt: skip
from blutrain.device.cpu.tree import (
    Check,
    GridBarrier,
    MaskedLoop,
    Node,
    Once,
    Region,
    UniformIf,
    UniformLoop,
    Vote,
)  # fmt: skip
from blutrain.device.cpu.uniformity import Uniformity
from blutrain.device.cpu.vocabulary import BLOCK_VOTES, INSTRUCTION, MATCH, WARP_VOTES


@dataclass
class _Sequence:
    """Nodes being collected, and statements not yet in one."""

    path: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)
    threads: list[ast.stmt] = field(default_factory=list)
    block: list[ast.stmt] = field(default_factory=list)

    def close(self) -> None:
        """Finish the region at the end, with the block's statements before it."""
        if self.block:
            self.nodes.append(Once(self.block))
            self.block = []
        if self.threads:
            self.nodes.append(Region(self.threads, self.path))
            self.threads = []

    def add(self, s: ast.stmt, mask: str | None) -> None:
        """Append a statement for each thread in whom the mask is set."""
        if mask is None:
            self.threads.append(s)
            return
        last = self.threads[-1] if self.threads else None
        same = isinstance(last, ast.If) and isinstance(last.test, ast.Name) and not last.orelse
        if same and last.test.id == mask:  # type: ignore[union-attr]
            last.body.append(s)  # type: ignore[union-attr]
        else:
            self.threads.append(ast.If(name(mask), [s], []))


class Builder:
    """Makes the tree of one kernel.

    Attributes:
        tree: the result.
        exchanged: variables that other threads read, which must live in an array.
        definitions: the value of every variable that is assigned in one place.
        bases: variables of the loops over strips, which are integers.
    """

    def __init__(
        self, body: Sequence[ast.stmt], uniform: Uniformity, program: Program, check: bool
    ) -> None:
        self.uniform, self.program, self.check = uniform, program, check
        self.exchanged: set[str] = set()
        self.definitions = strips.definitions(body)
        self.bases: set[str] = set()
        self.tree = self._sequence(body, None, ())

    def _sequence(
        self, body: Sequence[ast.stmt], mask: str | None, path: tuple[int, ...]
    ) -> list[Node]:
        out = _Sequence(path)
        for s in body:
            self._statement(s, mask, out)
        out.close()
        return out.nodes

    def _statement(self, s: ast.stmt, mask: str | None, out: _Sequence) -> None:
        if not meets(s):
            self._apart(s, mask, out)
        elif isinstance(s, ast.Expr):
            self._barrier(s, mask, out)
        elif isinstance(s, ast.Assign):
            self._collective(s, mask, out)
        elif isinstance(s, ast.If | ast.For | ast.While):
            if self.uniform.of_construct(s):
                self._uniform_construct(s, mask, out)
            elif isinstance(s, ast.If):
                self._masked_if(s, mask, out)
            else:
                self._masked_loop(s, mask, out)

    def _apart(self, s: ast.stmt, mask: str | None, out: _Sequence) -> None:
        """A statement in which threads do not meet."""
        written = writes(s)
        if written and not written & self.uniform.varying and self.uniform.of_statement(s):
            # It runs before the region that is being collected, so nothing there may depend on it.
            depends = any(written & names(t) for t in out.threads)
            if depends or (loads_memory(s) and stores_memory(out.threads)):
                out.close()
            out.block.append(s)
            return
        strip = strips.strip_of(s, self.definitions, self.uniform, self.program)
        if strip is None:
            out.add(s, mask)
            return
        # A loop with a stride over threads turns inside out: see strips.py.
        out.close()
        self.definitions[strip.index] = strip.place
        self.bases.add(strip.base)
        inner = _Sequence((*out.path, id(s)))
        inner.add(assign(strip.index, strip.place), None)
        inner.add(strip.guarded, mask)
        inner.close()
        out.nodes.append(UniformLoop(strip.head, inner.nodes))

    def _barrier(self, s: ast.Expr, mask: str | None, out: _Sequence) -> None:
        out.close()
        kind: str = s.value.args[0].value  # type: ignore[attr-defined]
        if mask and (self.check or kind == GRID):
            self.exchanged.add(mask)
        if self.check and mask:
            out.nodes.append(Check(mask, kind))
        if kind == GRID:
            out.nodes.append(GridBarrier(mask))

    def _uniform_construct(
        self, s: ast.If | ast.For | ast.While, mask: str | None, out: _Sequence
    ) -> None:
        out.close()
        inside = (*out.path, id(s))
        if isinstance(s, ast.If):
            then = self._sequence(s.body, mask, inside)
            otherwise = self._sequence(s.orelse, mask, (*out.path, -id(s)))
            out.nodes.append(UniformIf(s.test, then, otherwise))
            return
        head: ast.For | ast.While
        if isinstance(s, ast.For):
            head = ast.For(s.target, s.iter, [], [], lineno=0)
        else:
            head = ast.While(s.test, [], [])
        out.nodes.append(UniformLoop(head, self._sequence(s.body, mask, inside)))

    def _masked_if(self, s: ast.If, mask: str | None, out: _Sequence) -> None:
        outer = name(mask) if mask else None
        then = self.program.fresh("_mask")
        otherwise = self.program.fresh("_mask") if s.orelse else ""
        out.threads.append(assign(then, call("bool", conjunction(outer, s.test))))
        if s.orelse:
            out.threads.append(assign(otherwise, conjunction(outer, negation(name(then)))))
        for branch, m in ((s.body, then), (s.orelse, otherwise)):
            for t in branch:
                self._statement(t, m, out)

    def _masked_loop(self, s: ast.For | ast.While, mask: str | None, out: _Sequence) -> None:
        outer = name(mask) if mask else None
        m = self.program.fresh("_mask")
        self.exchanged.add(m)
        before: list[ast.stmt] = []
        after: list[ast.stmt] = []
        if isinstance(s, ast.While):
            test = s.test
        else:
            before, test, after = self._counted(s, mask, out)
        out.threads.append(assign(m, call("bool", conjunction(outer, test))))
        out.close()
        inner = _Sequence((*out.path, id(s)))
        for t in before:
            inner.add(t, m)
        for t in s.body:
            self._statement(t, m, inner)
        for t in after:
            inner.add(t, m)
        inner.threads.append(assign(m, call("bool", conjunction(name(m), test))))
        inner.close()
        out.nodes.append(MaskedLoop(m, inner.nodes))

    def _counted(
        self, s: ast.For, mask: str | None, out: _Sequence
    ) -> tuple[list[ast.stmt], ast.expr, list[ast.stmt]]:
        """A for loop over a range as a while loop: what comes first, test, what comes last."""
        assert isinstance(s.iter, ast.Call)
        arguments = s.iter.args
        start, stop, step = strips.range_arguments(arguments)
        i, end, by = (self.program.fresh(p) for p in ("_at", "_end", "_by"))
        for variable, value in ((i, start), (end, stop), (by, step)):
            out.add(assign(variable, value), mask)
        test = expression(f"({i} < {end} if {by} > 0 else {by} < 0 and {i} > {end})")
        if isinstance(step, ast.Constant):
            test = expression(f"{i} < {end}" if step.value > 0 else f"{i} > {end}")  # type: ignore[operator]
        take = ast.Assign([s.target], name(i), lineno=0)
        return [take], test, [statement(f"{i} += {by}")]

    def _collective(self, s: ast.Assign, mask: str | None, out: _Sequence) -> None:
        """A vote or a shuffle: every thread's operand goes to an array, then is read from it."""
        assert isinstance(s.value, ast.Call) and isinstance(s.targets[0], ast.Name)
        kind: str = s.value.args[0].value  # type: ignore[attr-defined]
        operands = s.value.args[1:]
        if kind == INSTRUCTION:
            self._instruction(s.targets[0].id, operands, mask, out)
            return
        target, x = s.targets[0].id, self.program.fresh("_x")
        self.exchanged.add(x)
        if kind in WARP_VOTES or kind in BLOCK_VOTES:
            if mask:
                absent = {**WARP_VOTES, **BLOCK_VOTES}[kind]
                out.threads.append(assign(x, ast.Constant(absent)))
            out.add(assign(x, call("bool", operands[0])), mask)
        else:
            out.add(assign(x, operands[0]), mask)
        out.close()
        if kind in BLOCK_VOTES or (kind in WARP_VOTES and self.program.n_threads == WARP):
            vote = self.program.fresh("_vote")
            out.nodes.append(Vote(vote, x, kind))
            result = assign(target, name(vote))
            if target in self.uniform.varying:
                out.add(result, mask)
            else:
                out.block.append(result)
            return
        if kind == MATCH:
            n = ast.Constant(self.program.n_threads)
            mine = expression(f"{x}__t[_t]")
            there: ast.expr = call("_match", name(x + "__t"), expression("_t >> 5"), mine, n)
        elif kind in WARP_VOTES:
            there = self._warp_vote(kind, x)
        elif isinstance(operands[1], ast.Constant):
            there = self._constant_shuffle(kind, x, operands[1], out)
        else:
            there = self._shuffle(kind, x, operands[1])
        out.add(assign(target, there), mask)

    def _instruction(
        self, target: str, operands: Sequence[ast.expr], mask: str | None, out: _Sequence
    ) -> None:
        """An instruction of a warp: every operand to an array, results from all of these."""
        function, *given = operands
        assert isinstance(function, ast.Name)
        cells = []
        for operand in given:
            x = self.program.fresh("_x")
            self.exchanged.add(x)
            out.add(assign(x, operand), mask)
            cells.append(name(x + "__t"))
        out.close()
        out.add(assign(target, call(function.id, *cells, name("_t"))), mask)

    def _constant_shuffle(self, kind: str, x: str, k: ast.Constant, out: _Sequence) -> ast.expr:
        """As `_shuffle`, by one permutation for all threads, between two regions."""
        n_warps = -(-self.program.n_threads // WARP)
        function = shuffles.permuted(kind, int(k.value), n_warps)  # type: ignore[arg-type]
        permute = self.program.name_of(function, f"_{kind}_{abs(int(k.value))}")  # type: ignore[arg-type]
        got = self.program.fresh("_got")
        out.nodes.append(Once([assign(got, call(permute, name(x + "__t")))]))
        return ast.Subscript(name(got), name("_t"), ast.Load())

    def _shuffle(self, kind: str, x: str, k: ast.expr) -> ast.expr:
        """The element of array `x__t` that a shuffle gives to a thread."""
        source = _SOURCE_LANE if self.program.n_threads == WARP else _SOURCE_THREAD
        thread = substitute(expression(source[kind]), {"_k": k})
        return ast.Subscript(name(x + "__t"), thread, ast.Load())

    def _warp_vote(self, kind: str, x: str) -> ast.expr:
        """The result of a vote over the warp's elements of array `x__t`."""
        n = self.program.n_threads
        ballot = call("_ballot", name(x + "__t"), expression("_t >> 5"), ast.Constant(n))
        if kind == "ballot_sync":
            return ballot
        if kind == "any_sync":
            return ast.Compare(ballot, [ast.NotEq()], [ast.Constant(0)])
        # The last warp may have fewer threads.
        some = f"(1 << ({n} - (_t & -32))) - 1"
        full = "0xFFFFFFFF" if n % WARP == 0 else f"(0xFFFFFFFF if (_t | 31) < {n} else {some})"
        return ast.Compare(ballot, [ast.Eq()], [expression(full)])


# The thread whose element a shuffle by _k gives to thread _t; and where a warp runs by itself.
_SOURCE_THREAD = {
    "shfl_sync": "(_t & -32) | (_k & 31)",
    "shfl_xor_sync": "(_t & -32) | ((_lane ^ _k) & 31)",
    "shfl_down_sync": "_t + _k if _lane + _k < 32 else _t",
    "shfl_up_sync": "_t - _k if _lane >= _k else _t",
}

_SOURCE_LANE = {
    "shfl_sync": "_k & 31",
    "shfl_xor_sync": "(_t ^ _k) & 31",
    "shfl_down_sync": "_t + _k if _t + _k < 32 else _t",
    "shfl_up_sync": "_t - _k if _t >= _k else _t",
}

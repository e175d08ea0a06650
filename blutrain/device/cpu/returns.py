"""Structured control flow: functions without early returns, loops without break and continue.

A region's loop over threads must not be left by one thread for all, so a `return` in the middle
becomes an if/else around what follows, and one inside a loop a flag that is tested after it. A
loop in which threads meet keeps running until every thread is done, so its break and continue
become flags and guards.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from blutrain.device.cpu.program import Program
from blutrain.device.cpu.source import Source
from blutrain.device.cpu.syntax import (
    LOOPS,
    assign,
    expression,
    has,
    leaves_loop,
    name,
    negation,
    walk,
)  # fmt: skip


def always_returns(body: Sequence[ast.stmt]) -> bool:
    """Whether every path through these statements ends in a return."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return always_returns(last.body) and always_returns(last.orelse)
    return isinstance(last, ast.Return)


def without_returns(
    body: Sequence[ast.stmt], result: str | None, source: Source, program: Program
) -> list[ast.stmt]:
    """Statements of the same effect that run off their end.

    Args:
        body: statements of a function.
        result: the variable for the returned value; None for a kernel.
        source: the function, for error messages.
        program: makes fresh names.
    """

    def again(rest: Sequence[ast.stmt]) -> list[ast.stmt]:
        return without_returns(rest, result, source, program)

    out: list[ast.stmt] = []
    for i, s in enumerate(body):
        rest = list(body[i + 1 :])
        if isinstance(s, ast.Return):
            return [*out, *_keep(s, result)]
        if isinstance(s, ast.If) and has(s, ast.Return) and not _returns_in_loop(s):
            if always_returns(s.body):
                return [*out, _choice(s, again(s.body), again(s.orelse + rest))]
            if always_returns(s.orelse):
                return [*out, _choice(s, again(s.body + rest), again(s.orelse))]
        if has(s, ast.Return):
            flag = program.fresh("_returned")
            flagged = _ReturnFlag(flag, result).visit(s)
            out.append(assign(flag, ast.Constant(False)))
            out += flagged if isinstance(flagged, list) else [flagged]
            return [*out, ast.If(negation(name(flag)), again(rest), [])] if rest else out
        out.append(s)
    return out


def _keep(s: ast.Return, result: str | None) -> list[ast.stmt]:
    if s.value is None or result is None:
        return []
    return [ast.copy_location(assign(result, s.value), s)]


def _choice(s: ast.If, then: list[ast.stmt], otherwise: list[ast.stmt]) -> ast.stmt:
    if not then and otherwise:
        return ast.copy_location(ast.If(inverse(s.test), otherwise, []), s)
    return ast.copy_location(ast.If(s.test, then or [ast.Pass()], otherwise), s)


def inverse(test: ast.expr) -> ast.expr:
    """`not test`; a guard `a >= b or c >= d` becomes `not (a >= b) and not (c >= d)`."""
    if isinstance(test, ast.BoolOp):
        other = ast.And() if isinstance(test.op, ast.Or) else ast.Or()
        return ast.BoolOp(other, [inverse(v) for v in test.values])
    return negation(test)


def _returns_in_loop(s: ast.stmt) -> bool:
    return any(isinstance(n, LOOPS) and has(n, ast.Return) for n in walk(s))


class _ReturnFlag(ast.NodeTransformer):
    """Turns returns inside loops into `flag = True; break`, and leaves each enclosing loop."""

    def __init__(self, flag: str, result: str | None) -> None:
        self.flag, self.result, self.depth = flag, result, 0

    def _loop(self, node: ast.stmt) -> list[ast.stmt]:
        returns = has(node, ast.Return)
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        if not (returns and self.depth):
            return [node]
        return [node, ast.If(name(self.flag), [ast.Break()], [])]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        """A loop."""
        return self._loop(node)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """A loop."""
        return self._loop(node)

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """Outside a loop, what follows a return in a branch is guarded."""
        if self.depth:
            self.generic_visit(node)
            return [node]
        node.body = self._guarded(node.body)
        node.orelse = self._guarded(node.orelse)
        return [node]

    def _guarded(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for i, s in enumerate(body):
            returns = isinstance(s, ast.Return) or has(s, ast.Return)
            made = self.visit(s)
            out += made if isinstance(made, list) else [made]
            rest = body[i + 1 :]
            if returns and rest:
                out.append(ast.If(negation(name(self.flag)), self._guarded(rest), []))
                return out
        return out

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        """The value is kept, the flag set, the loop left."""
        out = [*_keep(node, self.result), assign(self.flag, ast.Constant(True))]
        return [*out, ast.Break()] if self.depth else out


def without_else(loop: ast.stmt, program: Program) -> list[ast.stmt]:
    """The loop, and its else as a test of a flag that its breaks set."""
    assert isinstance(loop, LOOPS)
    broken = program.fresh("_broken")
    after, loop.orelse = loop.orelse, []
    loop.body = [_set_before_break(s, broken) for s in loop.body]
    clear = ast.copy_location(assign(broken, ast.Constant(False)), loop)
    return [clear, loop, ast.copy_location(ast.If(negation(name(broken)), after, []), loop)]


def _set_before_break(s: ast.stmt, broken: str) -> ast.stmt:
    if isinstance(s, ast.Break):
        both: list[ast.stmt] = [assign(broken, ast.Constant(True)), s]
        return ast.copy_location(ast.If(ast.Constant(True), both, []), s)
    if isinstance(s, ast.If):
        s.body = [_set_before_break(t, broken) for t in s.body]
        s.orelse = [_set_before_break(t, broken) for t in s.orelse]
    return s


def without_jumps(loop: ast.stmt, program: Program) -> list[ast.stmt]:
    """The loop with its break and continue as flags that guard what follows them."""
    assert isinstance(loop, LOOPS)
    if not any(leaves_loop(s) for s in loop.body):
        return [loop]
    broken, skipped = program.fresh("_broken"), program.fresh("_skipped")

    def guarded(body: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for i, s in enumerate(body):
            if isinstance(s, ast.Break):
                return [*out, assign(broken, ast.Constant(True))]
            if isinstance(s, ast.Continue):
                return [*out, assign(skipped, ast.Constant(True))]
            if isinstance(s, ast.If) and leaves_loop(s):
                out.append(ast.If(s.test, guarded(s.body) or [ast.Pass()], guarded(s.orelse)))
                rest = guarded(body[i + 1 :])
                if rest:
                    out.append(ast.If(expression(f"not ({broken} or {skipped})"), rest, []))
                return out
            out.append(s)
        return out

    body = [assign(skipped, ast.Constant(False)), *guarded(loop.body)]
    new: ast.stmt
    if isinstance(loop, ast.While):
        go_on = negation(name(broken))
        endless = isinstance(loop.test, ast.Constant) and loop.test.value
        test = go_on if endless else ast.BoolOp(ast.And(), [go_on, loop.test])
        new = ast.While(test, body, [])
    else:
        # The kernel's own variable must keep the value that it had at the break.
        step = program.fresh("_step")
        take = ast.Assign([loop.target], name(step), lineno=0)
        turn: list[ast.stmt] = [ast.If(negation(name(broken)), [take, *body], [])]
        new = ast.For(ast.Name(step, ast.Store()), loop.iter, turn, [], lineno=0)
    return [assign(broken, ast.Constant(False)), assign(skipped, ast.Constant(False)), new]

"""Python's order of evaluation, where an expression needs statements before it.

A device function that is inlined, a shuffle, a vote: each is statements that run before the
expression that it stands in. What Python evaluates before must still be, and what it evaluates only
sometimes (`a and f(b)`) must not run otherwise.
"""

from __future__ import annotations

import ast
from typing import Any

from blutrain.device.cpu.program import Program
from blutrain.device.cpu.source import Source
from blutrain.device.cpu.syntax import assign, call, loads_memory, name, negation


class Evaluation(ast.NodeTransformer):
    """Visits the expressions of one function.

    Attributes:
        renames: what each local name becomes.
        before: statements that must run before the expression being visited.
        parts: for a variable that holds a returned tuple, the variables of its elements.
        grids: names of what `cuda.cg.this_grid()` gave.
    """

    def __init__(
        self,
        source: Source,
        program: Program,
        renames: dict[str, ast.expr],
        depth: int = 0,
    ) -> None:
        self.source, self.program, self.renames = source, program, renames
        self.depth = depth
        self.before: list[ast.stmt] = []
        self.parts: dict[str, list[str]] = {}
        self.grids: set[str] = set()

    def _hold(self, value: ast.expr) -> ast.expr:
        """Evaluate now into a fresh variable, unless it is a constant."""
        if isinstance(value, ast.Constant):
            return value
        if isinstance(value, ast.Tuple):
            return ast.Tuple([self._hold(e) for e in value.elts], ast.Load())
        held = self.program.fresh("_h")
        self.before.append(assign(held, value))
        return name(held)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit operands from left to right.

        When a later operand needs statements (an inlined function, which may store), an earlier one
        that read memory is evaluated before them.
        """
        if not isinstance(node, ast.expr):
            return super().generic_visit(node)
        done: list[tuple[Any, Any, ast.expr]] = []
        for field, value in ast.iter_fields(node):
            many = value if isinstance(value, list) else [value]
            for k, child in enumerate(many):
                inner = child.value if isinstance(child, ast.keyword) else child
                if not isinstance(inner, ast.expr):
                    continue
                mark = len(self.before)
                new = self.visit(inner)
                if len(self.before) > mark:
                    self._settle(done, mark)
                holder: Any = child if isinstance(child, ast.keyword) else node
                where: Any = "value" if holder is child else field
                if holder is node and isinstance(value, list):
                    holder, where = value, k
                _put(holder, where, new)
                done.append((holder, where, new))
        return node

    def _settle(self, done: list[tuple[Any, Any, ast.expr]], mark: int) -> None:
        late, self.before = self.before[mark:], self.before[:mark]
        for k, (holder, where, value) in enumerate(done):
            if loads_memory(value) and not isinstance(getattr(value, "ctx", None), ast.Store):
                done[k] = (holder, where, self._hold(value))
                _put(holder, where, done[k][2])
        self.before += late

    def _lazily(self, node: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
        """Visit what is evaluated only sometimes: its statements are kept apart."""
        outer, self.before = self.before, []
        value = self.visit(node)
        mine, self.before = self.before, outer
        return mine, value

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """`a and f(b)`: statements of f run only when a holds."""
        first = self.visit(node.values[0])
        rest = [self._lazily(v) for v in node.values[1:]]
        if not any(before for before, _ in rest):
            return ast.BoolOp(node.op, [first, *(v for _, v in rest)])
        result = self.program.fresh("_h")
        self.before.append(assign(result, call("bool", first)))
        into = self.before
        for before, value in rest:
            go_on = name(result) if isinstance(node.op, ast.And) else negation(name(result))
            body = [*before, assign(result, call("bool", value))]
            into.append(ast.If(go_on, body, []))
        return name(result)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """`f(a) if c else b`: becomes an if statement when a branch needs statements."""
        test = self.visit(node.test)
        before_then, then = self._lazily(node.body)
        before_else, otherwise = self._lazily(node.orelse)
        if not before_then and not before_else:
            return ast.IfExp(test, then, otherwise)
        result = self.program.fresh("_h")
        then_body = [*before_then, assign(result, then)]
        else_body = [*before_else, assign(result, otherwise)]
        self.before.append(ast.If(test, then_body, else_body))
        return name(result)


def _put(holder: Any, where: Any, value: ast.expr) -> None:
    if isinstance(holder, list):
        holder[where] = value
    else:
        setattr(holder, where, value)

"""What can be known about integers: which are never negative, where a region's guard ends its loop.

`for t in range(256): if base + t < n: ...` becomes `for t in range(min(256, n - base)): ...`, a
loop without a branch. And `x[i]` counts from the end when i is negative, a question that keeps LLVM
from seeing that neighbouring threads touch neighbouring elements: an index that cannot be negative
is marked as unsigned. Scalar arguments are taken to be non-negative, which the program checks when
it starts; it is compiled without that assumption if it ever fails.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numba import types

from blutrain.device.cpu import strips
from blutrain.device.cpu.regions import Builder
from blutrain.device.cpu.syntax import (  # fmt: skip
    BLOCK_NAMES,
    THREAD_NAMES,
    call,
    called,
    clone,
    name,
    reads,
    text_of,
    walk,
    writes,
)
from blutrain.device.cpu.uniformity import Uniformity

_INTEGER_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.BitAnd,
    ast.BitOr, ast.BitXor,
)  # fmt: skip
_EXTENTS = ("shape", "size", "ndim", "nbytes", "itemsize")


@dataclass(frozen=True)
class Bound:
    """Only threads whose `place` is below `limit` have anything to do."""

    place: str
    limit: str


class Facts:
    """What is known about the integers of one kernel.

    Attributes:
        assumed: parameters whose being non-negative was used.
    """

    def __init__(
        self,
        body: Sequence[ast.stmt],
        kinds: Mapping[str, types.Type],
        uniform: Uniformity,
        builder: Builder,
        objects: Mapping[str, object],
        assume: bool,
    ) -> None:
        self.kinds, self.uniform = kinds, uniform
        self.known, self.bases = builder.definitions, builder.bases
        self.objects, self.assume = objects, assume
        self.assumed: set[str] = set()
        self.natural = self._natural_variables(body)

    # Signs --------------------------------------------------------------------------------------

    def _natural_variables(self, body: Sequence[ast.stmt]) -> set[str]:
        """Variables that are non-negative wherever they are assigned: the largest such set."""
        sources: dict[str, list[ast.expr | None]] = {}
        for n in walk(body):
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
                sources.setdefault(n.targets[0].id, []).append(n.value)
            elif isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
                value = ast.BinOp(name(n.target.id), n.op, n.value)
                sources.setdefault(n.target.id, []).append(value)
            elif isinstance(n, ast.For) and isinstance(n.target, ast.Name):
                sources.setdefault(n.target.id, []).append(self._range_source(n.iter))
            elif isinstance(n, ast.Assign | ast.For):
                for v in writes(n.targets if isinstance(n, ast.Assign) else n.target):
                    sources.setdefault(v, []).append(None)
        natural = set(sources)
        before = -1
        while before != len(natural):
            before = len(natural)
            self.natural = natural
            natural = {
                v for v in natural if all(e is not None and self.is_natural(e) for e in sources[v])
            }
        return natural

    @staticmethod
    def _range_source(iterable: ast.expr) -> ast.expr | None:
        """An expression that is natural only if the variable of a loop over this range is."""
        if called(iterable) != "range":
            return None
        assert isinstance(iterable, ast.Call)
        start, stop, step = strips.range_arguments(iterable.args)
        if not isinstance(step, ast.Constant):
            # Of unknown sign: natural if it counts up by something natural.
            return ast.BinOp(start, ast.Add(), step)
        if isinstance(step.value, int) and step.value > 0:
            return start
        return ast.BinOp(stop, ast.Add(), ast.Constant(1))

    def is_natural(self, node: ast.expr) -> bool:
        """Whether an integer expression is surely not negative."""
        if isinstance(node, ast.Constant):
            return type(node.value) is int and node.value >= 0
        if isinstance(node, ast.Name):
            return self._is_natural_name(node.id)
        if isinstance(node, ast.Attribute):
            return node.attr in _EXTENTS
        if isinstance(node, ast.Subscript):
            return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
        if isinstance(node, ast.IfExp):
            return self.is_natural(node.body) and self.is_natural(node.orelse)
        if isinstance(node, ast.BinOp):
            return self._is_natural_operation(node)
        return isinstance(node, ast.Call) and self._is_natural_call(node)

    def _is_natural_name(self, v: str) -> bool:
        if v in THREAD_NAMES or v in BLOCK_NAMES:
            return True
        if v in self.kinds and v not in self.uniform.assigned:
            kind = self.kinds[v]
            if not isinstance(kind, types.Integer):
                return False
            if not kind.signed:
                return bool(kind.bitwidth < 64)
            if self.assume:
                self.assumed.add(v)
            return self.assume
        return v in self.natural and v not in self.kinds

    def _is_natural_operation(self, node: ast.BinOp) -> bool:
        left, right = node.left, node.right
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
            # stop + 1 for a countdown to -1
            minus_one = ast.unparse(left.right) == "-1"
            if isinstance(node.op, ast.Add) and minus_one and ast.unparse(right) == "1":
                return self.is_natural(left.left)
        if isinstance(node.op, ast.Add) and ast.unparse(node) == "-1 + 1":
            return True
        if isinstance(node.op, ast.Mod):
            return self.is_natural(right)  # Python's %: the sign of the divisor
        if isinstance(node.op, ast.BitAnd):
            return self.is_natural(left) or self.is_natural(right)
        natural = (ast.Add, ast.Mult, ast.FloorDiv, ast.RShift, ast.BitOr, ast.BitXor, ast.LShift)
        return isinstance(node.op, natural) and self.is_natural(left) and self.is_natural(right)

    def _is_natural_call(self, node: ast.Call) -> bool:
        function = called(node)
        if function in ("min", "_minimum"):
            return all(map(self.is_natural, node.args))
        if function in ("max", "_maximum"):
            return any(map(self.is_natural, node.args)) and all(map(self.is_integer, node.args))
        if function == "int" and node.args:
            return self.is_natural(node.args[0])
        if function == "len":
            return True
        kind = self.objects.get(function)
        if isinstance(kind, types.Integer) and node.args:
            return (not kind.signed and kind.bitwidth < 64) or (
                kind.signed and kind.bitwidth == 64 and self.is_natural(node.args[0])
            )
        return False

    # Types --------------------------------------------------------------------------------------

    def is_integer(self, node: ast.expr) -> bool:
        """Whether an expression is surely a signed integer of at most 64 bits."""
        if isinstance(node, ast.Constant):
            return type(node.value) is int
        if isinstance(node, ast.Name):
            if node.id in THREAD_NAMES or node.id in BLOCK_NAMES or node.id in self.bases:
                return True
            if node.id in self.kinds and node.id not in self.uniform.assigned:
                kind = self.kinds[node.id]
                return isinstance(kind, types.Integer) and (kind.signed or kind.bitwidth < 64)
            return node.id in self.known and self.is_integer(self.known[node.id])
        if isinstance(node, ast.Attribute):
            return node.attr in _EXTENTS
        if isinstance(node, ast.Subscript):
            return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
        if isinstance(node, ast.BinOp) and isinstance(node.op, _INTEGER_OPERATORS):
            return self.is_integer(node.left) and self.is_integer(node.right)
        if called(node) in ("min", "max", "_minimum", "_maximum"):
            return all(map(self.is_integer, node.args))  # type: ignore[attr-defined]
        return called(node) == "len"

    # Uses ---------------------------------------------------------------------------------------

    def unsigned_indices(self, node: ast.AST) -> ast.AST:
        """Mark the indices in a statement that cannot be negative."""
        return _Unsigned(self).visit(node)  # type: ignore[no-any-return]

    def clip(
        self, body: list[ast.stmt], places: frozenset[str]
    ) -> tuple[list[ast.stmt], Bound | None]:
        """Take a guard off a region when the loop over its threads can end there instead.

        Args:
            body: statements of the region.
            places: the names that the innermost loop over threads may count with.
        """
        if len(body) != 1 or not isinstance(body[0], ast.If) or body[0].orelse:
            return body, None
        guard = body[0]
        both = isinstance(guard.test, ast.BoolOp) and isinstance(guard.test.op, ast.And)
        tests = list(guard.test.values) if both else [guard.test]  # type: ignore[attr-defined]
        for k, test in enumerate(tests):
            bound = self._bound(test, places)
            if bound is None:
                continue
            rest = tests[:k] + tests[k + 1 :]
            if not rest:
                return list(guard.body), bound
            left = rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)
            return [ast.If(left, guard.body, [])], bound
        return body, None

    def _bound(self, test: ast.expr, places: frozenset[str]) -> Bound | None:
        """The bound that a test puts on a thread's place."""
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        inner = test.operand if negated else test  # type: ignore[attr-defined]
        if not isinstance(inner, ast.Compare) or len(inner.ops) != 1:
            return None
        left, right, op = inner.left, inner.comparators[0], type(inner.ops[0])
        if op in (ast.Gt, ast.LtE):  # a > b is b < a; a <= b is b >= a
            left, right, op = right, left, ast.Lt if op is ast.Gt else ast.GtE
        if op is not (ast.GtE if negated else ast.Lt):
            return None
        found = strips.affine(left, self.known, self.uniform)
        if found is None or found[1] not in places:
            return None
        start = found[0]
        if not self.uniform.of_expression(right):
            return None
        if not (self.is_integer(right) and self.is_integer(start)):
            return None
        if reads(start) & self._reassigned():
            return None
        limit = ast.BinOp(clone(right), ast.Sub(), start)
        return Bound(found[1], text_of(limit))

    def _reassigned(self) -> set[str]:
        """Variables that do not mean the same throughout the kernel."""
        return {v for v in self.uniform.assigned if v not in self.known and v not in self.natural}


class _Unsigned(ast.NodeTransformer):
    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`x[i]` with i natural is `x[_unsigned(i)]`."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Attribute):
            return node
        many = isinstance(node.slice, ast.Tuple)
        parts: list[ast.expr] = node.slice.elts if many else [node.slice]  # type: ignore[attr-defined]
        marked = [self._mark(p) for p in parts]
        node.slice = ast.Tuple(marked, ast.Load()) if many else marked[0]
        return node

    def _mark(self, index: ast.expr) -> ast.expr:
        if isinstance(index, ast.Constant | ast.Slice) or not self.facts.is_natural(index):
            return index
        return call("_unsigned", index)

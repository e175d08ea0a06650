"""Expressions of a typed program as LLVM values.

Operators and functions are Numba's own implementations, found once and kept; only what kernels do
all the time (element access, conversions, tests) is written out.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from blutrain.device.cpu.elements import Elements
from blutrain.device.cpu.ptx.parse import NotOnTheCpu
from blutrain.device.cpu.signatures import OPERATORS, TypingError, is_intrinsic, resolve
from blutrain.device.cpu.syntax import walk

I1, I64 = ir.IntType(1), ir.IntType(64)


class Values(Elements):
    """Makes the values of expressions."""

    def of(self, node: ast.expr) -> Any:
        """The value of an expression."""
        return getattr(self, "_" + type(node).__name__.lower())(node)

    def _constant(self, node: ast.Constant) -> Any:
        kind = self.kind(node)
        if kind is types.none:
            return self.context.get_dummy_value()
        return self.context.get_constant_generic(self.builder, kind, node.value)

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.fixed:
            return self.fixed[node.id]
        if node.id in self.kinds.variables:
            return self.load(node.id)
        value = self.kinds.value_of(node.id)
        return self.context.get_constant_generic(self.builder, self.kind(node), value)

    def _tuple(self, node: ast.Tuple) -> Any:
        kind = self.kind(node)
        values = [self.of(e) for e in node.elts]
        return self.context.make_tuple(self.builder, kind, values)

    def _slice(self, node: ast.Slice) -> Any:
        kind = self.kind(node)
        parts = (node.lower, node.upper) + (() if node.step is None else (node.step,))
        given = [types.none if p is None else types.int64 for p in parts]
        values = [
            self.context.get_dummy_value() if p is None else self.as_kind(p, types.int64)
            for p in parts
        ]
        signature = resolve(slice, tuple(given), node)
        assert signature.return_type == kind
        return self.apply(slice, signature, given, values)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self.truth(node)
        return self._operate(OPERATORS[type(node.op)], [node.operand], node)

    def _binop(self, node: ast.BinOp) -> Any:
        exponent = node.right.value if isinstance(node.right, ast.Constant) else None
        kind = self.kind(node)
        if isinstance(node.op, ast.Pow) and type(exponent) is int and 1 <= exponent <= 8:
            base = self.as_kind(node.left, kind)
            times = self.builder.fmul if isinstance(kind, types.Float) else self.builder.mul
            result = base
            for _ in range(exponent - 1):
                result = times(result, base)
            return result
        return self._operate(OPERATORS[type(node.op)], [node.left, node.right], node)

    def _operate(self, function: Any, operands: Sequence[ast.expr], node: ast.AST) -> Any:
        kinds = [self.kind(o) for o in operands]
        signature = resolve(function, tuple(kinds), node)
        values = [self.as_kind(o, k) for o, k in zip(operands, signature.args, strict=True)]
        return self.apply(function, signature, signature.args, values)

    def _compare(self, node: ast.Compare) -> Any:
        left, result = node.left, None
        for op, right in zip(node.ops, node.comparators, strict=True):
            test = self._operate(OPERATORS[type(op)], [left, right], node)
            result = test if result is None else self.builder.and_(result, test)
            left = right
        return result

    def _boolop(self, node: ast.BoolOp) -> Any:
        kind = self.kind(node)
        first, *rest = node.values
        value = self.as_kind(first, kind)
        for k, operand in enumerate(rest):
            if kind == types.boolean and all(map(_is_cheap, rest[k:])):
                # No branch where evaluating the rest does no harm: vector code has none.
                both = self.builder.and_ if isinstance(node.op, ast.And) else self.builder.or_
                for other in rest[k:]:
                    value = both(value, self.as_kind(other, kind))
                return value
            go_on = self.context.is_true(self.builder, kind, value)
            if isinstance(node.op, ast.Or):
                go_on = self.builder.not_(go_on)
            value = self._either(
                go_on,
                functools.partial(self.as_kind, operand, kind),
                functools.partial(_same, value),
            )
        return value

    def _ifexp(self, node: ast.IfExp) -> Any:
        kind = self.kind(node)
        test = self.truth(node.test)
        if _is_cheap(node.body) and _is_cheap(node.orelse):
            then, otherwise = self.as_kind(node.body, kind), self.as_kind(node.orelse, kind)
            return self.builder.select(test, then, otherwise)
        return self._either(
            test, lambda: self.as_kind(node.body, kind), lambda: self.as_kind(node.orelse, kind)
        )

    def _either(self, test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """One of two values, of which only one is evaluated."""
        builder, function = self.builder, self.builder.function
        blocks = [function.append_basic_block(n) for n in ("yes", "no", "join")]
        builder.cbranch(test, blocks[0], blocks[1])
        ways = []
        for block, make in zip(blocks, (then, otherwise), strict=False):
            builder.position_at_end(block)
            value = make()
            ways.append((value, builder.block))
            builder.branch(blocks[2])
        builder.position_at_end(blocks[2])
        phi = builder.phi(ways[0][0].type)
        for value, block in ways:
            phi.add_incoming(value, block)
        return phi

    def truth(self, node: ast.expr) -> Any:
        """An expression as a bit."""
        if isinstance(node, ast.Constant):
            return I1(bool(node.value))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.builder.not_(self.truth(node.operand))
        kind = self.kind(node)
        value = self.of(node)
        return value if kind == types.boolean else self.context.is_true(self.builder, kind, value)

    # Calls ---------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        function = self.kinds.callee(node)
        kinds = tuple(self.kind(a) for a in node.args)
        if isinstance(function, types.BoundFunction):
            return self._method(node, function, kinds)
        if isinstance(function, types.Type):
            return self.as_kind(node.args[0], function)
        if is_intrinsic(function):
            signature, generate = self.kinds.intrinsic(function, kinds, node)
            values = [
                self.cast(self.of(a), k, w)
                for a, k, w in zip(node.args, kinds, signature.args, strict=True)
            ]
            try:
                return generate(self.context, self.builder, signature, values)
            except NotOnTheCpu as error:
                wrong = f"an instruction has no meaning on the CPU, {error}; run it on a GPU"
                raise TypingError(node, wrong) from error
        signature = resolve(function, kinds, node)
        return self.apply(function, signature, kinds, [self.of(a) for a in node.args])

    def _method(self, node: ast.Call, method: Any, kinds: tuple[types.Type, ...]) -> Any:
        """A call of a method of an array or a number."""
        assert isinstance(node.func, ast.Attribute)
        signature = resolve(method, kinds, node)
        given = [self.cast(self.of(a), k, w)
                 for a, k, w in zip(node.args, kinds, signature.args, strict=True)]  # fmt: skip
        found = self.context.get_function(method, signature)
        return found(self.builder, [self.of(node.func.value), *given])


def _same(value: Any) -> Any:
    return value


_CHEAP = (
    ast.Constant, ast.Name, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.operator,
    ast.cmpop, ast.unaryop, ast.boolop, ast.expr_context, ast.Attribute,
)  # fmt: skip
_DEAR = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


def _is_cheap(node: ast.AST) -> bool:
    """Whether evaluating an expression for nothing costs little and cannot fail."""
    shapes = {
        id(n): n
        for n in walk(node)
        if isinstance(n, ast.Subscript)
        and isinstance(n.value, ast.Attribute)
        and n.value.attr == "shape"
    }
    return all(
        (isinstance(n, _CHEAP) or id(n) in shapes) and not isinstance(n, _DEAR) for n in walk(node)
    )

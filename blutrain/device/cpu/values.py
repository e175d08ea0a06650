"""Expressions of a typed program as LLVM values.

Operators and functions are Numba's own implementations, found once and kept; only what kernels do
all the time (element access, conversions, tests) is written out here.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, errors

from blutrain.device.cpu import vectors
from blutrain.device.cpu.arrays import DATA, ITEMSIZE, NITEMS, SHAPE, STRIDES
from blutrain.device.cpu.kinds import Kinds
from blutrain.device.cpu.ptx.parse import NotOnTheCpu
from blutrain.device.cpu.signatures import (
    OPERATORS,
    TypingError,
    field_of,
    indexes_element,
    is_intrinsic,
    resolve,
)  # fmt: skip
from blutrain.device.cpu.syntax import walk

I1, I64 = ir.IntType(1), ir.IntType(64)
_FIELDS = {"size": NITEMS, "itemsize": ITEMSIZE, "shape": SHAPE, "strides": STRIDES}

_implementations: dict[Any, Any] = {}


class Values:
    """Makes the values of expressions.

    Attributes:
        fixed: LLVM values of variables that are assigned once, before everything that uses them.
        statement: the statement that is being lowered, for error messages.
        own: names of arrays that threads use one after another.
        groups: access groups of the loops over threads around the place of lowering.
    """

    def __init__(
        self,
        kinds: Kinds,
        context: Any,
        builder: Any,
        load: Callable[[str], Any],
        own: frozenset[str],
    ) -> None:
        self.kinds, self.context, self.builder = kinds, context, builder
        self.load, self.own = load, own
        self.groups: list[Any] = []
        self.fixed: dict[str, Any] = {}
        self.statement: ast.AST | None = None

    # Conversions ---------------------------------------------------------------------------------

    def cast(self, value: Any, kind: types.Type, wanted: types.Type) -> Any:
        """A value of one type as one of another."""
        if kind == wanted:
            return value
        try:
            return self.context.cast(self.builder, value, kind, wanted)
        except (NotImplementedError, errors.NumbaError):
            raise TypingError(
                self.statement or ast.Pass(), f"cannot convert {kind} to {wanted}"
            ) from None

    def as_kind(self, node: ast.expr, wanted: types.Type) -> Any:
        """The value of an expression, converted; a literal is converted at compile time."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            if isinstance(wanted, types.Float):
                return self.context.get_constant(wanted, float(node.value))
            if isinstance(wanted, types.Integer) and type(node.value) is int:
                return ir.Constant(self.context.get_value_type(wanted), node.value)
        return self.cast(self.of(node), self.kind(node), wanted)

    def kind(self, node: ast.expr) -> types.Type:
        """The type of an expression."""
        kind = self.kinds.of(node)
        if kind is None:
            raise TypingError(node, f"{ast.unparse(node)} has no value on any way to here")
        return kind

    def truth(self, node: ast.expr) -> Any:
        """An expression as a bit."""
        if isinstance(node, ast.Constant):
            return I1(bool(node.value))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.builder.not_(self.truth(node.operand))
        kind = self.kind(node)
        value = self.of(node)
        return value if kind == types.boolean else self.context.is_true(self.builder, kind, value)

    # Expressions ---------------------------------------------------------------------------------

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

    def _attribute(self, node: ast.Attribute) -> Any:
        kind = self.kind(node.value)
        base = self.of(node.value)
        element = vectors.field(kind, node.attr)
        if element is not None:
            return self.builder.extract_value(base, element)
        if isinstance(kind, types.Array) and node.attr in _FIELDS:
            field = self.builder.extract_value(base, _FIELDS[node.attr])
            return field
        result = self.context.typing_context.resolve_getattr(kind, node.attr)
        get = self.context.get_getattr(kind, node.attr)
        if get is None:  # a constant of the type itself, such as ndim
            return self.context.get_constant_generic(self.builder, result, getattr(kind, node.attr))
        return get(self.context, self.builder, kind, base, node.attr)

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

    # Calls ---------------------------------------------------------------------------------------

    def apply(
        self, function: Any, signature: Any, given: Sequence[types.Type], values: Sequence[Any]
    ) -> Any:
        """Numba's implementation of a function."""
        key = (function if not isinstance(function, types.Type) else str(function), signature)
        found = _implementations.get(key)
        if found is None:
            kind = self.context.typing_context.resolve_value_type(function)
            # Typing is what makes Numba compile a jitted function for these types.
            found = self.context.get_function(kind, signature)
            _implementations[key] = found
        cast = [self.cast(v, g, w) for v, g, w in zip(values, given, signature.args, strict=False)]
        cast += [  # parameters that have a default
            self.context.get_constant_generic(self.builder, omitted, None)
            for omitted in signature.args[len(values) :]
        ]
        result = found(self.builder, cast)
        return self.cast(result, signature.return_type, types.unliteral(signature.return_type))

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

    # Elements ------------------------------------------------------------------------------------

    def element_kind(self, node: ast.Subscript) -> types.Type | None:
        """The type of an array's element that a subscript stores into; None for other stores."""
        base, index = self.kind(node.value), self.kind(node.slice)
        if isinstance(base, types.Array) and indexes_element(base, index):
            return base.dtype
        return None

    def _subscript(self, node: ast.Subscript) -> Any:
        base, index = self.kind(node.value), self.kind(node.slice)
        if isinstance(base, types.Array) and indexes_element(base, index):
            place = self._place(node, base)
            if isinstance(base.dtype, types.Record):  # its value is where it is
                model = self.context.data_model_manager[base.dtype]
                return model.load_from_data_pointer(self.builder, place)
            loaded = self.builder.load(place)
            self._in_groups(loaded, node.value)
            return self.context.data_model_manager[base.dtype].from_data(self.builder, loaded)
        if isinstance(base, types.BaseTuple) and isinstance(node.slice, ast.Constant):
            return self._tuple_element(node, base)
        field = field_of(base, node)
        if field is not None:
            return self._attribute(field)
        signature = resolve(operator.getitem, (base, index), node)
        values = [self.of(node.value), self.of(node.slice)]
        return self.apply(operator.getitem, signature, (base, index), values)

    def _tuple_element(self, node: ast.Subscript, base: types.BaseTuple) -> Any:
        assert isinstance(node.slice, ast.Constant)
        k = int(node.slice.value)  # type: ignore[arg-type]
        return self.builder.extract_value(self.of(node.value), k % len(base))

    def store(self, node: ast.Subscript, value: Any, kind: types.Type) -> None:
        """Store into an element."""
        base, index = self.kind(node.value), self.kind(node.slice)
        if isinstance(base, types.Array) and indexes_element(base, index):
            cast = self.cast(value, kind, base.dtype)
            data = self.context.data_model_manager[base.dtype].as_data(self.builder, cast)
            stored = self.builder.store(data, self._place(node, base))
            self._in_groups(stored, node.value)
            return
        field = field_of(base, node)
        if field is not None:
            self.store_field(field, value, kind)
            return
        signature = resolve(operator.setitem, (base, index, kind), node)
        values = [self.of(node.value), self.of(node.slice), value]
        self.apply(operator.setitem, signature, (base, index, kind), values)

    def _in_groups(self, access: Any, array: ast.expr) -> None:
        """Mark an access that threads may make in any order."""
        if not self.groups or not isinstance(array, ast.Name) or array.id in self.own:
            return
        if array.id not in self.fixed and not array.id.startswith("_"):
            return  # made within the kernel: perhaps a second name for a part of another array
        group = self.groups[0]
        if len(self.groups) > 1:
            group = self.builder.module.add_metadata(self.groups)
        access.set_metadata("llvm.access.group", group)

    def store_field(self, node: ast.Attribute, value: Any, kind: types.Type) -> None:
        """Store into a field of a record."""
        record = self.kind(node.value)
        signature = self.context.typing_context.resolve_setattr(record, node.attr, kind)
        if signature is None:
            raise TypingError(node, f"a {kind} cannot be stored in {node.attr!r} of a {record}")
        given = self.cast(value, kind, signature.args[1])
        store = self.context.get_setattr(node.attr, signature)
        store(self.builder, [self.of(node.value), given])

    def _place(self, node: ast.Subscript, base: types.Array) -> Any:
        """The address of an element."""
        view = self.of(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else None
        if parts is None:
            parts = [node.slice]
            kinds: Sequence[types.Type] = [self.kind(node.slice)]
            if isinstance(kinds[0], types.BaseTuple):
                kinds = list(kinds[0])
                indices = cgutils.unpack_tuple(self.builder, self.of(node.slice), len(kinds))
            else:
                indices = [self.of(node.slice)]
        else:
            kinds = [self.kind(p) for p in parts]
            indices = [self.of(p) for p in parts]
        builder = self.builder
        offsets = []
        for axis, (value, kind) in enumerate(zip(indices, kinds, strict=True)):
            i = self.cast(value, kind, types.uint64 if not kind.signed else types.int64)
            constant = isinstance(i, ir.Constant) and isinstance(i.constant, int)
            if kind.signed and not (constant and i.constant >= 0):
                extent = builder.extract_value(view, (SHAPE, axis))
                below = builder.icmp_signed("<", i, I64(0))
                i = builder.select(below, builder.add(i, extent), i)
            offsets.append(i)
        data = builder.extract_value(view, DATA)
        if base.layout == "C":
            offset = offsets[0] if offsets else I64(0)
            for axis, i in enumerate(offsets[1:], 1):
                extent = builder.extract_value(view, (SHAPE, axis))
                offset = builder.add(builder.mul(offset, extent), i)
            return builder.gep(data, [offset], inbounds=False)
        offset = I64(0)
        for axis, i in enumerate(offsets):
            step = builder.extract_value(view, (STRIDES, axis))
            offset = builder.add(offset, builder.mul(i, step))
        return cgutils.pointer_add(builder, data, offset)


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

"""Type inference over a program: what Numba's is, without its machinery.

Every operation is resolved by Numba's own rules for operators, functions and attributes, so types
are those of Numba and of CUDA. A variable's type is what all of its definitions unify to; types
only widen, so going over the program until nothing changes ends.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import errors
from numba.core.registry import cpu_target

from blutrain.device.cpu.syntax import writes

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
    ast.Not: operator.not_,
}  # fmt: skip

# Numba's resolutions, kept from kernel to kernel: (function, types) -> signature.
_resolved: dict[Any, Any] = {}


class TypingError(Exception):
    """An expression has no type."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


_CONVERTIBLE = (types.Number, types.Boolean, types.IntEnumMember)


def is_number(kind: Any) -> bool:
    """Whether a type is that of a number or a bool."""
    return isinstance(kind, types.Number | types.Boolean)


def is_carried(kind: Any) -> bool:
    """Whether an array can have an element of this type for each thread: a number or a tuple."""
    return is_number(kind) or (isinstance(kind, types.BaseTuple) and all(map(is_number, kind)))


def unify(node: ast.AST, *kinds: types.Type) -> types.Type:
    """The type that holds values of all these types."""
    first, *others = kinds
    if all(k == first for k in others):
        return first
    found = cpu_target.typing_context.unify_types(*kinds)
    if found is None:
        raise TypingError(node, f"a value is {' or '.join(map(str, kinds))}; give it one type")
    return found


def resolve(function: Any, arguments: tuple[types.Type, ...], node: ast.AST) -> Any:
    """Numba's signature for a function (a Python object) of arguments of these types."""
    key = (_identity(function), arguments)
    found = _resolved.get(key)
    if found is None:
        context = cpu_target.typing_context
        try:
            kind = (
                function
                if isinstance(function, types.Type)
                else context.resolve_value_type(function)
            )
            found = context.resolve_function_type(kind, arguments, {})
        except errors.NumbaError as error:
            if function in (operator.getitem, operator.setitem):
                wrong = f"{arguments[0]} cannot be indexed by {arguments[1]}"
                raise TypingError(node, wrong) from error
            raise TypingError(node, str(error).strip().splitlines()[0]) from error
        if found is None:
            label = getattr(function, "__name__", str(function))
            given = ", ".join(map(str, arguments))
            raise TypingError(node, f"there is no {label}({given}) on the CPU")
        _resolved[key] = found
    return found


def _identity(function: Any) -> Any:
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


class Kinds:
    """The types of one program.

    Attributes:
        variables: by name.
        assigned: names that are assigned somewhere.
        cells: element types of the carried variables' arrays, by the array's name.
    """

    def __init__(
        self, body: Sequence[ast.stmt], objects: Mapping[str, object], integers: Sequence[str]
    ) -> None:
        self.objects = objects
        self.variables: dict[str, types.Type] = dict.fromkeys(integers, types.int64)
        self.cells: dict[str, types.Type | None] = {}
        self.intrinsics: dict[Any, tuple[Any, Any]] = {}
        self.assigned = writes(body)
        self._unknown = False
        self._changed = True
        while self._changed:
            self._changed = self._unknown = False
            self._block(body)
        if self._unknown:
            self._final = True
            self._block(body)

    _final = False

    # Statements ----------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for s in body:
            self._statement(s)

    def _statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign):
            self._assign(s)
        elif isinstance(s, ast.If):
            self.of(s.test)
            self._block(s.body)
            self._block(s.orelse)
        elif isinstance(s, ast.While):
            self.of(s.test)
            self._block(s.body)
        elif isinstance(s, ast.For):
            self._for(s)
        elif isinstance(s, ast.Expr):
            self.of(s.value)
        elif isinstance(s, ast.Assert):
            self.of(s.test)

    def _for(self, s: ast.For) -> None:
        assert isinstance(s.target, ast.Name)
        called = s.iter.func if isinstance(s.iter, ast.Call) else None
        if not (isinstance(called, ast.Name) and called.id == "range"):
            raise TypingError(s, "a loop in a kernel must be over range(...)")
        assert isinstance(s.iter, ast.Call)
        for a in s.iter.args:
            kind = self.of(a)
            if kind is not None and not isinstance(kind, types.Integer | types.Boolean):
                raise TypingError(a, f"range needs integers, got {kind}")
        self._widen(s.target, types.int64)
        self._block(s.body)

    def _assign(self, s: ast.Assign) -> None:
        target = s.targets[0]
        cell = isinstance(s.value, ast.Call) and getattr(s.value.func, "id", "") == "_cells"
        if cell:
            assert isinstance(target, ast.Name)
            self.cells.setdefault(target.id, None)
            return
        kind = self.of(s.value)
        if kind is None:
            return
        if isinstance(target, ast.Tuple):
            if not isinstance(kind, types.BaseTuple) or len(kind) != len(target.elts):
                raise TypingError(s, f"{len(target.elts)} names for a value of type {kind}")
            for t, k in zip(target.elts, kind, strict=True):
                self._widen(t, k)
        else:
            self._widen(target, kind)

    def _widen(self, target: ast.expr, kind: types.Type) -> None:
        if isinstance(target, ast.Subscript):
            base = target.value
            if isinstance(base, ast.Name) and base.id in self.cells:
                old = self.cells[base.id]
                new = kind if old is None else unify(target, old, kind)
                if not is_carried(new):
                    raise TypingError(
                        target,
                        f"{base.id.removesuffix('__t')!r} lives across a barrier or shuffle, so it "
                        f"must be a number or some, got {new}; keep it in a shared or local array",
                    )
                self._changed |= new != old
                self.cells[base.id] = new
            else:
                base_kind, index = self.of(base), self.of(target.slice)
                if not is_number(kind) and _is_element(base_kind, index):
                    raise TypingError(target, f"an array's element cannot be a {kind}")
            return
        if isinstance(target, ast.Attribute):
            self.of(target.value)
            return
        assert isinstance(target, ast.Name)
        old = self.variables.get(target.id)
        new = kind if old is None else unify(target, old, kind)
        self._changed |= new != old
        self.variables[target.id] = new

    # Expressions ---------------------------------------------------------------------------------

    def of(self, node: ast.expr) -> types.Type | None:
        """The type of an expression; None while it is not known."""
        kind = self._of(node)
        if kind is None:
            self._unknown = True
            if self._final:
                raise TypingError(node, f"{ast.unparse(node)} has no value on any way to here")
        return kind

    def _of(self, node: ast.expr) -> types.Type | None:
        if isinstance(node, ast.Constant):
            return _constant_kind(node.value)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BoolOp):
            kinds = [self.of(v) for v in node.values]
            return None if None in kinds else unify(node, *kinds)
        if isinstance(node, ast.Compare):
            operands = [self.of(n) for n in (node.left, *node.comparators)]
            if None not in operands:
                for op, a, b in zip(node.ops, operands[:-1], operands[1:], strict=True):
                    resolve(OPERATORS[type(op)], (a, b), node)
            return types.boolean
        if isinstance(node, ast.IfExp):
            self.of(node.test)
            kinds = [self.of(node.body), self.of(node.orelse)]
            known = [k for k in kinds if k is not None]
            return unify(node, *known) if known else None
        if isinstance(node, ast.Tuple):
            kinds = [self.of(e) for e in node.elts]
            return None if None in kinds else types.Tuple(kinds)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        return self._operation(node)

    def _operation(self, node: ast.expr) -> types.Type | None:
        if isinstance(node, ast.UnaryOp):
            kind = self.of(node.operand)
            if isinstance(node.op, ast.Not):
                return types.boolean
            return None if kind is None else self._result(node, OPERATORS[type(node.op)], kind)
        if isinstance(node, ast.BinOp):
            left, right = self.of(node.left), self.of(node.right)
            if left is None or right is None:
                return None
            return self._result(node, OPERATORS[type(node.op)], left, right)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Slice):
            parts = [p for p in (node.lower, node.upper, node.step) if p is not None]
            for p in parts:
                self.of(p)
            return types.slice2_type if node.step is None else types.slice3_type
        raise TypingError(node, f"{ast.unparse(node)} cannot be in a kernel; rewrite it")

    @staticmethod
    def _result(node: ast.AST, function: Any, *kinds: types.Type) -> types.Type:
        result: types.Type = types.unliteral(resolve(function, kinds, node).return_type)
        return result

    def value_of(self, name: str) -> Any:
        """The Python object that a free name means."""
        if name in self.objects:
            return self.objects[name]
        return getattr(builtins, name, None)

    def _name(self, node: ast.Name) -> types.Type | None:
        if node.id in self.variables:
            return self.variables[node.id]
        if node.id in self.cells:
            element = self.cells[node.id]
            return None if element is None else types.Array(element, 1, "C")
        value = self.value_of(node.id)
        if value is None:
            if self._final and node.id not in self.assigned:
                raise TypingError(node, f"name {node.id!r} is not defined")
            return None
        kind = cpu_target.typing_context.resolve_value_type(value)
        return types.unliteral(kind)

    def _attribute(self, node: ast.Attribute) -> types.Type | None:
        kind = self.of(node.value)
        if kind is None:
            return None
        if isinstance(kind, types.Array) and node.attr in ("shape", "strides"):
            return types.UniTuple(types.intp, kind.ndim)
        found = cpu_target.typing_context.resolve_getattr(kind, node.attr)
        if found is None:
            raise TypingError(node, f"{kind} has no attribute {node.attr!r}")
        return types.unliteral(found)

    def _subscript(self, node: ast.Subscript) -> types.Type | None:
        base = node.value
        index = self.of(node.slice)
        if isinstance(base, ast.Name) and base.id in self.cells:
            return self.cells[base.id]
        kind = self.of(base)
        if kind is None or index is None:
            return None
        if isinstance(kind, types.Array) and indexes_element(kind, index):
            return kind.dtype
        if isinstance(kind, types.BaseTuple) and isinstance(node.slice, ast.Constant):
            return kind[node.slice.value]
        field = field_of(kind, node)
        if field is not None:
            return self._attribute(field)
        return self._result(node, operator.getitem, kind, index)

    def _call(self, node: ast.Call) -> types.Type | None:
        arguments = [self.of(a) for a in node.args]
        if node.keywords:
            raise TypingError(node, f"{ast.unparse(node)}: pass arguments by position")
        if None in arguments:
            return None
        kinds: tuple[types.Type, ...] = tuple(arguments)
        function = self.callee(node)
        if isinstance(function, types.BoundFunction):
            return self._result(node, function, *kinds)
        if isinstance(function, types.Type):
            if len(kinds) != 1 or not isinstance(kinds[0], _CONVERTIBLE):
                raise TypingError(node, f"{ast.unparse(node)} does not convert a number")
            return function
        if is_intrinsic(function):
            return types.unliteral(self.intrinsic(function, kinds, node)[0].return_type)
        return self._result(node, function, *kinds)

    def callee(self, node: ast.Call) -> Any:
        """What a call calls: a Python object, or a Numba type for a conversion."""
        if isinstance(node.func, ast.Call):  # type(x)(value)
            inner = node.func
            if (
                isinstance(inner.func, ast.Name)
                and inner.func.id == "type"
                and len(inner.args) == 1
            ):
                return self.of(inner.args[0])
        if isinstance(node.func, ast.Attribute):  # a method
            owner = self.of(node.func.value)
            method = owner and cpu_target.typing_context.resolve_getattr(owner, node.func.attr)
            if isinstance(method, types.BoundFunction):
                return method
        function = self.value_of(node.func.id) if isinstance(node.func, ast.Name) else None
        if function is None:
            raise TypingError(node, f"{ast.unparse(node.func)} is not a function that is known")
        if isinstance(function, type) and issubclass(function, np.generic):
            return numba.from_dtype(np.dtype(function))
        return function

    def intrinsic(
        self, function: Any, kinds: tuple[types.Type, ...], node: ast.AST
    ) -> tuple[Any, Any]:
        """(signature, code generator) of an intrinsic."""
        key = (id(function), kinds)
        if key not in self.intrinsics:
            try:
                found = function._defn(cpu_target.typing_context, *kinds)
            except (errors.NumbaError, TypeError) as error:
                raise TypingError(node, str(error)) from error
            if found is None:
                given = ", ".join(map(str, kinds))
                raise TypingError(node, f"{function._name} does not take ({given})")
            self.intrinsics[key] = found
        return self.intrinsics[key]


def is_intrinsic(function: Any) -> bool:
    """Whether a function is a Numba intrinsic."""
    return type(function).__name__ == "_Intrinsic"


def field_of(kind: Any, node: ast.Subscript) -> ast.Attribute | None:
    """`r["name"]` of a record as the attribute `r.name`; None for any other subscript."""
    index = node.slice
    if isinstance(kind, types.Record) and isinstance(index, ast.Constant):
        if isinstance(index.value, str) and index.value in kind.fields:
            return ast.copy_location(ast.Attribute(node.value, index.value, node.ctx), node)
    return None


def _is_element(array: Any, index: Any) -> bool:
    """Whether an index picks a number of an array."""
    plain = isinstance(array, types.Array) and is_number(array.dtype)
    return plain and indexes_element(array, index)


def indexes_element(array: types.Array, index: types.Type) -> bool:
    """Whether an index of this type picks one element."""
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    return len(parts) == array.ndim and all(isinstance(p, types.Integer) for p in parts)


def _constant_kind(value: Any) -> types.Type:
    if isinstance(value, bool):
        return types.boolean
    if isinstance(value, int):
        return types.int64 if -(2**63) <= value < 2**63 else types.uint64
    if isinstance(value, float):
        return types.float64
    if value is None:
        return types.none
    return types.unliteral(numba.typeof(value))

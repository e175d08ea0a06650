"""Type inference over a program: what Numba's is, without its machinery.

Every operation is resolved by Numba's own rules for operators, functions and attributes, so types
are those of Numba and of CUDA. A variable's type is what all of its definitions unify to; types
only widen, so going over the program until nothing changes ends.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import errors
from numba.core.registry import cpu_target

from blutrain.device.cpu import vectors
from blutrain.device.cpu.signatures import (
    FAILURES,
    TypingError,
    constant_kind,
    failure,
    field_of,
    indexes_element,
    is_carried,
    is_element,
    is_intrinsic,
    is_number,
    is_numpys,
    operator_of,
    resolve,
    unify,
)  # fmt: skip
from blutrain.device.cpu.syntax import walk

# What makes a container: a kernel has no memory to put it in.
_NEVER = frozenset({dict, list, set, frozenset, sorted})
_CONVERTIBLE = (types.Number, types.Boolean, types.IntEnumMember)


class Kinds:
    """The types of one program.

    Attributes:
        variables: by name.
        stores: in how many places each name is assigned.
        cells: element types of the carried variables' arrays, by the array's name.
    """

    def __init__(
        self, body: Sequence[ast.stmt], objects: Mapping[str, object], integers: Sequence[str]
    ) -> None:
        self.objects = objects
        self.variables: dict[str, types.Type] = dict.fromkeys(integers, types.int64)
        self.cells: dict[str, types.Type | None] = {}
        self.intrinsics: dict[Any, tuple[Any, Any]] = {}
        names = (n for n in walk(body) if isinstance(n, ast.Name))
        self.stores = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
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
            try:
                self._statement(s)
            except FAILURES as error:
                raise failure(s, error) from error

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
                if not is_number(kind) and is_element(base_kind, index):
                    raise TypingError(target, f"an array's element cannot be a {kind}")
            return
        if isinstance(target, ast.Attribute):
            self.of(target.value)
            return
        assert isinstance(target, ast.Name)
        old = self.variables.get(target.id)
        # One definition's type is what it is, as when the elements of an array of cells widen.
        alone = old is None or self.stores[target.id] == 1
        new = kind if alone else unify(target, old, kind)
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
            return constant_kind(node.value)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BoolOp):
            kinds = [self.of(v) for v in node.values]
            return None if None in kinds else unify(node, *kinds)
        if isinstance(node, ast.Compare):
            operands = [self.of(n) for n in (node.left, *node.comparators)]
            if None not in operands:
                for op, a, b in zip(node.ops, operands[:-1], operands[1:], strict=True):
                    resolve(operator_of(node, op), (a, b), node)
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
            return None if kind is None else self._result(node, operator_of(node, node.op), kind)
        if isinstance(node, ast.BinOp):
            left, right = self.of(node.left), self.of(node.right)
            if left is None or right is None:
                return None
            return self._result(node, operator_of(node, node.op), left, right)
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
            if self._final and node.id not in self.stores:
                if node.id.startswith("_result"):
                    raise TypingError(node, "the device function that is called gives no value")
                raise TypingError(node, f"name {node.id!r} is not defined")
            return None
        if isinstance(value, list | dict | set):
            wrong = f"{node.id.removeprefix('g_')} is a {type(value).__name__}"
            raise TypingError(node, f"{wrong}; a kernel takes numbers, tuples and arrays")
        try:
            kind = cpu_target.typing_context.resolve_value_type(value)
        except (ValueError, errors.NumbaError) as error:
            wrong = f"{node.id.removeprefix('g_')} is not known in a kernel"
            raise TypingError(node, wrong) from error
        return types.unliteral(kind)

    def _attribute(self, node: ast.Attribute) -> types.Type | None:
        kind = self.of(node.value)
        if kind is None:
            return None
        if vectors.field(kind, node.attr) is not None:
            return kind.dtype
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
        result = self._result(node, function, *kinds)
        if isinstance(result, types.Array) and is_numpys(function):
            wrong = f"np.{function.__name__} makes an array; declare it with cuda.local"
            raise TypingError(node, wrong)
        return result

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
            wrong = f"{ast.unparse(node.func).removeprefix('g_')} is not a function that is known"
            raise TypingError(node, wrong)
        if function in _NEVER:
            wrong = f"{ast.unparse(node)} cannot be in a kernel; use a shared or local array"
            raise TypingError(node, wrong)
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
            except (errors.NumbaError, TypeError):
                found = None  # of another number of arguments, perhaps
            if found is None:
                given = ", ".join(map(str, kinds))
                raise TypingError(node, f"{function._name.strip('_')} does not take ({given})")
            self.intrinsics[key] = found
        return self.intrinsics[key]

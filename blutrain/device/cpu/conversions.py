"""Typed values as LLVM values: conversions, and Numba's own implementations of functions."""

from __future__ import annotations

import abc
import ast
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import errors

from blutrain.device.cpu.kinds import Kinds
from blutrain.device.cpu.signatures import TypingError

_implementations: dict[Any, Any] = {}


class Conversions(abc.ABC):
    """What making values needs.

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

    @abc.abstractmethod
    def of(self, node: ast.expr) -> Any:
        """The value of an expression."""

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

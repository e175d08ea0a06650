"""Numba's own rules for types: which operators and functions take which, and what they give."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import errors
from numba.core.registry import cpu_target

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


# What Numba raises, itself or from within, at what it cannot do.
FAILURES = (
    errors.NumbaError, NotImplementedError, ImportError, ValueError, TypeError, AttributeError,
    LookupError, AssertionError,
)  # fmt: skip


def failure(node: ast.AST, error: Exception) -> TypingError:
    """An unexpected error as one about a statement."""
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    # Numba's own errors speak of its inner passes and objects.
    inner = isinstance(error, errors.NumbaError | NotImplementedError) or not said
    detail = "" if inner else f" ({said})"
    return TypingError(node, f"this cannot be compiled for the CPU{detail}; write it out")


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


def operator_of(node: ast.AST, op: ast.AST) -> Callable[..., Any]:
    """The function that an operator means."""
    function = OPERATORS.get(type(op))
    if function is None:
        raise TypingError(node, f"{ast.unparse(node)} cannot be in a kernel; write it as a loop")
    return function


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
            raise _no_such(function, arguments, node) from error
        except ValueError as error:
            raise TypingError(node, f"{_label(function)} is not known in a kernel") from error
        if found is None:
            raise _no_such(function, arguments, node)
        _resolved[key] = found
    return found


def _no_such(function: Any, arguments: tuple[types.Type, ...], node: ast.AST) -> TypingError:
    given = ", ".join(map(str, arguments))
    return TypingError(node, f"there is no {_label(function)}({given}) on the CPU")


def _label(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _identity(function: Any) -> Any:
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


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


def is_element(array: Any, index: Any) -> bool:
    """Whether an index picks a number of an array."""
    plain = isinstance(array, types.Array) and is_number(array.dtype)
    return plain and indexes_element(array, index)


def indexes_element(array: types.Array, index: types.Type) -> bool:
    """Whether an index of this type picks one element."""
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    return len(parts) == array.ndim and all(isinstance(p, types.Integer) for p in parts)


def is_numpys(function: Any) -> bool:
    """Whether a function is one of NumPy's."""
    home = getattr(function, "__module__", "") or ""
    return home.split(".")[0] == "numpy" or isinstance(function, np.ufunc)


def constant_kind(value: Any) -> types.Type:
    """The type of a literal."""
    if isinstance(value, bool):
        return types.boolean
    if isinstance(value, int):
        return types.int64 if -(2**63) <= value < 2**63 else types.uint64
    if isinstance(value, float):
        return types.float64
    if value is None:
        return types.none
    return types.unliteral(numba.typeof(value))

"""`print` in a kernel: one line of C's standard output for each thread that comes by.

As CUDA has it: integers in full, floats with six decimals, values parted by spaces. Threads of a
block print in the order in which they run, blocks on several processors in any.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8P, _I32 = ir.IntType(8).as_pointer(), ir.IntType(32)


@functools.cache
def printer(pieces: tuple[str | None, ...]) -> Any:
    """A function that prints a line.

    Args:
        pieces: what is printed, from left to right: a text, or None for one of its arguments.
    """

    def typed(typing_context: Any, *given: Any) -> Any:
        kinds = [types.unliteral(k) for k in given]
        if not all(map(_is_printable, kinds)):
            return None

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _line(context, builder, pieces, list(zip(values, kinds, strict=True)))
            return context.get_dummy_value()

        return types.none(*given), codegen

    typed.__name__ = typed.__qualname__ = "print"
    return intrinsic(typed)


def _is_printable(kind: types.Type) -> bool:
    """Whether a value is a number, or a tuple of such values."""
    if isinstance(kind, types.BaseTuple):
        return all(map(_is_printable, kind))
    return isinstance(kind, types.Number | types.Boolean) and not isinstance(kind, types.Complex)


def _line(
    context: Any, builder: Any, pieces: tuple[str | None, ...], values: list[tuple[Any, Any]]
) -> None:
    """Call printf once, and flush: what Python prints afterwards comes afterwards."""
    formats: list[str] = []
    operands: list[Any] = []
    left = iter(values)
    for piece in pieces:
        if piece is None:
            formats.append(_format(context, builder, *next(left), operands))
        else:
            formats.append(piece.replace("%", "%%"))
    module = builder.module
    text = context.insert_const_string(module, " ".join(formats) + "\n")
    printf = ir.FunctionType(_I32, [_I8P], var_arg=True)
    builder.call(cgutils.get_or_insert_function(module, printf, "printf"), [text, *operands])
    fflush = cgutils.get_or_insert_function(module, ir.FunctionType(_I32, [_I8P]), "fflush")
    builder.call(fflush, [ir.Constant(_I8P, None)])


def _format(context: Any, builder: Any, value: Any, kind: Any, operands: list[Any]) -> str:
    """C's format of a value; appends what printf is to be given for it."""
    if isinstance(kind, types.BaseTuple):
        parts = cgutils.unpack_tuple(builder, value, len(kind))
        inner = [_format(context, builder, p, k, operands)
                 for p, k in zip(parts, kind, strict=True)]  # fmt: skip
        return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"
    if isinstance(kind, types.Boolean):
        flag = context.cast(builder, value, kind, types.boolean)
        flag = builder.trunc(flag, ir.IntType(1)) if flag.type.width > 1 else flag
        yes, no = (context.insert_const_string(builder.module, w) for w in ("True", "False"))
        operands.append(builder.select(flag, yes, no))
        return "%s"
    if isinstance(kind, types.Float):
        operands.append(context.cast(builder, value, kind, types.float64))
        return "%f"
    wide = types.int64 if kind.signed else types.uint64
    operands.append(context.cast(builder, value, kind, wide))
    return "%lld" if kind.signed else "%llu"

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

_I8P, _I32, _I64 = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)


@functools.cache
def printer(pieces: tuple[str | None, ...]) -> Any:
    """A function that prints a line.

    Args:
        pieces: what is printed, from left to right: a text, or None for one of its arguments.
    """

    def typed(typing_context: Any, *given: Any) -> Any:
        kinds = [types.unliteral(k) for k in given]
        if not all(isinstance(k, types.Number | types.Boolean) for k in kinds):
            return None
        if any(isinstance(k, types.Complex) for k in kinds):
            return None

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _line(context, builder, pieces, list(zip(values, kinds, strict=True)))
            return context.get_dummy_value()

        return types.none(*given), codegen

    typed.__name__ = typed.__qualname__ = "print"
    return intrinsic(typed)


def _line(
    context: Any, builder: Any, pieces: tuple[str | None, ...], values: list[tuple[Any, Any]]
) -> None:
    """Call printf once, and flush: what Python prints afterwards comes afterwards."""
    formats, operands, left = [], [], iter(values)
    for piece in pieces:
        if piece is not None:
            formats.append(piece.replace("%", "%%"))
            continue
        value, kind = next(left)
        if isinstance(kind, types.Boolean):
            flag = context.cast(builder, value, kind, types.boolean)
            flag = builder.trunc(flag, ir.IntType(1)) if flag.type.width > 1 else flag
            yes, no = (context.insert_const_string(builder.module, w) for w in ("True", "False"))
            formats.append("%s")
            operands.append(builder.select(flag, yes, no))
        elif isinstance(kind, types.Float):
            formats.append("%f")
            operands.append(context.cast(builder, value, kind, types.float64))
        else:
            formats.append("%lld" if kind.signed else "%llu")
            wide = types.int64 if kind.signed else types.uint64
            operands.append(context.cast(builder, value, kind, wide))
    module = builder.module
    text = context.insert_const_string(module, " ".join(formats) + "\n")
    printf = ir.FunctionType(_I32, [_I8P], var_arg=True)
    builder.call(cgutils.get_or_insert_function(module, printf, "printf"), [text, *operands])
    fflush = cgutils.get_or_insert_function(module, ir.FunctionType(_I32, [_I8P]), "fflush")
    builder.call(fflush, [ir.Constant(_I8P, None)])

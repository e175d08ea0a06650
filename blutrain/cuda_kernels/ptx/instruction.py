"""How a PTX instruction becomes a function that kernels can call.

    commit = instruction("cp_async_commit", "cp.async.commit_group;", "~{memory}", types.void, ())

The statement is inline assembly: `$0`, `$1`... stand for the results, then the arguments, and the
constraints say in which kind of register each lives: `f` float32, `d` float64, `h` 16, `r` 32 and
`l` 64 bits, `=` before a result. `~{memory}` keeps other memory accesses on their side of it.

A result of several registers is a tuple. It stays in registers as long as kernels index it by
constants; a loop that LLVM does not unroll would put it into local memory, so longer tuples (the
accumulators of a warpgroup) are only handed from one instruction to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic


def instruction(
    name: str,
    text: str,
    constraints: str,
    result: Any,
    arguments: Sequence[Any],
    doc: str = "",
    pure: bool = False,
) -> Any:
    """A function for use inside kernels that is one statement of inline PTX.

    Args:
        name: its name, for error messages.
        text: the statement.
        constraints: LLVM's constraints for results and arguments.
        result: Numba type of the result: void, a scalar, or a UniTuple of scalars.
        arguments: Numba types of the arguments.
        doc: its docstring.
        pure: it depends on its arguments alone and does nothing else, so LLVM may move, merge or
            drop it.
    """

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        low = context.get_value_type
        if result == types.void:
            out = ir.VoidType()
        elif isinstance(result, types.UniTuple):
            out = ir.LiteralStructType([low(result.dtype)] * result.count)
        else:
            out = low(result)
        kind = ir.FunctionType(out, [low(t) for t in arguments])
        called = builder.call(ir.InlineAsm(kind, text, constraints, side_effect=not pure), values)
        if result == types.void:
            return context.get_dummy_value()
        if isinstance(result, types.UniTuple):
            parts = [builder.extract_value(called, i) for i in range(result.count)]
            return cgutils.pack_array(builder, parts)
        return called

    # Numba reads an intrinsic's arguments from its signature, so it needs one with their number.
    names = ", ".join(f"a{i}" for i in range(len(arguments)))
    scope = {"result": result, "arguments": tuple(arguments), "codegen": codegen}
    exec(f"def {name}(typing_context, {names}):\n    return result(*arguments), codegen\n", scope)
    function: Any = scope[name]
    function.__doc__ = doc
    made = intrinsic(function)
    # By which the CPU executor knows the instructions of a whole warp.
    made.ptx = (text, constraints, result, tuple(arguments))
    return made

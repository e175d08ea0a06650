"""Addresses as instructions take them: 64 bits, in shared memory 32, counted in its window."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

_i32, _i64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def shared_address(typing_context, array, index):
    """(array, index) → the address of array[index], an int32; the array is shared and 1-D."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind, index = signature.args[0], values[1]
        data = context.make_array(kind)(context, builder, value=values[0]).data
        place = builder.ptrtoint(builder.gep(data, [index]), _i64)
        to_shared = ir.InlineAsm(
            ir.FunctionType(_i64, [_i64]), "cvta.to.shared.u64 $0, $1;", "=l,l"
        )
        return builder.trunc(builder.call(to_shared, [place]), _i32)

    return types.int32(array, types.int64), codegen


@intrinsic
def global_address(typing_context, array):
    """(array) → the address of its first element, an int64; any array or half array."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        view = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=values[0])
        return builder.ptrtoint(view.data, _i64)

    return types.int64(array), codegen

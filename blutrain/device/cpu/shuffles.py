"""Shuffles by a constant, such as those of a warp's sum, as vector instructions.

What the 32 lanes of a warp give is one vector; what they get is a permutation of it that is known
when the kernel is compiled, one or two instructions on most processors. Reading the other lanes'
elements one by one would take longer than everything else in a kernel with one warp a row.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.device.cpu.arrays import DATA, stack_view
from blutrain.device.cpu.program import WARP

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def source_lane(kind: str, lane: int, k: int) -> int:
    """The lane whose value a shuffle by k gives to a lane."""
    if kind == "shfl_xor_sync":
        return (lane ^ k) & (WARP - 1)
    if kind == "shfl_down_sync":
        return lane + k if lane + k < WARP else lane
    if kind == "shfl_up_sync":
        return lane - k if lane >= k else lane
    return k & (WARP - 1)


@functools.cache
def permuted(kind: str, k: int, n_warps: int) -> Any:
    """A function of an array with an element a thread that gives what each thread gets."""

    def _permuted(typing_context: Any, given: Any) -> Any:
        lanes = [source_lane(kind, lane, k) for lane in range(WARP)]

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            element = context.get_data_type(given.dtype)
            vector = ir.VectorType(element, WARP)
            align = min(64, WARP * context.get_abi_sizeof(element))
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(vector, n_warps))
            memory.align = 64
            pointer = vector.as_pointer()
            source = builder.bitcast(builder.extract_value(values[0], DATA), pointer)
            target = builder.bitcast(memory, pointer)
            mask = ir.Constant(ir.VectorType(_I32, WARP), [_I32(lane) for lane in lanes])
            undefined = ir.Constant(vector, ir.Undefined)
            with cgutils.for_range(builder, _I64(n_warps)) as loop:
                loaded = builder.load(builder.gep(source, [loop.index]), align=align)
                result = builder.shuffle_vector(loaded, undefined, mask)
                builder.store(result, builder.gep(target, [loop.index]), align=align)
            n = _I64(n_warps * WARP)
            return stack_view(context, builder, types.Array(given.dtype, 1, "C"), memory, [n])

        return given(given), codegen

    return intrinsic(_permuted)

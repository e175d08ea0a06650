"""Sums of a tile that several blocks share: handed over through global memory. sm_90.

A warpgroup that multiplied only a part of a tile's K lays its sums down thread by thread, four
neighbouring ones of 128 threads side by side, so that every access is 16 bytes wide and coalesced;
one thread then raises a flag. Whoever stores the tile waits for the flag, adds the sums to its own
and lowers the flag again. A flag is raised by writing a number that no other launch uses, so flags
need not be cleared before a launch: what was in memory before is not that number.

The wait is for a block of the same launch: use it where all blocks of a grid run at the same time.

Source: PTX ISA 9.0, sections 8.9 (causality order: barriers are cumulative) and 9.7.9.8 (ld).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from blutrain.cuda_kernels.ptx.instruction import instruction

_f32, _i64 = ir.FloatType(), ir.IntType(64)
_QUAD_PITCH = 128 * 16  # bytes from one quad of a thread to its next

raise_flag = instruction(
    "raise_flag",
    "st.release.gpu.global.b64 [$0], $1;",
    "l,l,~{memory}",
    types.void,
    (types.int64, types.int64),
    doc="(flag, number): what the block did before is seen by those who see the number.",
)
await_flag = instruction(
    "await_flag",
    "{ .reg .pred other; .reg .b64 seen; again: ld.acquire.gpu.global.b64 seen, [$0]; "
    "setp.ne.s64 other, seen, $1; @other bra again; }",
    "l,l,~{memory}",
    types.void,
    (types.int64, types.int64),
    doc="(flag, number): wait until the flag holds the number.",
)


def partial_bytes(n: int) -> int:
    """Memory for a warpgroup's 64 × n sums."""
    return 64 * n * 4


@cache
def put_sums(n: int) -> Any:
    """A function (sums, place) that writes a warpgroup's 64 × n sums.

    `place` (int64) is the address of `partial_bytes(n)` bytes plus 16 times the thread's number in
    its warpgroup, a multiple of 16.
    """
    held = types.UniTuple(types.float32, n // 2)

    @intrinsic
    def put(typing_context, sums, place):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            sums, place = values
            kind = ir.FunctionType(ir.VoidType(), [_i64] + [_f32] * 4)
            for i in range(n // 8):
                text = f"st.global.cg.v4.f32 [$0 + {_QUAD_PITCH * i}], {{$1, $2, $3, $4}};"
                statement = ir.InlineAsm(kind, text, "l,f,f,f,f,~{memory}", side_effect=True)
                quad = [builder.extract_value(sums, 4 * i + j) for j in range(4)]
                builder.call(statement, [place, *quad])
            return context.get_dummy_value()

        return types.void(held, types.int64), codegen

    return put


@cache
def add_partial(n: int) -> Any:
    """A function (sums, place) → the sums plus those that `put_sums` left at `place`."""
    held = types.UniTuple(types.float32, n // 2)

    @intrinsic
    def add(typing_context, sums, place):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            sums, place = values
            quad = ir.LiteralStructType([_f32] * 4)
            kind = ir.FunctionType(quad, [_i64])
            total = []
            # Eight loads at a time: enough to hide one another's latency, few enough registers.
            for first in range(0, n // 8, 8):
                loaded = []
                for i in range(first, min(first + 8, n // 8)):
                    text = f"ld.global.cg.v4.f32 {{$0, $1, $2, $3}}, [$4 + {_QUAD_PITCH * i}];"
                    statement = ir.InlineAsm(kind, text, "=f,=f,=f,=f,l,~{memory}", True)
                    loaded.append(builder.call(statement, [place]))
                for i, part in enumerate(loaded, first):
                    for j in range(4):
                        own = builder.extract_value(sums, 4 * i + j)
                        total.append(builder.fadd(own, builder.extract_value(part, j)))
            return cgutils.pack_array(builder, total)

        return held(held, types.int64), codegen

    return add

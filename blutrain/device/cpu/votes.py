"""Votes and matches over an array with an element a thread, as LLVM code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.device.cpu.arrays import DATA

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _count(name: str, result: types.Type, finish: Callable[[Any, Any, Any], Any]) -> Any:
    """A function of a bool array and a number n over whose first n elements it counts."""

    def typed(typing_context: Any, flags: Any, n: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            data = builder.extract_value(values[0], DATA)
            total = cgutils.alloca_once_value(builder, _I64(0))
            with cgutils.for_range(builder, values[1]) as loop:
                flag = builder.load(builder.gep(data, [loop.index]))
                flag = builder.zext(builder.icmp_unsigned("!=", flag, flag.type(0)), _I64)
                builder.store(builder.add(builder.load(total), flag), total)
            return finish(builder, builder.load(total), values[1])

        return result(flags, types.int64), codegen

    typed.__name__ = typed.__qualname__ = f"_{name}"
    return intrinsic(typed)


def _widened(test: Any, builder: Any) -> Any:
    return builder.zext(test, _I32)


count_set = _count("count_set", types.int32, lambda b, total, n: b.trunc(total, _I32))
any_set = _count("any_set", types.boolean, lambda b, total, n: b.icmp_signed("!=", total, _I64(0)))
or_set = _count(
    "or_set", types.int32, lambda b, total, n: _widened(b.icmp_signed("!=", total, _I64(0)), b)
)
and_set = _count(
    "and_set", types.int32, lambda b, total, n: _widened(b.icmp_signed("==", total, n), b)
)


@intrinsic
def _ballot(typing_context: Any, flags: Any, warp: Any, n: Any) -> Any:
    """The flags of a warp as the bits of a uint32; there are n threads, a constant."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = builder.extract_value(values[0], DATA)
        first = builder.mul(values[1], _I64(32))
        bits = cgutils.alloca_once_value(builder, _I32(0))
        left = builder.sub(values[2], first)
        lanes = builder.select(builder.icmp_signed("<", left, _I64(32)), left, _I64(32))
        if values[2].constant % 32 == 0:
            lanes = _I64(32)
        with cgutils.for_range(builder, lanes) as loop:
            flag = builder.load(builder.gep(data, [builder.add(first, loop.index)]))
            flag = builder.zext(builder.icmp_unsigned("!=", flag, flag.type(0)), _I32)
            bit = builder.shl(flag, builder.trunc(loop.index, _I32))
            builder.store(builder.or_(builder.load(bits), bit), bits)
        return builder.load(bits)

    return types.uint32(flags, types.int64, types.int64), codegen


ballot = _ballot


@intrinsic
def _match(typing_context: Any, cells: Any, warp: Any, mine: Any, n: Any) -> Any:
    """Which lanes of a warp hold the bits of `mine`, as the bits of a uint32; n threads exist."""
    if not isinstance(cells, types.Array) or cells.dtype != types.unliteral(mine):
        return None

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = builder.extract_value(values[0], DATA)
        first = builder.mul(values[1], _I64(32))
        wanted = context.get_value_as_data(builder, cells.dtype, values[2])
        word = ir.IntType(8 if cells.dtype == types.boolean else cells.dtype.bitwidth)
        bits = cgutils.alloca_once_value(builder, _I32(0))
        with cgutils.for_range(builder, _I64(32)) as loop:
            thread = builder.add(first, loop.index)
            found = builder.load(builder.gep(data, [thread]))
            same = builder.icmp_unsigned(
                "==", builder.bitcast(found, word), builder.bitcast(wanted, word)
            )
            same = builder.and_(same, builder.icmp_signed("<", thread, values[3]))
            bit = builder.shl(builder.zext(same, _I32), builder.trunc(loop.index, _I32))
            builder.store(builder.or_(builder.load(bits), bit), bits)
        return builder.load(bits)

    return types.uint32(cells, types.int64, cells.dtype, types.int64), codegen


match = _match

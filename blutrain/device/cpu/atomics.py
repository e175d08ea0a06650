"""Atomics as LLVM code: a load, an operation, a store.

Blocks of a kernel that updates global memory atomically run one after another, and so do the
threads of a block: that is atomic then, and deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _element(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Address of `array[index]`."""
    array_type, index_type = kinds[:2]
    is_tuple = isinstance(index_type, types.BaseTuple)
    indices = cgutils.unpack_tuple(builder, values[1]) if is_tuple else [values[1]]
    index_types = list(index_type) if is_tuple else [index_type]
    indices = [
        context.cast(builder, v, t, types.intp) for v, t in zip(indices, index_types, strict=True)
    ]
    view = context.make_array(array_type)(context, builder, values[0])
    return cgutils.get_item_pointer(context, builder, array_type, view, indices, wraparound=True)


def _atomic(name: str, update: Callable[[Any, types.Type, Any, Any], Any]) -> Any:
    """`name(array, index, value)`: stores update(builder, dtype, old, value), returns old."""

    def typed(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
        if not isinstance(array, types.Array):
            return None
        dtype = array.dtype

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            place = _element(context, builder, signature.args, values)
            given = context.cast(builder, values[2], signature.args[2], dtype)
            old = builder.load(place)
            builder.store(update(builder, dtype, old, given), place)
            return old

        return dtype(array, index, value), codegen

    typed.__name__ = typed.__qualname__ = f"_atomic_{name}"
    return intrinsic(typed)


def _by_kind(
    floating: str, signed: str, unsigned: str
) -> Callable[[Any, types.Type, Any, Any], Any]:
    """An update that is one LLVM instruction, chosen by the element type."""

    def update(builder: Any, dtype: types.Type, old: Any, value: Any) -> Any:
        if isinstance(dtype, types.Float):
            return getattr(builder, floating)(old, value)
        return getattr(builder, signed if dtype.signed else unsigned)(old, value)

    return update


def _extreme(order: str, replace_nan: bool = False) -> Callable[[Any, types.Type, Any, Any], Any]:
    """Keep the larger (">") or smaller ("<") value; a NaN never replaces a number."""

    def update(builder: Any, dtype: types.Type, old: Any, value: Any) -> Any:
        if isinstance(dtype, types.Float):
            better = builder.fcmp_ordered(order, value, old)
            if replace_nan:
                better = builder.or_(better, builder.fcmp_unordered("uno", old, old))
        elif dtype.signed:
            better = builder.icmp_signed(order, value, old)
        else:
            better = builder.icmp_unsigned(order, value, old)
        return builder.select(better, value, old)

    return update


def _increment(builder: Any, dtype: types.Type, old: Any, limit: Any) -> Any:
    wraps = builder.icmp_unsigned(">=", old, limit)
    return builder.select(wraps, old.type(0), builder.add(old, old.type(1)))


def _decrement(builder: Any, dtype: types.Type, old: Any, limit: Any) -> Any:
    is_zero = builder.icmp_unsigned("==", old, old.type(0))
    wraps = builder.or_(is_zero, builder.icmp_unsigned(">", old, limit))
    return builder.select(wraps, limit, builder.sub(old, old.type(1)))


@intrinsic
def _atomic_cas(typing_context: Any, array: Any, index: Any, old: Any, value: Any) -> Any:
    """Store `value` where `old` stands; gives what stood there."""
    if not isinstance(array, types.Array):
        return None
    dtype = array.dtype

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _element(context, builder, signature.args, values)
        expected = context.cast(builder, values[2], signature.args[2], dtype)
        wanted = context.cast(builder, values[3], signature.args[3], dtype)
        found = builder.load(place)
        # Bits are compared, as the hardware does: a NaN equals itself.
        bits = ir.IntType(dtype.bitwidth)
        same = builder.icmp_unsigned(
            "==", builder.bitcast(found, bits), builder.bitcast(expected, bits)
        )
        builder.store(builder.select(same, wanted, found), place)
        return found

    return dtype(array, index, old, value), codegen


ATOMICS: dict[str, Any] = {
    "add": _atomic("add", _by_kind("fadd", "add", "add")),
    "sub": _atomic("sub", _by_kind("fsub", "sub", "sub")),
    "max": _atomic("max", _extreme(">")),
    "min": _atomic("min", _extreme("<")),
    "nanmax": _atomic("nanmax", _extreme(">", replace_nan=True)),
    "nanmin": _atomic("nanmin", _extreme("<", replace_nan=True)),
    "and_": _atomic("and", _by_kind("", "and_", "and_")),
    "or_": _atomic("or", _by_kind("", "or_", "or_")),
    "xor": _atomic("xor", _by_kind("", "xor", "xor")),
    "exch": _atomic("exch", lambda builder, dtype, old, value: value),
    "inc": _atomic("inc", _increment),
    "dec": _atomic("dec", _decrement),
    "cas": _atomic_cas,
    "compare_and_swap": _atomic_cas,
}

"""Operations that Python text cannot express, as LLVM code: arguments, stack arrays, atomics, bits.

Each is a Numba intrinsic, written straight into the one function that a kernel becomes: a separate
function would cost more to compile than all of its instructions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.device.half import HalfArray

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


# Arguments ---------------------------------------------------------------------------------------


def slot_count(kind: types.Type) -> int:
    """How many slots of eight bytes an argument takes (see `blutrain.device.arguments`)."""
    if isinstance(kind, types.BaseTuple):
        return sum(map(slot_count, kind))
    if isinstance(kind, types.NoneType):
        return 0
    if isinstance(kind, types.EnumMember):
        return slot_count(kind.dtype)
    ndim: int | None = getattr(kind, "ndim", None)
    if ndim is not None:
        return 5 + 2 * ndim
    return 2 if kind == types.complex128 else 1


@functools.cache
def argument(kind: types.Type, first: int) -> Any:
    """A function of the buffer's address that gives the argument whose slots start at `first`."""

    @intrinsic
    def read(typing_context: Any, slots: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return _from_slots(context, builder, kind, values[0], first)

        return kind(slots), codegen

    return read


def _from_slots(context: Any, builder: Any, kind: types.Type, slots: Any, first: int) -> Any:
    """The value of a type whose slots start at `first`."""

    def slot(k: int, llvm_type: Any) -> Any:
        address = builder.add(slots, _I64(8 * (first + k)))
        return builder.load(builder.inttoptr(address, llvm_type.as_pointer()), align=8)

    if isinstance(kind, types.NoneType):
        return context.get_dummy_value()
    if isinstance(kind, types.BaseTuple):
        elements = []
        for k in kind:
            elements.append(_from_slots(context, builder, k, slots, first))
            first += slot_count(k)
        return context.make_tuple(builder, kind, elements)
    if isinstance(kind, types.EnumMember):
        return _from_slots(context, builder, kind.dtype, slots, first)
    if isinstance(kind, types.Record):  # passed by address
        return slot(0, context.get_value_type(kind))
    if not hasattr(kind, "ndim"):
        stored = slot(0, context.get_data_type(kind))
        return context.data_model_manager[kind].from_data(builder, stored)
    llvm_type = context.get_value_type(kind)
    view = ir.Constant(llvm_type, ir.Undefined)
    for k in (0, 1):
        view = builder.insert_value(view, ir.Constant(llvm_type.elements[k], None), k)
    for k in (NITEMS, ITEMSIZE, DATA):
        view = builder.insert_value(view, slot(k, llvm_type.elements[k]), k)
    for axis in range(kind.ndim):
        view = builder.insert_value(view, slot(5 + axis, _I64), (SHAPE, axis))
        step = slot(5 + kind.ndim + axis, _I64)
        view = builder.insert_value(view, step, (STRIDES, axis))
    return view


# Arrays on the stack -----------------------------------------------------------------------------


# Fields of an array's struct; the two before them are for owned memory.
NITEMS, ITEMSIZE, DATA, SHAPE, STRIDES = range(2, 7)


def _array_kind(dtype: types.Type, ndim: int) -> tuple[types.Type, types.Type]:
    """The type of an array in shared or local memory, and the type of its elements there."""
    if dtype == types.float16:
        return HalfArray("float16", ndim, "C"), types.uint16
    return types.Array(dtype, ndim, "C"), dtype


def stack_view(
    context: Any, builder: Any, kind: types.Type, data: Any, shape: Sequence[Any]
) -> Any:
    """A C-ordered array struct over memory that nobody owns."""
    llvm_type = context.get_value_type(kind)
    stored = types.uint16 if isinstance(kind, HalfArray) else kind.dtype
    itemsize = context.get_abi_sizeof(context.get_data_type(stored))
    steps: list[Any] = []
    step: Any = _I64(itemsize)
    for extent in reversed(shape):
        steps.insert(0, step)
        constant = isinstance(step, ir.Constant) and isinstance(extent, ir.Constant)
        step = _I64(step.constant * extent.constant) if constant else builder.mul(step, extent)
    nitems = (
        builder.sdiv(step, _I64(itemsize))
        if not isinstance(step, ir.Constant)
        else _I64(step.constant // itemsize)
    )
    view = ir.Constant(llvm_type, ir.Undefined)
    fields = {NITEMS: nitems, ITEMSIZE: _I64(itemsize)}
    for k in (0, 1):
        fields[k] = ir.Constant(llvm_type.elements[k], None)
    fields[DATA] = builder.bitcast(data, llvm_type.elements[DATA])
    for k, value in fields.items():
        view = builder.insert_value(view, value, k)
    for k, (extent, step) in enumerate(zip(shape, steps, strict=True)):
        view = builder.insert_value(view, extent, (SHAPE, k))
        view = builder.insert_value(view, step, (STRIDES, k))
    return view


@functools.cache
def stack_array(shape: tuple[int, ...], dtype: types.Type) -> Any:
    """A function that gives an uninitialised array on the C stack.

    LLVM then knows that nothing else points into it. `cgutils.alloca_once` would also store zeros
    as one aggregate value, over which LLVM spends seconds when the array is large.
    """
    kind, dtype = _array_kind(dtype, len(shape))

    @intrinsic
    def make(typing_context: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            element = context.get_data_type(dtype)
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(element, int(np.prod(shape))))
            memory.align = 64
            return stack_view(context, builder, kind, memory, [_I64(n) for n in shape])

        return kind(), codegen

    return make


@functools.cache
def scratch_array(shape: tuple[int, ...], dtype: types.Type, offset: int) -> Any:
    """A function of the scratch memory's address that gives the array at `offset` in it."""
    kind, dtype = _array_kind(dtype, len(shape))

    @intrinsic
    def make(typing_context: Any, scratch: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            address = builder.add(values[0], _I64(offset))
            memory = builder.inttoptr(address, _I8.as_pointer())
            return stack_view(context, builder, kind, memory, [_I64(n) for n in shape])

        return kind(scratch), codegen

    return make


@functools.cache
def dynamic_array(dtype: types.Type) -> Any:
    """A function of the bytes of dynamic shared memory that gives them as an array of `dtype`."""
    kind, dtype = _array_kind(dtype, 1)

    @intrinsic
    def make(typing_context: Any, memory: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            itemsize = context.get_abi_sizeof(context.get_data_type(dtype))
            n_bytes = builder.extract_value(values[0], NITEMS)
            extent = builder.udiv(n_bytes, _I64(itemsize))
            data = builder.extract_value(values[0], DATA)
            return stack_view(context, builder, kind, data, [extent])

        return kind(memory), codegen

    return make


@intrinsic
def _dynamic_bytes(typing_context: Any, n: Any) -> Any:
    """`n` bytes on the C stack: dynamic shared memory."""
    kind = types.Array(types.uint8, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        memory = builder.alloca(_I8, size=values[0])
        memory.align = 64
        return stack_view(context, builder, kind, memory, [values[0]])

    return kind(types.int64), codegen


dynamic_bytes = _dynamic_bytes

# Atomics -----------------------------------------------------------------------------------------
# Blocks of a kernel that updates global memory atomically run one after another, and so do the
# threads of a block: a plain load, operation and store is atomic then, and deterministic.


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


# Integers as bits --------------------------------------------------------------------------------


def _bits(name: str, result: Any, operation: Callable[[Any, Any, Any], Any]) -> Any:
    """A function of an integer's bits."""

    def typed(typing_context: Any, x: Any) -> Any:
        if not isinstance(x, types.Integer):
            return None

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = operation(builder, values[0], values[0].type)
            returned = signature.return_type
            if value.type.width > returned.bitwidth:
                return builder.trunc(value, ir.IntType(returned.bitwidth))
            if value.type.width < returned.bitwidth:
                return builder.zext(value, ir.IntType(returned.bitwidth))
            return value

        return (result or x)(x), codegen

    typed.__name__ = typed.__qualname__ = f"_{name}"
    return intrinsic(typed)


def _find_first_set(builder: Any, x: Any, llvm_type: Any) -> Any:
    zeros = builder.cttz(x, ir.IntType(1)(0))
    is_zero = builder.icmp_unsigned("==", x, llvm_type(0))
    return builder.select(is_zero, llvm_type(0), builder.add(zeros, llvm_type(1)))


popc = _bits("popc", types.int32, lambda builder, x, t: builder.ctpop(x))
clz = _bits("clz", types.int32, lambda builder, x, t: builder.ctlz(x, ir.IntType(1)(0)))
ffs = _bits("ffs", types.int32, _find_first_set)
brev = _bits("brev", None, lambda builder, x, t: builder.bitreverse(x))


def _poison(name: str) -> Any:
    def typed(typing_context: Any, array: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            view = values[0]
            n = builder.extract_value(view, NITEMS)
            n_bytes = builder.mul(n, builder.extract_value(view, ITEMSIZE))
            data = builder.bitcast(builder.extract_value(view, DATA), _I8.as_pointer())
            cgutils.memset(builder, data, n_bytes, 0xFF)
            return context.get_dummy_value()

        return types.none(array), codegen

    typed.__name__ = typed.__qualname__ = name
    return intrinsic(typed)


# Fill an array with bits that are a NaN where it holds floats.
poison = _poison("_poison")

# Votes -------------------------------------------------------------------------------------------


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

# Indices -----------------------------------------------------------------------------------------


@intrinsic
def _unsigned(typing_context: Any, index: Any) -> Any:
    """An integer that is known to be non-negative, as an unsigned one."""
    given = types.unliteral(index)
    if not isinstance(given, types.Integer):
        # A float or a tuple that only looks like an integer: as it is, for Numba to judge.
        return given(given), lambda context, builder, signature, values: values[0]

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.cast(builder, values[0], given, types.intp)

    return types.uintp(given), codegen


unsigned = _unsigned

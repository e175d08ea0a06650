"""A kernel's arguments, read from packed slots, and its arrays on the stack, as LLVM code.

Each function is a Numba intrinsic, written straight into the one function that a kernel becomes: a
separate function would cost more to compile than all of its instructions.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.device.half import HalfArray

_I8, _I64 = ir.IntType(8), ir.IntType(64)


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

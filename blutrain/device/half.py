"""float16 and bfloat16 arrays in kernels: read as float32, rounded when written.

A kernel given a `HalfArray` never sees a 16-bit value: `x[i, j]` is a float32, and `x[i, j] = v`
rounds v to nearest, ties to even. So one kernel text serves float32, float64 and both halves.
Infinities stay, NaN stays NaN, and what is too large becomes infinity. A float64 is rounded once
(not first to float32 and then again); an integer goes by way of float32. Negative indices count
from the end, as in Numba's arrays; bounds are not checked. `cuda.atomic` is not offered.

The struct is that of Numba's `Array`, field for field, so both are packed by the same code
(`blutrain.device.arguments`). The type is registered with Numba's CPU target and with numba-cuda.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing import templates as cpu_templates
from numba.cuda import cudadecl
from numba.cuda.target import CUDATargetContext
from numba.cuda.typing import templates as cuda_templates
from numba.extending import lower_builtin, lower_getattr, models, register_model

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


class HalfArray(types.Type):
    """The Numba type of an array of 16-bit floats.

    Attributes:
        half: "float16" or "bfloat16".
        ndim: number of dimensions.
        layout: "C" when row-major and dense (strides are then not read), else "A".

    Example:
        >>> HalfArray("bfloat16", 2, "C")
        HalfArray(bfloat16, 2, C)
    """

    def __init__(self, half: str, ndim: int, layout: str) -> None:
        self.half, self.ndim, self.layout = half, ndim, layout
        super().__init__(name=f"HalfArray({half}, {ndim}, {layout})")


@register_model(HalfArray)
class _HalfArrayModel(models.StructModel):
    """The fields of Numba's own array model, over 16-bit words."""

    def __init__(self, dmm: Any, fe_type: HalfArray) -> None:
        extents = types.UniTuple(types.intp, fe_type.ndim)
        members = [
            ("meminfo", types.MemInfoPointer(types.uint16)),
            ("parent", types.pyobject),
            ("nitems", types.intp),
            ("itemsize", types.intp),
            ("data", types.CPointer(types.uint16)),
            ("shape", extents),
            ("strides", extents),
        ]
        super().__init__(dmm, fe_type, members)


# Conversions: LLVM in, LLVM out ------------------------------------------------------------------


def float32_of_float16(builder: Any, bits: Any) -> Any:
    """Every float16 is a float32."""
    return builder.fpext(builder.bitcast(bits, ir.HalfType()), _F32)


def float16_of_float32(builder: Any, value: Any) -> Any:
    """Round to nearest even."""
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _I16)


def float32_of_bfloat16(builder: Any, bits: Any) -> Any:
    """A bfloat16 is the upper half of a float32."""
    return builder.bitcast(builder.shl(builder.zext(bits, _I32), _I32(16)), _F32)


def bfloat16_of_float32(builder: Any, value: Any) -> Any:
    """Round to nearest even in integers: LLVM vectorises it on every processor."""
    bits = builder.bitcast(value, _I32)
    upper = builder.lshr(bits, _I32(16))
    odd = builder.and_(upper, _I32(1))
    rounded = builder.lshr(builder.add(builder.add(bits, _I32(0x7FFF)), odd), _I32(16))
    # An integer comparison: fastmath would delete one between floats that only asks for NaN.
    magnitude = builder.and_(bits, _I32(0x7FFFFFFF))
    is_nan = builder.icmp_unsigned(">", magnitude, _I32(0x7F800000))
    # Rounding could carry a NaN's payload into infinity; the quiet bit keeps it a NaN.
    quiet = builder.or_(upper, _I32(0x40))
    return builder.trunc(builder.select(is_nan, quiet, rounded), _I16)


def _bfloat16_of_float32_ptx(builder: Any, value: Any) -> Any:
    """One instruction from sm_80 on; libNVVM's dialect has no bfloat type to ask for it."""
    convert = ir.InlineAsm(ir.FunctionType(_I16, [_F32]), "cvt.rn.bf16.f32 $0, $1;", "=h,f")
    return builder.call(convert, [value])


def _float32_to_odd(builder: Any, value: Any) -> Any:
    """float64 to float32, towards zero and with the last bit set when inexact.

    Rounding that to 16 bits gives what rounding the float64 itself would (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums", theorem 1); rounding to nearest twice would not.
    """
    f64 = ir.DoubleType()
    nearest = builder.fptrunc(value, _F32)
    back = builder.fpext(nearest, f64)
    i64, low63 = ir.IntType(64), ir.IntType(64)((1 << 63) - 1)
    # Magnitudes of floats compare like the integers that their bits are.
    asked = builder.and_(builder.bitcast(value, i64), low63)
    given = builder.and_(builder.bitcast(back, i64), low63)
    too_large = builder.zext(builder.icmp_unsigned(">", given, asked), _I32)
    inexact = builder.zext(builder.icmp_unsigned("!=", given, asked), _I32)
    bits = builder.sub(builder.bitcast(nearest, _I32), too_large)
    return builder.bitcast(builder.or_(bits, inexact), _F32)


# Indexing ----------------------------------------------------------------------------------------


def _index_types(array: Any, index: Any) -> tuple[Any, ...] | None:
    """The types of an index's parts, or None when `array` is no half array so indexed."""
    if not isinstance(array, HalfArray):
        return None
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(parts) != array.ndim or not all(isinstance(p, types.Integer) for p in parts):
        return None
    return parts


def _element_pointer(
    context: Any, builder: Any, array_type: HalfArray, array: Any, index_type: Any, index: Any
) -> Any:
    """The address of one element."""
    view = context.make_helper(builder, array_type, value=array)
    is_tuple = isinstance(index_type, types.BaseTuple)
    kinds = tuple(index_type) if is_tuple else (index_type,)
    parts = cgutils.unpack_tuple(builder, index, len(kinds)) if is_tuple else [index]
    shape = cgutils.unpack_tuple(builder, view.shape, array_type.ndim)
    intp = context.get_value_type(types.intp)
    indices = []
    for kind, part, extent in zip(kinds, parts, shape, strict=True):
        i = context.cast(builder, part, kind, types.uintp if not kind.signed else types.intp)
        if kind.signed:
            below = builder.icmp_signed("<", i, intp(0))
            i = builder.select(below, builder.add(i, extent), i)
        indices.append(i)
    if array_type.layout == "C":
        offset = intp(0) if not indices else indices[0]
        for i, extent in zip(indices[1:], shape[1:], strict=True):
            offset = builder.add(builder.mul(offset, extent), i)
        return builder.gep(view.data, [offset])
    offset = intp(0)
    strides = cgutils.unpack_tuple(builder, view.strides, array_type.ndim)
    for i, step in zip(indices, strides, strict=True):
        offset = builder.add(offset, builder.mul(i, step))
    start = builder.bitcast(view.data, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(start, [offset]), _I16.as_pointer())


# Code: numba-cuda also takes what third parties lower through `numba.extending` ------------------


def _getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array_type, index_type = sig.args
    pointer = _element_pointer(context, builder, array_type, args[0], index_type, args[1])
    bits = builder.load(pointer, align=2)
    if array_type.half == "float16":
        return float32_of_float16(builder, bits)
    return float32_of_bfloat16(builder, bits)


def _setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array_type, index_type, value_type = sig.args
    value = _float32_to_odd(builder, args[2]) if value_type is types.float64 else args[2]
    if array_type.half == "float16":
        bits = float16_of_float32(builder, value)
    elif isinstance(context, CUDATargetContext):
        bits = _bfloat16_of_float32_ptx(builder, value)
    else:
        bits = bfloat16_of_float32(builder, value)
    pointer = _element_pointer(context, builder, array_type, args[0], index_type, args[1])
    builder.store(bits, pointer, align=2)
    return context.get_dummy_value()


for _index in (types.Integer, types.BaseTuple):
    lower_builtin(operator.getitem, HalfArray, _index)(_getitem)
    lower_builtin(operator.setitem, HalfArray, _index, types.Float)(_setitem)


@lower_builtin(len, HalfArray)
def _length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = context.make_helper(builder, sig.args[0], value=args[0])
    return builder.extract_value(view.shape, 0)


def _lower_field(attribute: str, member: str) -> None:
    @lower_getattr(HalfArray, attribute)
    def field(context: Any, builder: Any, array_type: HalfArray, array: Any) -> Any:
        return getattr(context.make_helper(builder, array_type, value=array), member)


for _attribute in ("shape", "strides", "itemsize"):
    _lower_field(_attribute, _attribute)
_lower_field("size", "nitems")


@lower_getattr(HalfArray, "ndim")
def _ndim(context: Any, builder: Any, array_type: HalfArray, array: Any) -> Any:
    return context.get_constant(types.intp, array_type.ndim)


# Types: each compiler has its own templates ------------------------------------------------------


def _register_typing(templates: Any, registry: Any) -> None:
    @registry.register_global(operator.getitem)
    class GetItem(templates.AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if _index_types(*args) is None:
                return None
            return templates.signature(types.float32, *args)

    @registry.register_global(operator.setitem)
    class SetItem(templates.AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            array, index, value = args
            real = isinstance(value, types.Float | types.Integer | types.Boolean)
            if not real or _index_types(array, index) is None:
                return None
            # Numba converts integers and bool to what the signature says.
            stored = value if value is types.float64 else types.float32
            return templates.signature(types.none, array, index, stored)

    @registry.register_global(len)
    class Length(templates.AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 1 and isinstance(args[0], HalfArray) and args[0].ndim:
                return templates.signature(types.intp, *args)
            return None

    @registry.register_attr
    class Attributes(templates.AttributeTemplate):
        key = HalfArray

        def resolve_shape(self, array: HalfArray) -> Any:
            return types.UniTuple(types.intp, array.ndim)

        def resolve_size(self, array: HalfArray) -> Any:
            return types.intp

        resolve_strides = resolve_shape
        resolve_ndim = resolve_itemsize = resolve_size


_register_typing(cpu_templates, cpu_templates.builtin_registry)
_register_typing(cuda_templates, cudadecl.registry)

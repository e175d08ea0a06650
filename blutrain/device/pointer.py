"""Arrays made inside a kernel from an address, on both targets.

A kernel that serves many tensors in one launch (an optimizer step over every parameter) cannot take
each tensor as an argument. It takes one table of addresses and sizes, an int64 tensor, and turns an
address into an array:

    param = array_at(table[tensor, 0], first, size, like)
    param[i] -= step

`like` is any array argument of the wanted element type: only its type counts, its elements are
never touched. A half type gives a `HalfArray`, which is read as float32 and rounded when written.

Building the array is a few register moves that LLVM removes: what is left is the load or the store.
Nothing checks the address. The table's maker answers for it, and keeps the tensors alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cuda.extending import lower_builtin as cuda_lower_builtin
from numba.cuda.extending import type_callable as cuda_type_callable
from numba.extending import intrinsic, overload

from blutrain.device.half import HalfArray


def array_at(address: int, first: int, size: int, like: Any) -> Any:
    """A window on elements `first` to `first + size` of an array, for use inside kernels.

    Args:
        address: address of the array's element 0 on the kernel's device, an integer.
        first: which element the window's element 0 is.
        size: number of elements of the window.
        like: an array whose element type the result has.
    """
    raise NotImplementedError("array_at: only compiled kernels can call it")


def _dense_type(like: types.Type) -> types.Type:
    """The type of a dense 1-D array with the elements of `like`."""
    if isinstance(like, HalfArray):
        return HalfArray(like.half, 1, "C")
    if isinstance(like, types.Array):
        return types.Array(like.dtype, 1, "C")
    raise TypeError(f"array_at: like must be an array, got {like}")


def _lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Fill the fields of an array struct; the same for both targets."""
    result = signature.return_type
    address, first, size = (
        context.cast(builder, value, kind, types.int64)
        for value, kind in zip(values[:3], signature.args[:3], strict=True)
    )
    array = cgutils.create_struct_proxy(result)(context, builder)
    pointer_type = array.data.type
    item = context.get_constant(types.intp, context.get_abi_sizeof(pointer_type.pointee))
    array.data = builder.gep(builder.inttoptr(address, pointer_type), [first])
    array.nitems = size
    array.itemsize = item
    array.shape = cgutils.pack_array(builder, [size])
    array.strides = cgutils.pack_array(builder, [item])
    array.meminfo = ir.Constant(array.meminfo.type, None)
    array.parent = ir.Constant(array.parent.type, None)
    return array._getvalue()


@overload(array_at, target="cpu", inline="never")
def _cpu_array_at(address, first, size, like):  # Numba compares the names with the lambda's
    return lambda address, first, size, like: _array_at_cpu(address, first, size, like)


@intrinsic
def _array_at_cpu(typing_context, address, first, size, like):  # Numba wants these very names
    return _dense_type(like)(types.int64, types.int64, types.int64, like), _lower


# On cuda an overload could return no array unless it is inlined, and Numba's pass after inlining
# drops the writes to an array that seems to be local. So there it is a function that Numba knows.
@cuda_type_callable(array_at)
def _type_array_at(context: Any) -> Any:
    def typer(address: types.Type, first: types.Type, size: types.Type, like: types.Type) -> Any:
        return _dense_type(like)

    return typer


cuda_lower_builtin(array_at, types.Integer, types.Integer, types.Integer, types.Any)(_lower)

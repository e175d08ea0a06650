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
from numba.cuda.extending import intrinsic as cuda_intrinsic
from numba.cuda.extending import overload as cuda_overload
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


def _array_at_intrinsic(
    typing_context: Any,
    address: types.Type,
    first: types.Type,
    size: types.Type,
    like: types.Type,
) -> Any:
    """Typing and lowering, the same for both targets: fill the fields of an array struct."""
    result = _dense_type(like)
    signature = result(types.int64, types.int64, types.int64, like)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address, first, size, _ = values
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

    return signature, lower


# The two targets keep separate registries, so the one definition is entered into both.
_array_at_cuda = cuda_intrinsic(_array_at_intrinsic)
_array_at_cpu = intrinsic(_array_at_intrinsic)


@cuda_overload(array_at, target="cuda", inline="always")
def _cuda_array_at(address, first, size, like):  # Numba compares the names
    return lambda address, first, size, like: _array_at_cuda(address, first, size, like)


@overload(array_at, target="cpu", inline="never")
def _cpu_array_at(address, first, size, like):  # with the lambda's
    return lambda address, first, size, like: _array_at_cpu(address, first, size, like)

"""Half arrays over NumPy memory inside `@njit` functions, for tests without a launcher."""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.device.half import HalfArray


def viewer(half: str, ndim: int, layout: str):
    """`view(address, shape, strides)`: a HalfArray over memory at an address."""
    array_type = HalfArray(half, ndim, layout)
    extents = types.UniTuple(types.int64, ndim)

    @intrinsic
    def view(typingctx, address, shape, strides):
        def codegen(context, builder, sig, args):
            out = context.make_helper(builder, array_type)
            out.data = builder.inttoptr(args[0], ir.IntType(16).as_pointer())
            out.shape, out.strides = args[1], args[2]
            size = ir.IntType(64)(1)
            for extent in cgutils.unpack_tuple(builder, args[1], ndim):
                size = builder.mul(size, extent)
            out.nitems, out.itemsize = size, ir.IntType(64)(2)
            return out._getvalue()

        return array_type(types.int64, extents, extents), codegen

    return view


def reader(half: str):
    """`read(bits)`: every 16-bit pattern of an array as the float32 that a kernel sees."""
    view = viewer(half, 1, "C")

    @njit
    def fill(address, n, out):
        x = view(address, (n,), (2,))
        for i in range(n):
            out[i] = x[i]

    def read(bits: np.ndarray) -> np.ndarray:
        out = np.empty(bits.size, np.float32)
        fill(bits.ctypes.data, bits.size, out)
        return out

    read.jitted = fill
    return read


def writer(half: str):
    """`write(values)`: the 16-bit patterns that a kernel stores for real values of any dtype."""
    view = viewer(half, 1, "C")

    @njit
    def fill(address, n, values):
        x = view(address, (n,), (2,))
        for i in range(n):
            x[i] = values[i]

    def write(values: np.ndarray) -> np.ndarray:
        out = np.empty(values.size, np.uint16)
        fill(out.ctypes.data, out.size, values)
        return out

    write.jitted = fill
    return write

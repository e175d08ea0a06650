"""Run a kernel on NumPy arrays, in one call."""

from __future__ import annotations

import enum
import struct
from typing import Any

import numpy as np
from numba import typeof, types
from numba.core.errors import NumbaError
from numba.np.numpy_support import from_dtype

from blutrain.device import arguments as packing
from blutrain.device.cpu.compile import compile_kernel
from blutrain.device.cpu.interpret.machine import Order
from blutrain.device.cpu.options import Options
from blutrain.device.geometry import block_of, check_shared, grid_of
from blutrain.device.half import HalfArray
from blutrain.errors import DTypeError, message


def run(
    kernel: Any,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *arguments: Any,
    shared: int = 0,
    options: Options | None = None,
    debug: bool = False,
    order: Order = "ascending",
) -> None:
    """Run a `@cuda.jit` kernel on the CPU and wait for it.

    Args:
        kernel: the kernel.
        grid: blocks, up to three extents.
        block: threads of a block, up to three extents.
        arguments: NumPy arrays and records, which the kernel reads and writes in place; scalars:
            Python's int, float and bool are int64, float32 and boolean, a NumPy scalar keeps its
            type; None; tuples of all these. A float16 array's elements are read as float32.
        shared: bytes of dynamic shared memory.
        options: how to compile.
        debug: run it thread by thread, and check for what CUDA leaves undefined: indices out of
            bounds, races, reads of uninitialised memory (see `blutrain.device.cpu.debug`).
        order: of threads and blocks in debug mode: "ascending", "reversed", or a seed.

    Raises:
        KernelError: the kernel, the grid or the block cannot run, or the kernel raised.
        DTypeError: an argument is of a type that no kernel takes.
    """
    where = f"kernel {getattr(kernel, '__name__', kernel)}"
    if debug:
        from blutrain.device.cpu.debug import check

        check(kernel, grid, block, *arguments, shared=shared, order=order)
        return
    grid3, block3 = grid_of(where, grid), block_of(where, block)
    check_shared(where, shared)
    kinds: list[types.Type] = []
    slots: list[np.ndarray[Any, Any]] = []
    for a in arguments:
        kind, packed = pack_argument(where, a)
        kinds.append(kind)
        slots.append(packed)
    buffer = np.concatenate(slots) if slots else np.zeros(1, np.int64)
    compiled = compile_kernel(kernel, block3, kinds, options)
    compiled.run(grid3, shared, buffer.ctypes.data)


def _element(where: str, array: np.ndarray[Any, Any]) -> types.Type:
    """The Numba type of an array's elements.

    Raises:
        DTypeError: no kernel takes such elements.
    """
    try:
        kind = from_dtype(array.dtype)
    except NumbaError:
        kind = types.pyobject
    if kind == types.pyobject:
        raise DTypeError(message(where, "no kernel takes an array of this dtype", array.dtype))
    return kind


def pack_argument(where: str, argument: Any) -> tuple[types.Type, np.ndarray[Any, Any]]:
    """The Numba type of an argument of a kernel, and its slots."""
    if isinstance(argument, np.ndarray):
        layout = "C" if argument.flags.c_contiguous else "A"
        if argument.dtype == np.float16:
            kind: types.Type = HalfArray("float16", argument.ndim, layout)
        else:
            aligned = argument.flags.aligned
            kind = types.Array(_element(where, argument), argument.ndim, layout, aligned=aligned)
        fields = [0, 0, argument.size, argument.itemsize, argument.ctypes.data]
        return kind, np.array([*fields, *argument.shape, *argument.strides], np.int64)
    if type(argument) in packing.SCALARS:
        key = packing.type_of(argument, where)
        try:
            packed = packing.slots([key]).pack(argument)
        except struct.error:
            raise DTypeError(message(where, "an int must fit into 64 bits", argument)) from None
        return packing.numba_type(key), np.frombuffer(packed, np.int64)
    if argument is None:
        return types.none, np.zeros(0, np.int64)
    if isinstance(argument, tuple):
        parts = [pack_argument(where, a) for a in argument]
        # Fields of a named tuple are found by name.
        named = type(argument) if hasattr(argument, "_fields") else None
        kind = types.BaseTuple.from_types([k for k, _ in parts], named)
        return kind, np.concatenate([np.zeros(0, np.int64), *(slots for _, slots in parts)])
    if isinstance(argument, enum.Enum):
        return typeof(argument), pack_argument(where, argument.value)[1]
    if isinstance(argument, np.float16):
        return pack_argument(where, np.float32(argument))
    if isinstance(argument, np.void):
        # A record is passed by address.
        address = np.array(argument, copy=False).ctypes.data
        return from_dtype(argument.dtype), np.array([address], np.int64)
    if isinstance(argument, complex | np.complexfloating | np.datetime64 | np.timedelta64):
        # Like a Python float, a Python complex has single precision.
        single = np.complex64 if type(argument) is complex else None
        value: np.ndarray[Any, Any] = np.asarray(argument, single)
        words = np.zeros(-(-value.nbytes // 8), np.int64)
        words.view(value.dtype)[0] = value
        return from_dtype(value.dtype), words
    raise DTypeError(
        message(where, "an argument must be a NumPy array or a scalar", type(argument).__name__)
    )

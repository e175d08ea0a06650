"""Launching kernels, the same call for both targets.

    launch(kernel, grid, block, x.array(), y.array(), 0.5)

The first launch of a kernel with new argument types and a new block makes a plan: the compiled
kernel and the layout of its arguments. A later one looks the plan up, packs the arguments into a
buffer that the plan keeps, and starts the kernel, so it costs microseconds.

On the cuda target a launch returns at once and everything happens in the order of the stream (see
`blutrain.device.stream`); on the cpu target the kernel has run when `launch` returns.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from blutrain.device.arguments import SCALARS, ArgumentType, numba_type, packer, slots, type_of
from blutrain.device.array import Array
from blutrain.device.geometry import MAX_SHARED, Dim, Dim3, block_of, check_shared, grid_of
from blutrain.device.stream import Stream, here
from blutrain.device.target import TARGET
from blutrain.errors import DTypeError, KernelError, message


class Launched(NamedTuple):
    """A kernel that was launched, and for what.

    Attributes:
        kernel: the `@cuda.jit` object.
        block: its block shape.
        types: the Numba types of its arguments.
    """

    kernel: Any
    block: Dim3
    types: tuple[Any, ...]


class Buffer:
    """Memory for one launch's packed arguments.

    Attributes:
        data: the slots, to pack into.
        address: where they are; the compiled kernel of the cpu target reads them there.
        parameters: a C array of pointers, one to every slot, as the CUDA driver wants it.
        argument: the address of `parameters`, converted once to what ctypes passes on.
    """

    __slots__ = ("_slots", "address", "argument", "data", "parameters")

    def __init__(self, layout: struct.Struct) -> None:
        n_slots = layout.size // 8
        self.data = bytearray(max(layout.size, 8))
        # Exporting the bytes pins them: a bytearray with a live export cannot be moved.
        self._slots = (ctypes.c_char * len(self.data)).from_buffer(self.data)
        self.address = ctypes.addressof(self._slots)
        addresses = [self.address + 8 * slot for slot in range(n_slots)]
        # The NULL behind them is for readers that do not know the kernel.
        self.parameters = (ctypes.c_void_p * (n_slots + 1))(*addresses)
        self.argument = ctypes.c_void_p.from_param(ctypes.addressof(self.parameters))


# What starts a compiled kernel: (grid, bytes of shared memory, stream handle, arguments).
Start = Callable[[Dim3, int, int, Buffer], None]


class _Plan:
    """All that a launch needs and that depends on the kernel, the block and the types alone."""

    __slots__ = ("free", "layout", "pack", "record", "start")

    def __init__(self, record: Launched, keys: Sequence[ArgumentType], start: Start) -> None:
        self.record = record
        self.layout = slots(keys)
        self.pack = packer(keys)
        self.start = start
        # Buffers not in use. A list's pop and append are atomic, so threads need no lock.
        self.free = [Buffer(self.layout)]


_plans: dict[tuple[Any, ...], _Plan] = {}
_recorders: list[dict[Launched, None]] = []

# What runs launches in place of compiled code while debug mode is on: a function of (kernel, grid,
# block, arguments, bytes of shared memory). See `blutrain.device.cpu.debug`.
Interpreter = Callable[[Any, Dim, Dim, tuple[Any, ...], int], None]
_interpreter: Interpreter | None = None


def launch(
    kernel: Any, grid: Dim, block: Dim, *args: Any, shared: int = 0, stream: Stream | None = None
) -> None:
    """Run a `@cuda.jit` kernel on the target.

    Args:
        kernel: what `numba.cuda.jit` returned; options such as `fastmath` are read from it.
        grid: blocks, as an int or up to three of them.
        block: threads a block, likewise.
        args: an `Array`, anything whose method `array()` returns one, or a scalar (int becomes
            int64, float float32; a NumPy scalar keeps its type).
        shared: bytes of dynamic shared memory a block.
        stream: where to queue it; the current stream when None.

    Raises:
        DTypeError: a kernel cannot take such an argument.
        KernelError: the kernel does not compile for these types, or the geometry is impossible.
        DeviceError: the driver refused.

    Example:
        >>> import numpy as np
        >>> from numba import cuda
        >>> from blutrain import dtypes
        >>> @cuda.jit
        ... def add_one(x):
        ...     i = cuda.grid(1)
        ...     if i < x.size:
        ...         x[i] += 1
        >>> from blutrain.device import copy_to_device, copy_to_host
        >>> from blutrain.memory import free, malloc
        >>> host, memory = np.zeros(3, np.int32), malloc(12)
        >>> copy_to_device(memory.pointer, host)
        >>> launch(add_one, 1, 32, Array(memory.pointer, (3,), (4,), dtypes.int32, "C"))
        >>> copy_to_host(host, memory.pointer)
        >>> host.tolist()
        [1, 1, 1]
        >>> free(memory)
    """
    if _interpreter is not None:
        return _interpreter(kernel, grid, block, args, shared)
    # The hot path: a key, a lookup, one call that packs, one that starts.
    key: list[Any] = [kernel, block]
    for a in args:
        kind = type(a)
        if kind is Array:
            key += (a.dtype, a.layout, len(a.shape))
        elif kind in SCALARS or not hasattr(a, "array"):
            key.append(kind)
        else:
            args = tuple(map(_as_argument, args))
            return launch(kernel, grid, block, *args, shared=shared, stream=stream)
    plan = _plans.get(tuple(key))
    if plan is None:
        plan = _plans[tuple(key)] = _make_plan(kernel, block, args)
    if type(grid) is not int or not 0 < grid <= 2147483647 or not 0 <= shared <= MAX_SHARED:
        grid3 = grid_of(_name(kernel), grid)
        check_shared(_name(kernel), shared)
    else:
        grid3 = (grid, 1, 1)
    if _recorders:
        for recorder in _recorders:
            recorder[plan.record] = None
    try:
        buffer = plan.free.pop()
    except IndexError:
        buffer = Buffer(plan.layout)
    try:
        plan.pack(buffer.data, *args)
        plan.start(grid3, shared, here.handle if stream is None else stream.handle, buffer)
    except (struct.error, OverflowError) as error:
        wrong = f"a scalar argument does not fit its type ({error})"
        raise DTypeError(message(_name(kernel), wrong)) from None
    finally:
        plan.free.append(buffer)
    return None


def interpret_with(interpreter: Interpreter | None) -> Interpreter | None:
    """Have launches run by a function from now on, or by compiled code; gives what was before."""
    global _interpreter
    before, _interpreter = _interpreter, interpreter
    return before


@contextmanager
def recording() -> Iterator[dict[Launched, None]]:
    """Note every kernel that is launched inside, with its block and argument types.

    The keys of the dict are `Launched` records in the order of their first launch, so that a test
    can compile for the GPU all that a suite ran on the processor.

    Example:
        >>> with recording() as launched:
        ...     pass
        >>> list(launched)
        []
    """
    recorder: dict[Launched, None] = {}
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)


def _as_argument(value: Any) -> Any:
    """What a tensor hands to a kernel; anything else as it is."""
    to_array = getattr(value, "array", None)
    return value if to_array is None else to_array()


def _make_plan(kernel: Any, block: Dim, args: Sequence[Any]) -> _Plan:
    """Check what will be checked once, and compile.

    Raises:
        DTypeError, KernelError: as `launch` says.
    """
    name = _name(kernel)
    if not hasattr(kernel, "py_func"):
        wrong = "kernel must be what numba.cuda.jit returns"
        raise KernelError(message("launch", wrong, type(kernel).__name__))
    block3 = block_of(name, block)
    keys = [type_of(a, name) for a in args]
    record = Launched(kernel, block3, tuple(numba_type(key) for key in keys))
    return _Plan(record, keys, _compile(record))


def _compile(record: Launched) -> Start:
    """The compiled kernel as something to start. Targets are imported when first needed."""
    if TARGET == "cuda":
        from blutrain.device.cuda.kernel import load_kernel

        return load_kernel(record.kernel, record.types).starter(record.block)
    from blutrain.device.cpu import compile_kernel

    run = compile_kernel(record.kernel, record.block, record.types).run

    def start(grid: Dim3, shared: int, stream: int, arguments: Buffer) -> None:
        if here.capture is None:
            run(grid, shared, arguments.address)
            return
        # The buffer serves the next launch; the graph needs its own.
        kept = ctypes.create_string_buffer(bytes(arguments.data), len(arguments.data))
        here.capture.add(lambda: run(grid, shared, ctypes.addressof(kept)))

    return start


def _name(kernel: Any) -> str:
    return str(getattr(kernel, "__name__", "launch"))

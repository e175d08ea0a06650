"""The CUDA driver: every call that blutrain makes of it, checked.

Straight from `libcuda.so.1` by ctypes: the functions used here have kept their C interface since
CUDA 11, one call costs about a microsecond, and Python's lock is released during it.

The context is the device's primary one, which Numba, PyTorch and the CUDA runtime use too, so
memory, streams and events can be passed between them. A thread gets it before its first call.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

from blutrain.device.cuda.prototypes import PROTOTYPES, c_pointer
from blutrain.errors import DeviceError, message

OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
INVALID_CONTEXT = 201
NOT_READY = 600

_CAPTURE_ADVICE = (
    "a graph can capture launches, fills and copies on the device in its own stream, but nothing "
    "that waits for the device or uses another stream: do that before or after the capture"
)
# What the driver calls these failures says little about what to do.
_ADVICE = {
    700: "run the kernel on the cpu target to find the index that is out of bounds "
    "(BLUTRAIN_DEVICE=cpu); this process cannot use the GPU any more",
    701: "launch fewer threads a block, or limit the kernel's registers",
    716: "align vector loads and stores; this process cannot use the GPU any more",
    719: "see the driver's log (dmesg); this process cannot use the GPU any more",
    222: "the driver is older than the toolkit that wrote the PTX: update it, or install the extra "
    "that fits it (blutrain[cu12])",
    900: _CAPTURE_ADVICE,
    901: _CAPTURE_ADVICE,
    906: _CAPTURE_ADVICE,
    218: "report this with the kernel: the driver does not accept its PTX",
}

_lock = threading.Lock()
DEVICE = 0  # the first that CUDA_VISIBLE_DEVICES leaves


class _Threads(threading.local):
    """What each thread knows by itself.

    Attributes:
        has_context: the thread was given the primary context.
        is_capturing: a stream notes the thread's work for a graph.
    """

    has_context = False
    is_capturing = False


threads = _Threads()


@functools.cache
def library() -> ctypes.CDLL:
    """The driver's library with the prototypes of all functions that are used.

    Raises:
        DeviceError: there is no driver.
    """
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        wrong = f"the NVIDIA driver cannot be loaded ({error})"
        raise DeviceError(message("cuda", wrong, do="set BLUTRAIN_DEVICE=cpu")) from None
    for name, arguments in PROTOTYPES.items():
        function = getattr(lib, name)
        function.argtypes = arguments
        function.restype = c_int
    return lib


@functools.cache
def context() -> int:
    """The device's primary context, retained for the life of the process."""
    with _lock:
        lib = library()
        check(lib.cuInit(0), "cuInit")
        handle = c_void_p()
        check(lib.cuDevicePrimaryCtxRetain(byref(handle), DEVICE), "cuDevicePrimaryCtxRetain")
        return int(handle.value or 0)


def enter_context() -> None:
    """Make the primary context that of the calling thread."""
    check(library().cuCtxSetCurrent(context()), "cuCtxSetCurrent")
    threads.has_context = True


def failure(status: int, where: str) -> DeviceError:
    """The error for a status that is not zero, with the driver's name and text for it."""
    name, text = c_char_p(), c_char_p()
    lib = library()
    lib.cuGetErrorName(status, byref(name))
    lib.cuGetErrorString(status, byref(text))
    known = f"{(name.value or b'an unknown error').decode()} ({status}): "
    known += (text.value or b"").decode()
    return DeviceError(message(where, f"the driver reported {known}", do=_ADVICE.get(status, "")))


def check(status: int, where: str) -> None:
    """Raise for a status that is not zero."""
    if status != 0:
        raise failure(status, where)


def try_call(name: str, *arguments: Any) -> int:
    """Call a function of the driver in the primary context and return its status."""
    function = getattr(library(), name)
    if not threads.has_context:
        enter_context()
    status: int = function(*arguments)
    if status in (INVALID_CONTEXT, NOT_INITIALIZED):  # another library took the context away
        enter_context()
        status = function(*arguments)
    return status


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver in the primary context.

    Raises:
        DeviceError: it failed, or something that ran before it did.
    """
    status = try_call(name, *arguments)
    if status != 0:
        raise failure(status, name)


# The device --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Properties:
    """What the device is and can do.

    Attributes:
        name: its marketing name.
        compute_capability: (major, minor).
        memory: bytes of global memory.
        n_multiprocessors: streaming multiprocessors.
        clock_hz: their highest clock.
        max_shared: bytes of shared memory that one block can have at most.
        driver: the driver's CUDA version, (major, minor).
    """

    name: str
    compute_capability: tuple[int, int]
    memory: int
    n_multiprocessors: int
    clock_hz: float
    max_shared: int
    driver: tuple[int, int]


def attribute(which: int) -> int:
    """A CUdevice_attribute of the device in use."""
    context()
    value = c_int()
    call("cuDeviceGetAttribute", byref(value), which, DEVICE)
    return value.value


@functools.cache
def properties() -> Properties:
    """The properties of the device in use."""
    context()
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, len(name), DEVICE)
    memory = c_size_t()
    call("cuDeviceTotalMem_v2", byref(memory), DEVICE)
    version = c_int()
    call("cuDriverGetVersion", byref(version))
    return Properties(
        name=name.value.decode(),
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        compute_capability=(attribute(75), attribute(76)),
        memory=memory.value,
        n_multiprocessors=attribute(16),  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        clock_hz=attribute(13) * 1e3,  # CU_DEVICE_ATTRIBUTE_CLOCK_RATE, in kHz
        max_shared=attribute(97),  # ..._MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        driver=(version.value // 1000, version.value % 1000 // 10),
    )


def synchronize() -> None:
    """Wait for all work of the context."""
    call("cuCtxSynchronize")


# Memory ------------------------------------------------------------------------------------------


def memory_info() -> tuple[int, int]:
    """(bytes that nobody uses, bytes in all) of the device's memory."""
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def allocate(nbytes: int) -> int | None:
    """The address of new device memory, or None when there is not so much."""
    pointer = c_pointer()
    status = try_call("cuMemAlloc_v2", byref(pointer), nbytes)
    if status == OUT_OF_MEMORY:
        return None
    check(status, "cuMemAlloc")
    return pointer.value


def release(pointer: int) -> None:
    """Free device memory, once all work that was given to the device before is done."""
    call("cuMemFree_v2", pointer)


def copy_host_to_device(destination: int, source: int, nbytes: int, stream: int = 0) -> None:
    """Copy, behind the stream's work; the source may be changed when this returns."""
    if stream == 0:
        call("cuMemcpyHtoD_v2", destination, source, nbytes)
    else:
        call("cuMemcpyHtoDAsync_v2", destination, source, nbytes, stream)
        synchronize_stream(stream)


def copy_device_to_host(destination: int, source: int, nbytes: int, stream: int = 0) -> None:
    """Copy, behind the stream's work; the bytes are there when this returns."""
    if stream == 0:
        call("cuMemcpyDtoH_v2", destination, source, nbytes)
    else:
        call("cuMemcpyDtoHAsync_v2", destination, source, nbytes, stream)
        synchronize_stream(stream)


def copy_device_to_device(destination: int, source: int, nbytes: int, stream: int = 0) -> None:
    """Copy, in the order of a stream."""
    call("cuMemcpyDtoDAsync_v2", destination, source, nbytes, stream)


def fill(pointer: int, byte: int, nbytes: int, stream: int = 0) -> None:
    """Set bytes, in the order of a stream."""
    call("cuMemsetD8Async", pointer, byte, nbytes, stream)


# Streams and events ------------------------------------------------------------------------------

_NON_BLOCKING, _WITHOUT_TIMING = 1, 2  # CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING


def create_stream(blocking: bool = True, priority: int = 0) -> int:
    """A stream; a blocking one and the default stream wait for each other's earlier work."""
    handle = c_void_p()
    flags = 0 if blocking else _NON_BLOCKING
    call("cuStreamCreateWithPriority", byref(handle), flags, priority)
    return int(handle.value or 0)


def priority_range() -> tuple[int, int]:
    """(lowest, highest) priority of a stream; the highest is the lower number, as in (0, -5)."""
    lowest, highest = c_int(), c_int()
    call("cuCtxGetStreamPriorityRange", byref(lowest), byref(highest))
    return lowest.value, highest.value


def destroy_stream(handle: int) -> None:
    """Destroy a stream, once its work is done; returns at once."""
    call("cuStreamDestroy_v2", handle)


def synchronize_stream(handle: int) -> None:
    """Wait for all work of a stream."""
    call("cuStreamSynchronize", handle)


def _is_done(name: str, handle: int) -> bool:
    status = try_call(name, handle)
    if status == NOT_READY:
        return False
    check(status, name)
    return True


def stream_is_idle(handle: int) -> bool:
    """Whether a stream has done all its work."""
    return _is_done("cuStreamQuery", handle)


def stream_wait(handle: int, event: int) -> None:
    """Let later work of a stream wait for an event."""
    call("cuStreamWaitEvent", handle, event, 0)


def create_event(timing: bool = True) -> int:
    """An event, which notes its time or costs less."""
    handle = c_void_p()
    call("cuEventCreate", byref(handle), 0 if timing else _WITHOUT_TIMING)
    return int(handle.value or 0)


def destroy_event(handle: int) -> None:
    """Destroy an event."""
    call("cuEventDestroy_v2", handle)


def record_event(event: int, stream: int) -> None:
    """Put an event behind the work of a stream."""
    call("cuEventRecord", event, stream)


def event_passed(event: int) -> bool:
    """Whether an event has happened."""
    return _is_done("cuEventQuery", event)


def synchronize_event(event: int) -> None:
    """Wait for an event."""
    call("cuEventSynchronize", event)


def elapsed_seconds(start: int, end: int) -> float:
    """The time between two events that have happened."""
    milliseconds = ctypes.c_float()
    call("cuEventElapsedTime", byref(milliseconds), start, end)
    return milliseconds.value / 1e3

"""Copies between host and device, and on the device, in the order of the current stream.

Addresses are plain ints, as the allocator gives them. A copy from or to the host is complete when
the call returns.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from blutrain.device.stream import here, refuse_in_capture
from blutrain.device.target import TARGET
from blutrain.errors import DeviceError, message


def copy_to_device(pointer: int, source: np.ndarray[Any, Any]) -> None:
    """Copy a host array, packed in row-major order, to `source.nbytes` bytes at `pointer`."""
    if source.nbytes == 0:
        return
    refuse_in_capture("copy_to_device")
    packed = np.ascontiguousarray(source)
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        driver.copy_host_to_device(pointer, packed.ctypes.data, packed.nbytes, here.handle)
    else:
        ctypes.memmove(pointer, packed.ctypes.data, packed.nbytes)


def copy_to_host(destination: np.ndarray[Any, Any], pointer: int) -> None:
    """Copy `destination.nbytes` bytes at `pointer` into a host array, in row-major order.

    Raises:
        DeviceError: the array is not contiguous, or cannot be written to.
    """
    if not destination.flags.c_contiguous or not destination.flags.writeable:
        wrong = "destination must be contiguous and writeable"
        raise DeviceError(message("copy_to_host", wrong, do="copy into a new array, then assign"))
    if destination.nbytes == 0:
        return
    refuse_in_capture("copy_to_host")
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        nbytes = destination.nbytes
        driver.copy_device_to_host(destination.ctypes.data, pointer, nbytes, here.handle)
    else:
        ctypes.memmove(destination.ctypes.data, pointer, destination.nbytes)


def copy_device(destination: int, source: int, nbytes: int) -> None:
    """Copy bytes from one place on the device to another; the two must not overlap."""
    if nbytes == 0:
        return
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        driver.copy_device_to_device(destination, source, nbytes, here.handle)
    elif here.capture is not None:
        here.capture.add(lambda: ctypes.memmove(destination, source, nbytes))
    else:
        ctypes.memmove(destination, source, nbytes)


def fill_bytes(pointer: int, byte: int, nbytes: int) -> None:
    """Set every one of `nbytes` bytes on the device to `byte` (0 to 255)."""
    if nbytes == 0:
        return
    if TARGET == "cuda":
        from blutrain.device.cuda import driver

        driver.fill(pointer, byte, nbytes, here.handle)
    elif here.capture is not None:
        here.capture.add(lambda: ctypes.memset(pointer, byte, nbytes))
    else:
        ctypes.memset(pointer, byte, nbytes)


class _Window:
    """Foreign memory, described as NumPy asks for it; `owner` lives as long as a view of it."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def host_view(
    pointer: int,
    shape: tuple[int, ...],
    strides_bytes: tuple[int, ...],
    dtype: Any,
    owner: object = None,
) -> np.ndarray[Any, Any]:
    """A NumPy array over the very memory of the cpu target.

    Args:
        pointer: address of the element at index zero.
        shape: extents.
        strides_bytes: steps in bytes; negative and zero ones too.
        dtype: NumPy dtype of the elements.
        owner: what must live as long as the view.

    Raises:
        DeviceError: the target is cuda, whose memory the host cannot read, or a capture is under
            way.
    """
    if TARGET != "cpu":
        do = "copy it with copy_to_host"
        raise DeviceError(message("host_view", "only the cpu target has host memory", TARGET, do))
    refuse_in_capture("host_view")
    dtype = np.dtype(dtype)
    if 0 in shape:
        # An empty array has no memory; its address may be null, which NumPy would refuse.
        return np.empty(shape, dtype)
    interface = {
        "version": 3,
        "data": (pointer, False),
        "shape": shape,
        "strides": strides_bytes,
        "typestr": dtype.str,
    }
    return np.asarray(_Window(interface, owner))

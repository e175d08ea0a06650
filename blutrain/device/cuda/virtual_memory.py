"""The driver's virtual memory: addresses, physical memory, and one mapped to the other.

    cuMemAddressReserve   a range of addresses
    cuMemCreate           physical memory of one device, a handle
    cuMemMap, cuMemSetAccess   the handle at an address, readable and writeable for the device
    cuMemUnmap, cuMemRelease, cuMemAddressFree   the way back

Source: CUDA Driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p

from blutrain.device.cuda import driver

_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_MINIMUM = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM
_SUPPORTED = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", c_ubyte),
        ("gpu_direct_rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("windows_handle", c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", c_int))


def _properties() -> _Properties:
    return _Properties(type=_PINNED, location=_Location(_ON_DEVICE, driver.DEVICE))


def supported() -> bool:
    """Whether the device can do this; every one of compute capability 8.0 on Linux can."""
    return driver.attribute(_SUPPORTED) == 1


@functools.cache
def granularity() -> int:
    """Sizes and addresses are multiples of this."""
    nbytes = c_size_t()
    properties = _properties()
    driver.call("cuMemGetAllocationGranularity", byref(nbytes), byref(properties), _MINIMUM)
    return nbytes.value


def reserve(nbytes: int) -> int | None:
    """The start of a new range of addresses; None when there are none left."""
    pointer = c_uint64()
    status = driver.try_call("cuMemAddressReserve", byref(pointer), nbytes, 0, 0, 0)
    if status == driver.OUT_OF_MEMORY:
        return None
    driver.check(status, "cuMemAddressReserve")
    return pointer.value


def release(pointer: int, nbytes: int) -> None:
    """Give back a range."""
    driver.call("cuMemAddressFree", pointer, nbytes)


def create(nbytes: int) -> int | None:
    """A handle of new physical memory; None when the device has no such room."""
    handle, properties = c_uint64(), _properties()
    status = driver.try_call("cuMemCreate", byref(handle), nbytes, byref(properties), 0)
    if status == driver.OUT_OF_MEMORY:
        return None
    driver.check(status, "cuMemCreate")
    return handle.value


def map_at(pointer: int, nbytes: int, handle: int) -> None:
    """Put the memory of a handle behind addresses, for the device to read and write."""
    driver.call("cuMemMap", pointer, nbytes, 0, handle, 0)
    access = _Access(_Location(_ON_DEVICE, driver.DEVICE), _READ_WRITE)
    driver.call("cuMemSetAccess", pointer, nbytes, byref(access), 1)


def unmap(pointer: int, nbytes: int, handle: int) -> None:
    """Take the memory of a handle from the addresses it was mapped at, and give it back."""
    driver.call("cuMemUnmap", pointer, nbytes)
    driver.call("cuMemRelease", handle)

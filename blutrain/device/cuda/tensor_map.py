"""Tensor maps: what the copy engine of sm_90 needs to know of a tensor, kept on the device.

A map is 128 bytes that the driver encodes from an address, extents, strides and a box. Kernels take
its address. Allocations come back at the same addresses step after step, so nearly every map that
is asked for was made before: the maps stay in a table in device memory, and a lookup is one dict
access. A new map is written there by a small kernel, in the order of the stream, or, while a graph
is captured, at once; kernels fence before their first use of it (`ptx.tma.tensor_map_acquire`).

A map is 128 bytes and is never dropped: a million different ones would be 128 MB.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

from numba import cuda

from blutrain import dtypes
from blutrain.device.array import Array
from blutrain.device.cuda import driver
from blutrain.errors import DeviceError, message

_WORDS = 16  # of 8 bytes
_TABLE_MAPS = 1024

# CUtensorMapDataType. TFLOAT32 rounds float32 to the nearest TF32 on its way to shared memory.
ELEMENT_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "tfloat32": 11}
_SWIZZLE_128 = 3  # CU_TENSOR_MAP_SWIZZLE_128B
_PROMOTE_256 = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B

_maps: dict[tuple[Any, ...], int] = {}
_free_places: list[int] = []
_tables: list[Any] = []


@cuda.jit
def write_tensor_map_kernel(
    place,  # (16,) where the map goes
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15,
):  # fmt: skip
    """One thread: store the map's 16 words."""
    place[0], place[1], place[2], place[3] = w0, w1, w2, w3
    place[4], place[5], place[6], place[7] = w4, w5, w6, w7
    place[8], place[9], place[10], place[11] = w8, w9, w10, w11
    place[12], place[13], place[14], place[15] = w12, w13, w14, w15


def tensor_map(
    pointer: int,
    element: str,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, int],
) -> int:
    """The device address of a map for boxes of (fast, slow) elements of a tensor.

    Args:
        pointer: address of the first element, a multiple of 16.
        element: a key of ELEMENT_TYPES.
        extents: of three to five dimensions, the fastest first.
        strides: bytes between neighbours along all but the fastest, multiples of 16.
        box: elements copied at a time along the first two dimensions, one along the others; the
            fast side is 128 bytes, in shared memory swizzled by 128 bytes.

    Raises:
        DeviceError: the driver cannot encode such a map.
    """
    key = (pointer, element, extents, strides, box)
    place = _maps.get(key)
    if place is None:
        place = _maps[key] = _write(_encode(*key))
    return place


@functools.cache
def _encoder() -> Any:
    function = driver.library()["cuTensorMapEncodeTiled"]
    function.restype = c_int
    function.argtypes = (
        c_void_p, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p,
        c_int, c_int, c_int, c_int,
    )  # fmt: skip
    return function


def _encode(
    pointer: int,
    element: str,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, int],
) -> tuple[int, ...]:
    """The 16 words of a map."""
    rank = len(extents)
    buffer = (c_uint64 * (_WORDS + 8))()
    # The driver wants the map at a multiple of 64 bytes.
    skip = -ctypes.addressof(buffer) % 64 // 8
    status = _encoder()(
        ctypes.addressof(buffer) + 8 * skip,
        ELEMENT_TYPES[element],
        rank,
        pointer,
        (c_uint64 * rank)(*extents),
        (c_uint64 * (rank - 1))(*strides),
        (c_uint32 * rank)(*box, *[1] * (rank - 2)),
        (c_uint32 * rank)(*[1] * rank),
        0,  # not interleaved
        _SWIZZLE_128,
        _PROMOTE_256,
        0,  # zeros outside
    )
    if status:
        given = f"pointer {pointer:#x}, {element}, extents {extents}, strides {strides}, box {box}"
        reason = f"the driver cannot make this map ({status})"
        raise DeviceError(message("tensor_map", reason, given))
    return tuple(buffer[skip : skip + _WORDS])


def _write(words: tuple[int, ...]) -> int:
    """Put a map into the table, after all work given to the stream so far."""
    # Both import what loads this module.
    from blutrain.device.graph import outside_capture
    from blutrain.device.launch import launch
    from blutrain.memory import malloc

    signed = [word - (1 << 64) if word >> 63 else word for word in words]
    with outside_capture():
        if not _free_places:
            table = malloc(8 * _WORDS * _TABLE_MAPS)
            _tables.append(table)
            _free_places.extend(table.pointer + 8 * _WORDS * i for i in range(_TABLE_MAPS))
        place = _free_places.pop()
        array = Array(place, (_WORDS,), (8,), dtypes.int64, "C")
        launch(write_tensor_map_kernel, 1, 1, array, *signed)
    return place

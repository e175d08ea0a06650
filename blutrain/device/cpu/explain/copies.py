"""Copies of a kernel's arrays, placed in memory as a GPU's allocator would place them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from blutrain.device.array import Array
from blutrain.device.transfer import copy_to_host

# cudaMalloc and blutrain's allocator align to at least so much, NumPy to 16 bytes.
ALIGNMENT = 512


class Copies:
    """Copies that are windows on the same memory where the originals are.

    A copy has the original's offset from the start of the array that owns the memory: the first
    element of `x[1:]` is as far from a sector's start as it would be on the device.

    Example:
        >>> x = np.arange(100, dtype=np.float32)
        >>> copies = Copies()
        >>> a, b = copies.of(x), copies.of(x[1:])
        >>> b[0] = 7
        >>> float(a[1]), float(x[1]), b.ctypes.data % 512
        (7.0, 1.0, 4)
    """

    def __init__(self) -> None:
        self._memory: dict[int, np.ndarray[Any, Any]] = {}

    def of(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy of one array."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        low, high = np.lib.array_utils.byte_bounds(owner)
        memory = self._memory.get(low)
        if memory is None:
            memory = self._memory[low] = _room(high - low)
            memory[:] = np.frombuffer(ctypes.string_at(low, high - low), np.uint8)
        offset = array.ctypes.data - low
        return np.ndarray(array.shape, array.dtype, memory, offset, array.strides)

    def of_device(self, array: Array) -> np.ndarray[Any, Any]:
        """A copy of an array on the device, of the dtype that its elements are stored in.

        It begins where its memory is aligned: the allocator gives nothing that is less.
        """
        low = array.pointer // ALIGNMENT * ALIGNMENT
        steps = zip(array.shape, array.strides, strict=True)
        last = sum((n - 1) * step for n, step in steps) if 0 not in array.shape else 0
        n_bytes = array.pointer - low + last + array.dtype.itemsize
        memory = self._memory.get(low)
        if memory is None or memory.size < n_bytes:
            memory = self._memory[low] = _room(n_bytes)
            if 0 not in array.shape:
                copy_to_host(memory[array.pointer - low :], array.pointer)
        offset = array.pointer - low
        return np.ndarray(array.shape, array.dtype.storage, memory, offset, array.strides)


def _room(n_bytes: int) -> np.ndarray[Any, Any]:
    """Bytes at an aligned address."""
    room = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + n_bytes]

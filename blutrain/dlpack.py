"""Exchanging memory with other libraries through DLPack, without a copy.

A DLPack capsule holds a C struct that names memory, a shape, strides and a dtype, and a function
that the receiver calls when it is done. Source: the DLPack specification, version 0 of the struct
(`DLManagedTensor`), which every library still takes; it has bfloat16, which NumPy lacks.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from blutrain import dtypes
from blutrain.device import TARGET, synchronize
from blutrain.dtypes import DType
from blutrain.errors import DeviceError, DTypeError, message
from blutrain.tensor import Storage, Tensor

CPU, CUDA, CUDA_HOST = 1, 2, 3
_CODES = {"i": 0, "u": 1, "f": 2}
_BFLOAT_CODE, _BOOL_CODE = 4, 6


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", _DLTensor),
        ("manager", ctypes.c_void_p),
        ("deleter", _Deleter),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_rename_capsule = ctypes.pythonapi.PyCapsule_SetName
_rename_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)

# What was lent out: key → (the struct and its arrays, the tensor), until the receiver is done.
_lent: dict[int, Any] = {}
_keys = itertools.count(1)
_NAME = b"dltensor"  # a capsule keeps the pointer to its name, so the name must stay alive
_USED = b"used_dltensor"


@_Deleter  # type: ignore[untyped-decorator]
def _give_back(address: int) -> None:
    managed = ctypes.cast(address, ctypes.POINTER(_DLManagedTensor)).contents
    _lent.pop(managed.manager or 0, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _capsule_dropped(capsule: int) -> None:
    # Nobody took the capsule: what it lent comes back with it.
    as_object = ctypes.cast(capsule, ctypes.py_object)
    if _is_capsule(as_object, _NAME):
        _give_back(_capsule_pointer(as_object, _NAME))


def export(t: Tensor) -> Any:
    """A DLPack capsule over the tensor's memory.

    Raises:
        DTypeError: the tensor requires a gradient, which would be lost.
    """
    if t.requires_grad:
        raise DTypeError(
            message("dlpack", "tensor must not require a gradient", do="pass tensor.detach()")
        )
    extents = (ctypes.c_int64 * max(t.ndim, 1))(*t.shape)
    strides = (ctypes.c_int64 * max(t.ndim, 1))(*t.strides)
    code = _CODES.get(t.dtype.kind, _BOOL_CODE)
    if t.dtype is dtypes.bfloat16:
        code = _BFLOAT_CODE
    key = next(_keys)
    managed = _DLManagedTensor(
        _DLTensor(
            t.pointer, CUDA if TARGET == "cuda" else CPU, 0, t.ndim, code, 8 * t.dtype.itemsize, 1,
            extents, strides, 0,
        ),
        key,
        _give_back,
    )  # fmt: skip
    _lent[key] = managed, extents, strides, t
    dropped = ctypes.cast(_capsule_dropped, ctypes.c_void_p)
    return _new_capsule(ctypes.addressof(managed), _NAME, dropped)


class _Borrowed:
    """Keeps another library's memory until our storage is gone."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __del__(self) -> None:
        managed = ctypes.cast(self.address, ctypes.POINTER(_DLManagedTensor)).contents
        if managed.deleter:
            managed.deleter(self.address)


def _dtype_of(code: int, bits: int, lanes: int) -> DType:
    if lanes == 1:
        if (code, bits) == (_BFLOAT_CODE, 16):
            return dtypes.bfloat16
        for d in dtypes.ALL:
            mine = _BOOL_CODE if d is dtypes.bool_ else _CODES.get(d.kind)
            if d is not dtypes.bfloat16 and (mine, 8 * d.itemsize) == (code, bits):
                return d
    got = f"type code {code}, {bits} bits, {lanes} lanes"
    raise DTypeError(message("from_dlpack", "the array must have a dtype of blutrain's", got))


def take(source: Any) -> Tensor:
    """A tensor over the memory of anything with `__dlpack__`, without a copy.

    Raises:
        DeviceError: the memory is not on the target.
        DTypeError: blutrain has no such dtype.
    """
    device, _ = source.__dlpack_device__()
    on_target = device == CUDA if TARGET == "cuda" else device in (CPU, CUDA_HOST)
    if not on_target:
        do = "copy it with bt.tensor(...)"
        raise DeviceError(
            message(
                "from_dlpack", f"the array must be on the {TARGET} target", f"device {device}", do
            )
        )
    # Ask the producer to be ready on the stream that kernels run on: the legacy default, 1.
    capsule = source.__dlpack__(stream=1) if TARGET == "cuda" else source.__dlpack__()
    address = _capsule_pointer(capsule, _NAME)
    _rename_capsule(capsule, _USED)
    owner = _Borrowed(address)
    d = ctypes.cast(address, ctypes.POINTER(_DLManagedTensor)).contents.tensor
    dtype = _dtype_of(d.code, d.bits, d.lanes)
    shape = tuple(d.shape[k] for k in range(d.ndim))
    strides = tuple(d.strides[k] for k in range(d.ndim)) if d.strides else None
    pointer = (d.data or 0) + d.byte_offset
    t = Tensor(Storage.borrowed(pointer, 0, owner), shape, strides, 0, dtype)
    t.storage.n_bytes = t.n_bytes
    return t


def ready(stream: Any) -> None:
    """Make sure that what was launched is done before another stream reads it."""
    if TARGET == "cuda" and stream not in (None, -1, 1):
        synchronize()

"""The C prototypes of the driver's functions that blutrain calls."""

from __future__ import annotations

from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_ulonglong,
    c_void_p,
)  # fmt: skip
from typing import Any

c_pointer = c_uint64  # CUdeviceptr

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_pointer), c_size_t),
    "cuMemFree_v2": (c_pointer,),
    "cuMemcpyHtoD_v2": (c_pointer, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_pointer, c_size_t),
    "cuMemcpyDtoD_v2": (c_pointer, c_pointer, c_size_t),
    "cuMemsetD8_v2": (c_pointer, c_ubyte, c_size_t),
    "cuMemcpyHtoDAsync_v2": (c_pointer, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_pointer, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_pointer, c_pointer, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_pointer, c_ubyte, c_size_t, c_void_p),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), c_void_p, c_int),
    "cuMemAddressReserve": (
        POINTER(c_pointer), c_size_t, c_size_t, c_pointer, c_uint64
    ),
    "cuMemAddressFree": (c_pointer, c_size_t),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, c_void_p, c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemMap": (c_pointer, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_pointer, c_size_t, c_void_p, c_size_t),
    "cuMemUnmap": (c_pointer, c_size_t),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "cuGraphGetNodes": (c_void_p, c_void_p, POINTER(c_size_t)),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamCreateWithPriority": (POINTER(c_void_p), c_uint, c_int),
    "cuCtxGetStreamPriorityRange": (POINTER(c_int), POINTER(c_int)),
    "cuStreamQuery": (c_void_p,),
    "cuEventQuery": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuModuleLoadDataEx": (
        POINTER(c_void_p), c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)
    ),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
}  # fmt: skip

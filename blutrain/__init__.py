"""blutrain: a deep-learning training framework whose every operation is a kernel you can read.

    import blutrain as bt

Tensors live on the target (a CUDA GPU, or the processor), operations on them are Numba `@cuda.jit`
kernels recorded on a tape, and `loss.backward()` runs the tape in reverse.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from blutrain import autograd, device, memory, random
from blutrain.autograd import (
    checkpoint,
    detect_anomaly,
    enable_grad,
    grad,
    gradcheck,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from blutrain.device import TARGET, launch, synchronize
from blutrain.device.graph import Graph, capture_graph
from blutrain.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote,
    uint8,
    uint16,
)
from blutrain.errors import (
    AutogradError,
    BlutrainError,
    CheckpointError,
    DataError,
    DeviceError,
    DTypeError,
    KernelError,
    OutOfMemoryError,
    ShapeError,
)
from blutrain.ops import *  # noqa: F403  (the functional API; ops.__all__ lists it)
from blutrain.precision import matmul_precision, set_matmul_precision, using_matmul_precision
from blutrain.random import manual_seed
from blutrain.tensor import Tensor

if TYPE_CHECKING:
    from blutrain.device.cpu.debug import debug
    from blutrain.device.cpu.explain import explain

__version__ = "0.1.0"

__all__ = [
    "TARGET", "AutogradError", "BlutrainError", "CheckpointError", "DType", "DTypeError",
    "DataError", "DeviceError", "Graph", "KernelError", "OutOfMemoryError", "ShapeError", "Tensor",
    "autograd", "bfloat16", "bool_", "capture_graph", "checkpoint", "debug", "detect_anomaly",
    "device", "enable_grad", "explain", "float16", "float32", "float64", "grad", "gradcheck",
    "int8", "int16", "int32", "int64", "is_grad_enabled", "launch", "manual_seed",
    "matmul_precision", "memory", "no_grad", "promote", "random", "set_grad_enabled",
    "set_matmul_precision", "synchronize", "uint8", "uint16", "using_matmul_precision",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`debug` and `explain`, loaded when first asked for: they bring the whole CPU executor."""
    if name not in ("debug", "explain"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"blutrain.device.cpu.{name}"), name)
    return found


if "BLUTRAIN_DEBUG" in os.environ:
    importlib.import_module("blutrain.device.cpu.debug")  # which reads it

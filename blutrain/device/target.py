"""Where kernels run: on the GPU ("cuda") or, compiled, on this machine's processor ("cpu").

Chosen once, when blutrain is imported: cuda when there is a driver and a GPU, else cpu.
`BLUTRAIN_DEVICE=cuda` or `=cpu` overrides it.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from blutrain.errors import DeviceError, message


def why_no_gpu() -> str:
    """What keeps the cuda target from being used, or "" when nothing does.

    Asks the driver itself: importing the CUDA bindings would cost a machine without a GPU time.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1 was not found)"
    status = driver.cuInit(0)
    if status != 0:
        return f"the NVIDIA driver did not start (cuInit returned {status})"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value < 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return "the driver sees no GPU" + (f" (CUDA_VISIBLE_DEVICES={visible})" if visible else "")
    return ""


def choose_target(asked: str) -> str:
    """The target for what `BLUTRAIN_DEVICE` says, "" meaning nothing.

    Raises:
        DeviceError: cuda was asked for and cannot be had, or the name means nothing.

    Example:
        >>> choose_target("cpu")
        'cpu'
    """
    if asked not in ("", "cuda", "cpu"):
        raise DeviceError(message("BLUTRAIN_DEVICE", "must be cuda or cpu", repr(asked)))
    if asked == "cpu":
        return "cpu"
    obstacle = why_no_gpu()
    if not obstacle:
        return "cuda"
    if asked == "cuda":
        do = "unset BLUTRAIN_DEVICE, or set it to cpu, to run on the processor"
        raise DeviceError(message("BLUTRAIN_DEVICE", f"cuda cannot be used: {obstacle}", do=do))
    return "cpu"


TARGET: Final[str] = choose_target(os.environ.get("BLUTRAIN_DEVICE", ""))

"""The device that kernels run on: launching, copying, ordering, and which one it is.

    from blutrain.device import TARGET, launch, synchronize

Only this package and `cuda_kernels` import Numba.
"""

from blutrain.device.launch import Launched, launch, recording
from blutrain.device.stream import Event, Stream, synchronize
from blutrain.device.target import TARGET
from blutrain.device.transfer import (
    copy_device,
    copy_to_device,
    copy_to_host,
    fill_bytes,
    host_view,
)

__all__ = [
    "TARGET",
    "Event",
    "Launched",
    "Stream",
    "copy_device",
    "copy_to_device",
    "copy_to_host",
    "fill_bytes",
    "host_view",
    "launch",
    "recording",
    "synchronize",
]

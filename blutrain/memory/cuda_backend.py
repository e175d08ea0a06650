"""Segments from the CUDA driver."""

from __future__ import annotations

from blutrain.device.cuda import driver


class CudaBackend:
    """Plain `cuMemAlloc` memory: aligned to 512 bytes, and an MPI can share it by IPC."""

    def reserve(self, nbytes: int) -> int | None:
        """The address of new device memory; None when the device has no such room."""
        return driver.allocate(nbytes)

    def release(self, pointer: int, nbytes: int) -> None:
        """Free it. The driver waits for the kernels that may still use it."""
        driver.release(pointer)

    def total(self) -> int:
        """The device's memory."""
        return driver.properties().memory

    def available(self) -> int:
        """What no program uses now."""
        return driver.memory_info()[0]

"""Memory and events from the CUDA driver."""

from __future__ import annotations

from blutrain.device.cuda import capture, driver, virtual_memory


class CudaBackend:
    """Plain `cuMemAlloc` memory: aligned to 512 bytes, and an MPI can share it by IPC."""

    def reserve(self, nbytes: int) -> int | None:
        """The address of new device memory; None when the device has no such room."""
        with capture.during_capture():
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


class CudaArena:
    """Ranges of device addresses and physical memory to map there."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    @property
    def granularity(self) -> int:
        """What the driver asks of this device's memory: 2 MiB on today's GPUs."""
        return virtual_memory.granularity()

    def total(self) -> int:
        """The device's memory."""
        return driver.properties().memory

    def reserve_addresses(self, nbytes: int) -> int | None:
        """The start of a new range; None when there are no addresses left."""
        with capture.during_capture():
            return virtual_memory.reserve(nbytes)

    def release_addresses(self, pointer: int, nbytes: int) -> None:
        """Give a range back."""
        virtual_memory.release(pointer, nbytes)

    def map(self, pointer: int, nbytes: int) -> bool:
        """Put memory there; False when the device has no such room."""
        with capture.during_capture():
            handle = virtual_memory.create(nbytes)
            if handle is None:
                return False
            self._handles[pointer] = handle
            virtual_memory.map_at(pointer, nbytes, handle)
        return True

    def unmap(self, pointer: int, nbytes: int) -> None:
        """Take memory from there and give it to the device."""
        virtual_memory.unmap(pointer, nbytes, self._handles.pop(pointer))

    def settle(self) -> None:
        """Wait for all work of the context."""
        driver.synchronize()


class CudaEvents:
    """Events without timing, used again and again."""

    def __init__(self) -> None:
        self._unused: list[int] = []

    def record(self, stream: int) -> int:
        """An event behind all work of the stream."""
        event = self._unused.pop() if self._unused else driver.create_event(timing=False)
        driver.record_event(event, stream)
        return event

    def passed(self, event: int) -> bool:
        """Whether the stream has come to it."""
        return driver.event_passed(event)

    def wait(self, event: int) -> None:
        """Return when the stream has come to it."""
        driver.synchronize_event(event)

    def recycle(self, event: int) -> None:
        """Keep it for the next record."""
        self._unused.append(event)

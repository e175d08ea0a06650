"""blutrain's allocator as Numba's memory manager, so that `cuda.device_array` uses it too.

Numba's arrays count in `memory_allocated`, and its freed memory is cached like ours. They come from
plain segments, so that Numba can share them with other processes (`get_ipc_handle`). It applies to
contexts that Numba opens after blutrain was imported.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from numba import cuda

from blutrain.device.cuda import driver


def install(malloc: Callable[[int], Any], free: Callable[[Any], None]) -> None:
    """Let Numba allocate device memory with `malloc`, whose blocks have a `pointer`."""
    bases: tuple[Any, ...] = (cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager)

    class BlutrainMemoryManager(*bases):  # type: ignore[misc]
        """Device memory from blutrain; pinned and mapped host memory stay Numba's own."""

        def memalloc(self, size: int) -> Any:
            block = malloc(size)
            return cuda.MemoryPointer(
                weakref.proxy(self.context),
                ctypes.c_void_p(block.pointer),
                size,
                finalizer=lambda: free(block),
            )

        def initialize(self) -> None:
            # Numba's own queue of freed host memory is emptied when it exceeds a share of this.
            if not self.deallocations.memory_capacity:
                self.deallocations.memory_capacity = self.get_memory_info().total

        def get_memory_info(self) -> Any:
            free_bytes, total = driver.memory_info()
            return cuda.MemoryInfo(free=free_bytes, total=total)

        @property
        def interface_version(self) -> int:
            return 1

    cuda.set_memory_manager(BlutrainMemoryManager)

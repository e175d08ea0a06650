"""Loading compiled kernels into the driver and starting them."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_void_p
from typing import TYPE_CHECKING, Any

from blutrain.device.cuda import capture, driver
from blutrain.device.cuda.compile import ComputeCapability, Ptx, compile_kernel
from blutrain.errors import DeviceError, KernelError, message

if TYPE_CHECKING:
    from blutrain.device.geometry import Dim3
    from blutrain.device.launch import Buffer, Start

# CUfunction_attribute.
_MAX_THREADS, _STATIC_SHARED, _LOCAL_BYTES, _REGISTERS = 0, 1, 3, 4
_MAX_DYNAMIC_SHARED, _CARVEOUT = 8, 9
# CUjit_option.
_JIT_MAX_REGISTERS, _JIT_ERROR_LOG, _JIT_ERROR_LOG_SIZE = 0, 5, 6

# A kernel may have this much shared memory without asking.
_SHARED_WITHOUT_ASKING = 48 << 10


class LoadedKernel:
    """A kernel for certain argument types, in the driver.

    Attributes:
        name: the kernel's name.
        handle: the driver's function.
        n_registers: registers a thread.
        local_bytes: bytes of local memory a thread: spills and arrays.
        static_shared: bytes of shared memory that the kernel's text declares.
        max_threads: most threads a block can have.
    """

    def __init__(self, name: str, ptx: Ptx, options: dict[str, Any]) -> None:
        self.name = name
        self.handle = _load(name, ptx, options.get("max_registers"))
        self.n_registers = self._attribute(_REGISTERS)
        self.local_bytes = self._attribute(_LOCAL_BYTES)
        self.static_shared = self._attribute(_STATIC_SHARED)
        self.max_threads = self._attribute(_MAX_THREADS)
        self._dynamic_shared = max(0, _SHARED_WITHOUT_ASKING - self.static_shared)
        carveout = options.get("shared_memory_carveout")
        if carveout is not None:
            self._set_attribute(_CARVEOUT, _carveout_percent(carveout))

    def starter(self, block: Dim3) -> Start:
        """What starts the kernel with blocks of this shape.

        Raises:
            KernelError: the kernel needs too many registers for that many threads.
        """
        block_x, block_y, block_z = block
        threads = block_x * block_y * block_z
        if threads > self.max_threads:
            wrong = f"block must have at most {self.max_threads} threads for this kernel, which "
            wrong += f"takes {self.n_registers} registers a thread"
            do = "use smaller blocks, or @cuda.jit(max_registers=...)"
            raise KernelError(message(self.name, wrong, threads, do))
        # Taken from the library anew, the function has no prototype: ctypes then passes an int as a
        # C int, which every one here fits, and saves 0.6 of 1.1 microseconds of converting. What
        # `from_param` made is passed on as it is.
        launch_kernel = driver.library()["cuLaunchKernel"]
        function = c_void_p.from_param(self.handle)
        of_thread = driver.threads

        def start(grid: Dim3, shared: int, stream: int, arguments: Buffer) -> None:
            if shared > self._dynamic_shared:
                self._allow_shared(shared)
            grid_x, grid_y, grid_z = grid
            queue = c_void_p(stream) if stream else None
            if not of_thread.has_context:
                driver.enter_context()
            status = launch_kernel(
                function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                shared, queue, arguments.argument, None,
            )  # fmt: skip
            if status == driver.INVALID_CONTEXT:  # another library took the context away
                driver.enter_context()
                status = launch_kernel(
                    function, *grid, *block, shared, queue, arguments.argument, None
                )
            if status:
                raise driver.failure(status, self.name)

        return start

    def _allow_shared(self, nbytes: int) -> None:
        """Ask for more dynamic shared memory than every kernel has.

        Raises:
            KernelError: no block of this device can have so much.
        """
        most = driver.properties().max_shared - self.static_shared
        if nbytes > most:
            wrong = f"shared must be at most {most} bytes on this device"
            if self.static_shared:
                wrong += f", beside {self.static_shared} bytes of shared arrays"
            raise KernelError(message(self.name, wrong, nbytes))
        self._set_attribute(_MAX_DYNAMIC_SHARED, nbytes)
        self._dynamic_shared = nbytes

    def _attribute(self, which: int) -> int:
        value = c_int()
        driver.call("cuFuncGetAttribute", byref(value), which, self.handle)
        return value.value

    def _set_attribute(self, which: int, value: int) -> None:
        driver.call("cuFuncSetAttribute", self.handle, which, value)


def _carveout_percent(asked: str | int) -> int:
    """What `cuda.jit(shared_memory_carveout=...)` means to the driver."""
    names = {"default": -1, "maxl1": 0, "maxshared": 100}
    return asked if isinstance(asked, int) else names[asked.lower()]


def _load(name: str, ptx: Ptx, max_registers: int | None) -> int:
    """Let the driver assemble PTX for the device, and find the kernel in it.

    Raises:
        DeviceError: the driver does not accept it; its own log says why.
    """
    log = ctypes.create_string_buffer(8192)
    options = [_JIT_ERROR_LOG, _JIT_ERROR_LOG_SIZE]
    values: list[int] = [ctypes.addressof(log), len(log)]
    if max_registers:
        options.append(_JIT_MAX_REGISTERS)
        values.append(max_registers)
    module = c_void_p()
    status = driver.try_call(
        "cuModuleLoadDataEx",
        byref(module),
        ptx.text.encode(),
        len(options),
        (c_int * len(options))(*options),
        (c_void_p * len(values))(*values),
    )
    if status:
        said = " ".join(log.value.decode(errors="replace").split())
        error = driver.failure(status, f"{name}: cuModuleLoadDataEx")
        raise DeviceError(f"{error}; the driver's log: {said or 'empty'}")
    function = c_void_p()
    driver.call("cuModuleGetFunction", byref(function), module, ptx.entry.encode())
    return int(function.value or 0)


@functools.cache
def load_kernel(kernel: Any, argument_types: tuple[Any, ...]) -> LoadedKernel:
    """Compile a kernel for the device in use and load it; the same one each time.

    Raises:
        KernelError: it does not compile.
        DeviceError: the driver does not accept it.
    """
    cc: ComputeCapability = driver.properties().compute_capability
    # The instructions of one architecture alone (wgmma) count as a target of their own. What is
    # compiled here runs on this device only, so nothing is lost by naming it.
    if cc == (9, 0):
        cc = (9, 0, "a")
    ptx = compile_kernel(kernel, argument_types, cc)
    with capture.during_capture():
        return LoadedKernel(kernel.__name__, ptx, kernel.targetoptions)

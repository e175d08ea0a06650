"""numba-cuda's host side for a machine without a GPU: its kernels run on the CPU executor.

`install()` replaces what needs a driver (device arrays, streams, the device's properties, launches)
by NumPy arrays and `blutrain.device.cpu.run`. Kernels themselves are left as they are.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import linecache
import subprocess
import sys
import types as python_types
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import cuda, types
from numba.core import errors
from numba.cuda import api, dispatcher
from numba.cuda import args as arguments
from numba.cuda.cudadrv import devicearray, devices, driver
from numba.cuda.memory_management.nrt import rtsys
from numba.np.numpy_support import as_dtype

from blutrain.device import cpu
from blutrain.device.cpu.signatures import TypingError
from blutrain.device.half import HalfArray
from blutrain.errors import KernelError

COMPUTE_CAPABILITY = (9, 0)
_FORALL_BLOCK = 128
_texts = itertools.count()


class DeviceArray(np.ndarray):
    """A NumPy array with the methods of numba-cuda's device arrays."""

    stream = 0

    def split(self, section: int, stream: Any = 0) -> Iterator[DeviceArray]:
        """Its parts of so many elements."""
        return (self[k : k + section] for k in range(0, len(self), section))

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """A copy, in `ary` if that is given."""
        if ary is None:
            return np.array(self, order="K", subok=False)
        ary[...] = np.asarray(self).reshape(ary.shape)
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Take another array's values."""
        self[...] = np.asarray(ary)

    def is_c_contiguous(self) -> bool:
        """Whether elements lie in C order."""
        return bool(self.flags.c_contiguous)

    def bind(self, stream: Any = 0) -> DeviceArray:
        """Itself: there are no streams."""
        return self

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.__array_interface__, "stream": None}

    @property
    def gpu_data(self) -> Any:
        """Where its memory is."""
        return python_types.SimpleNamespace(device_pointer=self.ctypes.data)

    @property
    def alloc_size(self) -> int:
        """Bytes."""
        return int(self.nbytes)


class _Quiet:
    """A stream, an event, a context: every method of it does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: None

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[_Quiet]:
        """Nothing to wait for."""
        yield self


class _Stream(int):
    """The default stream, whatever was asked for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[_Stream]:
        """Nothing to wait for."""
        yield self


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
    """A copy of an array as a device array, or `to` filled with it."""
    if to is not None:
        to[...] = obj
        return to
    made = np.array(obj, order="K").view(DeviceArray)
    return made if copy else np.empty_like(made)


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0
) -> Any:
    """An uninitialised device array."""
    dtype = as_dtype(dtype) if isinstance(dtype, types.Type) else dtype
    if strides is not None:
        made = np.ndarray(shape, dtype, strides=strides)
        return made.view(DeviceArray)
    return np.empty(shape, dtype, order=order).view(DeviceArray)


def device_array_like(ary: Any, stream: Any = 0) -> Any:
    """An uninitialised device array with the shape and order of another."""
    return np.empty_like(np.asarray(ary)).view(DeviceArray)


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> Any:
    """Memory of the host."""
    return np.empty(shape, dtype, order=order)


@contextlib.contextmanager
def _mapped(*arrays: Any, **options: Any) -> Iterator[Any]:
    yield arrays[0] if len(arrays) == 1 else arrays


def launch(self: Any, args: tuple[Any, ...], config: Any) -> None:
    """Stands for `CUDADispatcher.call`: run the kernel on the CPU."""
    retrieve: list[Any] = []
    signature = getattr(self, "signature_on_cpu", None) or [None] * len(args)
    given = []
    for value, kind in zip(args, signature, strict=len(signature) == len(args)):
        for extension in reversed(self.targetoptions.get("extensions") or []):
            _, value = extension.prepare_args(kind, value, stream=0, retr=retrieve)
        given.append(_argument(value, kind))
    grid, block = tuple(config.griddim), tuple(config.blockdim)
    try:
        cpu.run(self, grid, block, *given, shared=config.sharedmem)
    except KernelError as error:
        # What the kernel itself raised, numba-cuda raises when debugging and ignores otherwise.
        if error.__cause__ is None or isinstance(error.__cause__, TypingError):
            raise
        if self.targetoptions.get("debug"):
            raise error.__cause__ from None
    for back in retrieve:
        back()


def _argument(value: Any, kind: types.Type | None) -> Any:
    """A value as the kernel takes it: Numba's types for Python's numbers, or the signature's."""
    if hasattr(value, "__cuda_array_interface__") and not isinstance(value, np.ndarray):
        value = _of_interface(value.__cuda_array_interface__)
    if isinstance(value, dispatcher.CUDADispatcher) or value is None:
        return value
    if isinstance(value, arguments.ArgHint):  # cuda.In, cuda.Out, cuda.InOut
        # What is only given is not written back.
        value = np.copy(value.value)[()] if type(value) is arguments.In else value.value
    if isinstance(kind, types.Number | types.Boolean) and not isinstance(value, np.ndarray):
        dtype = as_dtype(kind)
        return np.asarray(value).astype(dtype, casting="unsafe")[()]
    if isinstance(value, float):
        return np.float64(value)
    if type(value) is complex:
        return np.complex128(value)
    if isinstance(value, tuple):
        parts = [_argument(v, None) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _of_interface(interface: dict[str, Any]) -> Any:
    """The memory that another library's array offers, which here is the host's."""
    return np.asarray(python_types.SimpleNamespace(__array_interface__={**interface, "version": 3}))


def _as_packed(kind: types.Type) -> types.Type:
    """The type as which `cpu.run` passes a float16; any other as it is."""
    if isinstance(kind, types.Array) and kind.dtype == types.float16:
        return HalfArray("float16", kind.ndim, "A")
    return types.float32 if kind == types.float16 else kind


def _compile(self: Any, signature: Any) -> Any:
    """Stands for compilation at decoration, for the types of the launches to come."""
    self.signature_on_cpu = given = list(getattr(signature, "args", signature))
    kinds = [_as_packed(kind) for kind in given]
    try:
        cpu.compile_kernel(self, (32, 1, 1), kinds)
    except KernelError as error:
        raise errors.TypingError(str(error)) from error


def _forall(self: Any, *args: Any) -> None:
    if self.ntasks == 0:
        return
    block = self.thread_per_block or _FORALL_BLOCK
    self.dispatcher[-(-self.ntasks // block), block, self.stream, self.sharedmem](*args)


def _without_filecheck() -> None:
    """Let numba-cuda's test classes be imported where the tool that reads LLVM code is missing."""
    if importlib.util.find_spec("filecheck") is None:
        needs = {"matcher": "Matcher", "options": "Options", "parser": "Parser", "finput": "FInput"}
        for module, name in needs.items():
            made = python_types.ModuleType(f"filecheck.{module}")
            setattr(made, name, None)
            sys.modules[made.__name__] = made
        sys.modules["filecheck.parser"].pattern_for_opts = None  # type: ignore[attr-defined]
        sys.modules["filecheck"] = python_types.ModuleType("filecheck")
    if importlib.util.find_spec("cffi") is None:
        # Numba looks for it when these are imported: it must not find this one.
        importlib.import_module("numba.core.typing.cffi_utils")
        importlib.import_module("numba.cuda.typing.cffi_utils")
        sys.modules["cffi"] = python_types.ModuleType("cffi")
        sys.modules["cffi"].FFI = _Quiet  # type: ignore[attr-defined]


def _with_source(text: str, scope: dict[str, Any], names: dict[str, Any] | None = None) -> None:
    """`exec` whose functions have a source that can be found."""
    file = f"<numba-cuda test {next(_texts)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), scope, names)


def run_text(text: str) -> None:
    """Run a program as numba-cuda's tests do in a Python of their own."""
    install()
    _with_source(text, {"__name__": "__main__"})


def _run_code(self: Any, text: str) -> tuple[str, str]:
    """Stands for a test's own: what a program writes to both of its streams."""
    program = f"from cpu_executor import numba_host; numba_host.run_text({text!r})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def import_tests(name: str) -> Any:
    """A module of numba-cuda's tests, in which a kernel that is made from text has a source."""
    spec = importlib.util.find_spec(f"numba.cuda.tests.cudapy.{name}")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.exec = _with_source  # type: ignore[attr-defined]
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for value in list(vars(module).values()):
        if hasattr(value, "run_code"):
            value.run_code = _run_code
    return module


def install() -> None:
    """Make `numba.cuda` run kernels on the CPU, in this process."""
    _without_filecheck()
    device = python_types.SimpleNamespace(
        compute_capability=COMPUTE_CAPABILITY, name=b"CPU", id=0, WARP_SIZE=32,
        MAX_THREADS_PER_BLOCK=1024, MULTIPROCESSOR_COUNT=1, MAX_SHARED_MEMORY_PER_BLOCK=49152,
        supports_float16=True, supports_bfloat16=True, reset=lambda: None,
    )  # fmt: skip
    context = _Quiet()
    context.device = device  # type: ignore[attr-defined]
    driver.driver.is_initialized = True
    devices.get_context = lambda *a: context
    replaced = {
        "to_device": to_device, "device_array": device_array,
        "device_array_like": device_array_like,
        "pinned_array": pinned_array, "mapped_array": pinned_array, "managed_array": pinned_array,
        "pinned_array_like": device_array_like, "mapped_array_like": device_array_like,
        "mapped": _mapped, "pinned": _mapped, "synchronize": lambda: None,
        "stream": _Stream, "default_stream": _Stream, "event": lambda timing=True: _Quiet(),
        "get_current_device": lambda: device, "is_available": lambda: True,
        "current_context": lambda *a: context, "as_cuda_array": lambda obj, sync=True: obj,
        "is_float16_supported": lambda: True, "is_bfloat16_supported": lambda: True,
        "defer_cleanup": contextlib.nullcontext, "select_device": lambda k: context,
        "close": lambda: None, "detect": lambda: True, "list_devices": lambda: [device],
    }  # fmt: skip
    for name, meaning in replaced.items():
        setattr(cuda, name, meaning)
        setattr(api, name, meaning)
    devicearray.auto_device = lambda obj, stream=0, copy=True, user_explicit=False: (
        (obj, False) if isinstance(obj, DeviceArray) else (to_device(obj, copy=copy), True)
    )
    devicearray.is_cuda_ndarray = lambda obj: isinstance(obj, DeviceArray)
    none = python_types.SimpleNamespace(alloc=0, free=0, mi_alloc=0, mi_free=0)
    rtsys.get_allocation_stats = lambda *a: none
    rtsys.memsys_enable_stats = rtsys.memsys_disable_stats = lambda *a: None
    made = dispatcher.CUDADispatcher
    made.call, made.compile = launch, _compile
    made.compile_device = lambda self, args, return_type=None: None
    made.disable_compile = lambda self, val=True: None
    made.specialize = lambda self, *args: self
    dispatcher.ForAll.__call__ = _forall

"""From a `@cuda.jit` kernel and argument types to PTX, with a cache on disk.

Numba compiles; no GPU is needed. A finished PTX is kept under `$BLUTRAIN_CACHE` (or the user's
cache folder), named by a digest of all it depends on: what the kernel says and uses
(`fingerprint`), the types, the compute capability, and the versions of everything that takes part.
So a change takes effect at once, and a process that starts with nothing changed compiles nothing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from numba.core import types
from numba.cuda import compile_ptx as numba_compile_ptx
from numba.cuda import dispatcher
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.cuda_paths import get_cuda_paths

from blutrain.device import half, pointer
from blutrain.device.cuda import lowering
from blutrain.device.cuda.fingerprint import fingerprint
from blutrain.errors import KernelError, message

ComputeCapability = tuple[int, int] | tuple[int, int, str]


class Ptx(NamedTuple):
    """A compiled kernel.

    Attributes:
        text: the PTX.
        entry: the kernel's name in it.
    """

    text: str
    entry: str


def compile_kernel(
    kernel: Any, argument_types: tuple[Any, ...], compute_capability: ComputeCapability
) -> Ptx:
    """Compile a kernel, or take it from the cache.

    Args:
        kernel: what `numba.cuda.jit` returned.
        argument_types: Numba types.
        compute_capability: such as (9, 0), or (9, 0, "a") for the features of that one.

    Raises:
        KernelError: Numba cannot compile it for these types.

    Example:
        >>> from numba import cuda, float32
        >>> @cuda.jit
        ... def scale(x, factor):
        ...     i = cuda.grid(1)
        ...     if i < x.size:
        ...         x[i] *= factor
        >>> ptx = compile_kernel(scale, (float32[::1], float32), (9, 0))
        >>> ".target sm_90" in ptx.text, ptx.entry in ptx.text
        (True, True)
    """
    file = _cache_file(kernel, argument_types, compute_capability)
    text = _read(file) if file else None
    if text is None:
        text = _compile(kernel, argument_types, compute_capability)
        if file:
            _write(file, text)
    return Ptx(text, _entry(text))


def _compile(kernel: Any, argument_types: tuple[Any, ...], cc: ComputeCapability) -> str:
    options = kernel.targetoptions
    try:
        own = lowering.counts_from_the_start(kernel)
        with _pretend_device(cc), lowering.indices_from_the_start() if own else nullcontext():
            text, _ = numba_compile_ptx(
                kernel.py_func,
                types.void(*argument_types),
                debug=options.get("debug"),
                lineinfo=bool(options.get("lineinfo")),
                fastmath=bool(options.get("fastmath")),
                opt=options.get("opt", True),
                launch_bounds=options.get("launch_bounds"),
                cc=cc,
            )
    except Exception as error:
        # Numba raises errors of many classes, and plain AssertionErrors and KeyErrors.
        reason = " ".join(str(error).split())
        given = f"({', '.join(map(str, argument_types))}): {reason[:600] or type(error).__name__}"
        wrong = "the kernel must compile for the GPU"
        raise KernelError(
            message(kernel.__name__, wrong, given, "see Numba's full report above")
        ) from error
    return str(text)


class _PretendDevice:
    def __init__(self, compute_capability: ComputeCapability) -> None:
        self.compute_capability = compute_capability


@contextmanager
def _pretend_device(cc: ComputeCapability) -> Iterator[None]:
    """Let Numba compile device functions without asking a driver for its GPU.

    It asks only for the compute capability, and only in this one place.
    """
    with global_compiler_lock:
        real = dispatcher.get_current_device
        dispatcher.get_current_device = lambda: _PretendDevice(cc)
        try:
            yield
        finally:
            dispatcher.get_current_device = real


def _entry(text: str) -> str:
    found = re.search(r"\.entry\s+([\w$]+)", text)
    if found is None:
        raise KernelError(message("compile", "the PTX must have an entry", repr(text[:200])))
    return found[1]


# The cache ---------------------------------------------------------------------------------------


def cache_directory() -> Path:
    """Where compiled kernels are kept: `$BLUTRAIN_CACHE`, or blutrain/ in the user's cache."""
    if chosen := os.environ.get("BLUTRAIN_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "blutrain"


@functools.cache
def _versions() -> str:
    """Everything but the kernel that a PTX depends on."""
    names = ("numba", "numba-cuda", "llvmlite")
    parts = [sys.version, *(f"{n} {importlib.metadata.version(n)}" for n in names)]
    libnvvm = get_cuda_paths()["nvvm"].info
    if libnvvm and os.path.exists(libnvvm):
        stat = os.stat(libnvvm)
        parts.append(f"{libnvvm} {stat.st_size} {stat.st_mtime_ns}")
    # How arrays, indices and loops are compiled: no kernel names these functions.
    modules = (half, pointer, lowering)
    sources = (Path(str(module.__file__)).read_bytes() for module in modules)
    parts.extend(hashlib.sha256(source).hexdigest() for source in sources)
    return "\n".join(parts)


def _cache_file(kernel: Any, argument_types: tuple[Any, ...], cc: ComputeCapability) -> Path | None:
    content = fingerprint(kernel)
    if content is None or kernel.targetoptions.get("link"):
        return None
    own = str(lowering.counts_from_the_start(kernel))
    key = "\n".join([content, own, *map(str, argument_types), str(cc), _versions()])
    name = re.sub(r"\W", "_", kernel.__name__)
    return cache_directory() / "ptx" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()}.ptx"


def _read(file: Path) -> str | None:
    """The PTX in a file of the cache; None when there is none, or it is damaged."""
    try:
        digest, _, text = file.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return text if digest == _seal(text) else None


def _write(file: Path, text: str) -> None:
    """Keep a PTX. A cache that cannot be written is one that is not used, not an error."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: another process never sees half a file.
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as aside:
            aside.write(f"{_seal(text)}\n{text}")
        os.replace(aside.name, file)
    except OSError:
        return


def _seal(text: str) -> str:
    return f"// sha256 {hashlib.sha256(text.encode()).hexdigest()}"

"""Machine code on disk, keyed by everything that it depends on.

The key is a digest of the program's text, of each object that its free names mean, of the argument
types and options, of the versions of Numba, llvmlite and this package, and of the processor. An
object whose meaning cannot be pinned down (a closure over something unknown) makes the kernel
uncacheable rather than wrongly cached.

`BLUTRAIN_CACHE` names the directory, `XDG_CACHE_HOME/blutrain` is the default; `BLUTRAIN_CACHE=off`
disables it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types

Code = tuple[str, bytes]


class _UnknownError(Exception):
    """An object whose meaning cannot be pinned down."""


def directory() -> Path | None:
    """Where compiled kernels are kept; None when caching is off."""
    chosen = os.environ.get("BLUTRAIN_CACHE", "")
    if chosen.lower() in ("off", "0"):
        return None
    if chosen:
        return Path(chosen) / "cpu"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "blutrain" / "cpu"


@functools.cache
def _versions() -> str:
    """Everything outside a kernel that its machine code depends on."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), *here.glob("ptx/*.py")]):
        digest.update(path.read_bytes())
    digest.update((Path(__file__).parent.parent / "half.py").read_bytes())
    about = (
        sys.version, numba.__version__, llvmlite.__version__, np.__version__,
        llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), digest.hexdigest(),
    )  # fmt: skip
    return repr(about)


@functools.cache
def _module_digest(module_name: str) -> str:
    module = sys.modules.get(module_name)
    path = getattr(module, "__file__", None)
    if not path or not path.endswith(".py"):
        raise _UnknownError
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def describe(value: Any, depth: int = 0) -> str:
    """A text that is the same only for objects that mean the same.

    Raises:
        _UnknownError: there is none.
    """
    if depth > 8:
        raise _UnknownError
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, types.Type):
        return f"type {value}"
    if isinstance(value, tuple):
        return "(" + ", ".join(describe(v, depth + 1) for v in value) + ")"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value.tobytes().hex()}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.strides} {value.tobytes().hex()}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if hasattr(value, "ptx"):  # an instruction: see blutrain.cuda_kernels.ptx.instruction
        return f"ptx {describe(value.ptx, depth + 1)}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    function = getattr(value, "_defn", None) or getattr(value, "py_func", None) or value
    function = inspect.unwrap(function)
    module = getattr(function, "__module__", None) or ""
    label = f"{type(value).__name__} {module}.{getattr(function, '__qualname__', '')}"
    if not isinstance(function, FunctionType):
        if module in ("math", "builtins", "numpy") or module.startswith(("numpy.", "numba.")):
            return label
        raise _UnknownError
    cells = [describe(c.cell_contents, depth + 1) for c in function.__closure__ or ()]
    if module.startswith(("numba.", "numpy.", "blutrain.device.cpu")):
        return f"{label} {cells}"  # covered by the versions
    # A function may use anything in its module, so its whole file counts.
    return f"{label} {cells} {_module_digest(module)}"


def key(
    text: str, objects: Mapping[str, Any], kinds: Sequence[types.Type], flags: Sequence[str]
) -> str | None:
    """The digest under which a program is kept; None when it cannot be cached."""
    parts = [_versions(), text, repr([str(k) for k in kinds]), repr(list(flags))]
    try:
        parts += [f"{name} = {describe(objects[name])}" for name in sorted(objects)]
    except (_UnknownError, OSError, ValueError):
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def read(name: str | None) -> Code | None:
    """The machine code under a key, or None."""
    place = directory()
    if name is None or place is None:
        return None
    try:
        with open(place / f"{name}.bin", "rb") as file:
            symbol, code = pickle.load(file)
    except (OSError, pickle.UnpicklingError, EOFError, ValueError):
        return None
    return symbol, code


def write(name: str | None, code: Code) -> None:
    """Keep machine code. A full or read-only disk costs the next process time, nothing else."""
    place = directory()
    if name is None or place is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: another process never sees half a file.
        handle, temporary = tempfile.mkstemp(dir=place)
        with os.fdopen(handle, "wb") as file:
            pickle.dump(code, file)
        os.replace(temporary, place / f"{name}.bin")
    except OSError:
        return

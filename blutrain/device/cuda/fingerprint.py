"""A digest of everything that a kernel's machine code depends on.

Two kernels with the same digest compile to the same code: it covers the bytecode and constants of
the kernel and of every function that it reaches, the values of the globals and closure variables
that these name, and the options given to `cuda.jit`. A function that is not a kernel's own (an
intrinsic, an overload) may be implemented elsewhere in its module, so for such a function the
module's whole source counts.

A value that cannot be told apart from another by its content makes the kernel unfit for the cache
on disk: better compiled again than stale.
"""

from __future__ import annotations

import functools
import hashlib
import types as python_types
from pathlib import Path
from typing import Any

import numpy as np

# Modules that the compiler's version stands for.
_PINNED = ("numba", "numba_cuda", "llvmlite", "math", "cmath", "operator", "builtins", "numpy")

# What `cuda.jit` was told and the generated code depends on.
OPTIONS = ("fastmath", "lineinfo", "debug", "opt", "launch_bounds", "max_registers")


class Unfit(Exception):
    """The kernel depends on a value that has no digest."""


def fingerprint(kernel: Any) -> str | None:
    """The digest of a `@cuda.jit` kernel, or None when it depends on what cannot be digested.

    Example:
        >>> from numba import cuda
        >>> def make(n):
        ...     def kernel(x):
        ...         x[0] = n
        ...     return cuda.jit(kernel)
        >>> fingerprint(make(1)) == fingerprint(make(1)) != fingerprint(make(2))
        True
    """
    digest = _Digest()
    try:
        digest.add(kernel)
    except Unfit:
        return None
    return digest.hash.hexdigest()


class _Digest:
    """A hash to which values are added."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        # Ids of what was added: functions may refer to themselves. The values are kept alive, so
        # that no other value takes an id over.
        self.seen: dict[int, tuple[int, Any]] = {}

    def text(self, *parts: object) -> None:
        for part in parts:
            encoded = str(part).encode()
            self.hash.update(f"{len(encoded)}:".encode())
            self.hash.update(encoded)

    def add(self, value: Any) -> None:
        """Add any value that a kernel can name.

        Raises:
            Unfit: its content cannot be told.
        """
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            self.text(type(value).__name__, repr(value))
        elif isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufc":
            content = hashlib.sha256(value.tobytes()).hexdigest()
            self.text("array", value.dtype.str, value.shape, content)
        elif isinstance(value, tuple | list | frozenset | set):
            items = sorted(value, key=repr) if isinstance(value, frozenset | set) else value
            self.text(type(value).__name__, len(items))
            for item in items:
                self.add(item)
        elif isinstance(value, dict):
            self.text("dict", len(value))
            for key, item in value.items():
                self.add(key)
                self.add(item)
        elif id(value) in self.seen:
            self.text("seen", self.seen[id(value)][0])
        else:
            self.seen[id(value)] = (len(self.seen), value)
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, python_types.ModuleType):
            # What is taken from it is added where it is named.
            self.text("module", value.__name__)
        elif hasattr(value, "py_func"):
            options = getattr(value, "targetoptions", {})
            self.text("kernel", *(f"{name}={options.get(name)}" for name in OPTIONS))
            if options.get("lineinfo") or options.get("debug"):
                code = value.py_func.__code__
                self.text(code.co_filename, code.co_firstlineno, code.co_linetable.hex())
            self._add_function(value.py_func)
        elif isinstance(value, python_types.FunctionType):
            if not _is_pinned(value.__module__):
                self.text("source", _module_source(value.__code__.co_filename))
            self._add_function(value)
        elif _is_pinned(type(value).__module__) and hasattr(value, "_defn"):
            # An intrinsic: its code generator is an ordinary function.
            self.add(value._defn)
        elif isinstance(value, python_types.BuiltinFunctionType | type):
            if not _is_pinned(value.__module__):
                raise Unfit(value)
            self._add_named(value)
        elif _is_pinned(type(value).__module__) or type(value).__module__.startswith("blutrain."):
            # An object of the compiler, such as a Numba or LLVM type, or one of our element types.
            self._add_named(value)
        else:
            raise Unfit(type(value))

    def _add_named(self, value: Any) -> None:
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')} {value!r}"
        if " at 0x" in name:
            raise Unfit(name)
        self.text("named", type(value).__name__, name)

    def _add_function(self, function: Any) -> None:
        if _is_pinned(function.__module__):
            self.text("pinned", function.__module__, function.__qualname__)
            return
        self._add_code(function.__code__)
        self.add(function.__defaults__ or ())
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:  # a variable that was not assigned yet
                raise Unfit(function) from None
            self.add(contents)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                self.text("global", name)
                value = function.__globals__[name]
                self.add(value)
                self._add_module_members(value, function.__code__)

    def _add_module_members(self, module: Any, code: python_types.CodeType) -> None:
        """What a function may take from a module of ours, as in `common.warp_sum(x)`."""
        if not isinstance(module, python_types.ModuleType) or _is_pinned(module.__name__):
            return
        for name in sorted(_names(code)):
            if hasattr(module, name):
                self.text("member", name)
                self.add(getattr(module, name))

    def _add_code(self, code: python_types.CodeType) -> None:
        self.text(code.co_name, code.co_argcount, code.co_code.hex(), code.co_exceptiontable.hex())
        self.text(*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
        for constant in code.co_consts:
            if isinstance(constant, python_types.CodeType):
                self._add_code(constant)
            else:
                self.add(constant)


def _names(code: python_types.CodeType) -> set[str]:
    """The names of globals and attributes in a function and the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names |= _names(constant)
    return names


def _is_pinned(module: str | None) -> bool:
    return (module or "").split(".")[0] in _PINNED


@functools.cache
def _module_source(filename: str) -> str:
    """The digest of a source file; a function made by `exec` has none beyond its own code."""
    try:
        return hashlib.sha256(Path(filename).read_bytes()).hexdigest()
    except OSError:
        return ""

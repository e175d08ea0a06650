"""Grids, blocks and shared memory that a launch may ask for, on both targets alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from blutrain.errors import KernelError, message

Dim = int | tuple[int, ...]
Dim3 = tuple[int, int, int]

# The limits of every GPU of compute capability 8.0 and 9.0; the cpu target keeps to them too.
MAX_GRID: Dim3 = (2**31 - 1, 65535, 65535)
MAX_BLOCK: Dim3 = (1024, 1024, 64)
MAX_THREADS = 1024
# Of compute capability 9.0, the most of the two; the driver knows the device's own limit.
MAX_SHARED = 227 << 10
# What a kernel can declare; more is had by asking for it at the launch.
MAX_STATIC_SHARED = 48 << 10


def grid_of(name: str, grid: Any) -> Dim3:
    """A grid as three ints.

    Args:
        name: the kernel's.
        grid: an int or up to three of them.

    Raises:
        KernelError: it is no such thing, or beyond the limits.

    Example:
        >>> grid_of("scale_kernel", (4, 2))
        (4, 2, 1)
    """
    return _dim3(name, "grid", grid, MAX_GRID)


def block_of(name: str, block: Any) -> Dim3:
    """A block as three ints.

    Raises:
        KernelError: it is no such thing, or beyond the limits.
    """
    x, y, z = _dim3(name, "block", block, MAX_BLOCK)
    if x * y * z > MAX_THREADS:
        wrong = f"block must have at most {MAX_THREADS} threads"
        got = f"{(x, y, z)}, which has {x * y * z}"
        raise KernelError(message(name, wrong, got, "use more blocks"))
    return x, y, z


def check_shared(name: str, shared: int) -> None:
    """Refuse an impossible amount of dynamic shared memory.

    Raises:
        KernelError: it is negative, or more than any GPU has for a block.
    """
    if shared < 0:
        raise KernelError(message(name, "shared must be a number of bytes", shared))
    if shared > MAX_SHARED:
        wrong = f"shared must be at most {MAX_SHARED} bytes, which no GPU exceeds"
        raise KernelError(message(name, wrong, shared, "divide the work into smaller blocks"))


def _dim3(name: str, what: str, dim: Any, limits: Dim3) -> Dim3:
    parts = dim if isinstance(dim, tuple) else (dim,)
    ints = all(isinstance(part, int | np.integer) for part in parts)
    if not ints or not 1 <= len(parts) <= 3:
        raise KernelError(message(name, f"{what} must be an int or up to three of them", dim))
    x, y, z = (*map(int, parts), 1, 1)[:3]
    if any(not 0 < n <= limit for n, limit in zip((x, y, z), limits, strict=True)):
        do = "launch nothing for an empty problem" if 0 in parts else ""
        raise KernelError(message(name, f"{what} must be between 1 and {limits}", dim, do))
    return x, y, z

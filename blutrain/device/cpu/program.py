"""What a kernel and the device functions inlined into it share while they are being compiled."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
from numba import types

from blutrain.device.cpu.source import Source

WARP = 32


@dataclass(frozen=True)
class Memory:
    """A shared or local array.

    Attributes:
        shape: extents; `(0,)` for dynamic shared memory.
        dtype: Numba type of the elements.
    """

    shape: tuple[int, ...]
    dtype: types.Type

    @property
    def is_half(self) -> bool:
        """Whether elements are float16, which a kernel sees as float32."""
        return bool(self.dtype == types.float16)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        if self.is_half:
            return 2 * int(np.prod(self.shape, dtype=np.int64))
        if isinstance(self.dtype, types.Record):
            return int(np.prod(self.shape, dtype=np.int64)) * int(self.dtype.size)
        itemsize = 1 if self.dtype is types.boolean else self.dtype.bitwidth // 8
        return int(np.prod(self.shape, dtype=np.int64)) * itemsize


@dataclass
class Program:
    """The state of one compilation.

    Attributes:
        shape: threads of a block in x, y and z, as launched: a constant.
        warps_apart: whether the warps of a block, which then is 32 threads wide, run one after
            another, each like a block of its own: they never meet. What is the same for a warp is
            then the same for all threads that run together, and needs no mask.
        shared: arrays in shared memory, by name.
        local: arrays in local memory, by name.
        objects: Python objects that the program's free names mean.
        has_global_atomics: whether blocks may update the same memory: they must then run in order.
        has_grid_barriers: whether blocks meet.
    """

    shape: tuple[int, int, int]
    warps_apart: bool = False
    shared: dict[str, Memory] = field(default_factory=dict)
    local: dict[str, Memory] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    has_global_atomics: bool = False
    has_grid_barriers: bool = False
    _counter: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads that run together, in x, y and z."""
        return (WARP, 1, 1) if self.warps_apart else self.shape

    @property
    def n_threads(self) -> int:
        """How many threads run together."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def is_flat(self) -> bool:
        """Whether they form one dimension."""
        return self.block[1] == self.block[2] == 1

    @property
    def has_warp_loops(self) -> bool:
        """Whether threads can be visited as warps of lanes: a flat block of whole warps."""
        return self.is_flat and self.n_threads % WARP == 0

    def fresh(self, prefix: str) -> str:
        """A name that nothing else has."""
        return f"{prefix}{next(self._counter)}"

    def name_of(self, value: Any, hint: str) -> str:
        """The name under which the program refers to a Python object."""
        known = hint
        while known in self.objects and self.objects[known] is not value:
            known += "_"
        self.objects[known] = value
        return known


def memory(source: Source, node: Any) -> Memory:
    """The array that `cuda.shared.array(shape, dtype)` or `cuda.local.array` asks for.

    An alignment may come third or by name: it is met, since arrays here start at 64 bytes.
    """
    arguments = list(node.args[:2])
    for keyword in node.keywords:
        if keyword.arg == "alignment":
            continue
        if keyword.arg not in ("shape", "dtype"):
            source.fail(
                node, f"{keyword.arg}= of a shared or local array is not supported; drop it"
            )
        arguments.insert(0 if keyword.arg == "shape" else 1, keyword.value)
    if len(arguments) != 2:
        source.fail(node, "an array needs a shape and a dtype; pass both")
    shape = source.constant(arguments[0], "the shape of a shared or local array")
    dtype = source.constant(arguments[1], "the dtype of a shared or local array")
    if not isinstance(dtype, types.Type):
        dtype = numba.from_dtype(np.dtype(dtype))
    if not isinstance(dtype, types.Number | types.Boolean | types.Record):
        source.fail(node, f"the dtype of an array must be a number type, got {dtype}")
    extents = (shape,) if isinstance(shape, int) else tuple(int(s) for s in shape)
    if min(extents, default=1) < 0:
        source.fail(node, f"the shape of an array cannot be negative, got {shape}")
    return Memory(extents, dtype)

"""Arrays that tell who reads and writes which of their elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from blutrain import dtypes
from blutrain.device.cpu.interpret.events import Kind, Site, Space
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.numbers import CASTS, PLAIN, Unsigned, Wrapped, number

if TYPE_CHECKING:
    from blutrain.device.cpu.interpret.machine import Machine

BFLOAT16 = "bfloat16"
# An Unsigned has a product of its own, which is slow.
_times = int.__mul__


class Memory:
    """Bytes that arrays lie in: an argument's, a block's shared array, a thread's local one.

    Attributes:
        space: which memory.
        address: a global array's real address; an offset in the block's shared memory; 0.
        size: bytes.
        name: what the kernel calls it.
    """

    __slots__ = ("address", "name", "size", "space")

    def __init__(self, space: Space, name: str, address: int, size: int) -> None:
        self.space, self.name, self.address, self.size = space, name, address, size


class View:
    """An array as a kernel sees it.

    Args:
        machine: what runs the kernel, and tells its observers.
        memory: where the elements are.
        data: the elements.
        offset: bytes from the memory's address to the first element.
        half: "bfloat16" when the elements are bits of such numbers.
    """

    __slots__ = (
        "_good", "data", "dtype", "half", "itemsize", "listeners", "machine", "memory", "ndim",
        "offset", "read", "shape", "size", "space", "strides", "write",
    )  # fmt: skip

    def __init__(
        self,
        machine: Machine,
        memory: Memory,
        data: np.ndarray[Any, Any],
        offset: int = 0,
        half: str = "",
    ) -> None:
        self.machine, self.memory, self.data, self.offset = machine, memory, data, offset
        self.half, self.space = half, memory.space
        self.shape, self.strides, self.ndim, self.size = (
            data.shape, data.strides, data.ndim, data.size,
        )  # fmt: skip
        self.dtype, self.itemsize = data.dtype, data.itemsize
        self.read, self.write = _conversions(data, half)
        self.listeners = machine.on_access[memory.space]
        # How many parts an index has that needs no look at the address: none if any may.
        misaligned = any(
            (memory.address + offset, *data.strides)[k] % self.alignment
            for k in range(self.ndim + 1)
        )
        self._good = -1 if misaligned else self.ndim

    @property
    def name(self) -> str:
        """What the kernel calls the array."""
        return self.memory.name

    @property
    def T(self) -> View:
        """The axes the other way round."""
        return View(self.machine, self.memory, self.data.T, self.offset, self.half)

    def reshape(self, *shape: Any) -> View:
        """The same elements in another shape."""
        return View(self.machine, self.memory, self.data.reshape(*shape), self.offset, self.half)

    def view(self, kind: Any) -> View:
        """The same bytes as elements of another type."""
        data = self.data.view(self.machine.dtype_of(kind))
        return View(self.machine, self.memory, data, self.offset)

    def __len__(self) -> int:
        return int(self.shape[0])

    def load(self, index: Any, site: Site) -> Any:
        """`array[index]`."""
        place = self._place(index, site)
        if place is None:
            return self._part(index, site)
        if self.listeners:
            self._tell(site, "load", index, place, None)
        return self.read(place)

    def store(self, index: Any, value: Any, site: Site) -> None:
        """`array[index] = value`."""
        place = self._place(index, site)
        if place is None:
            self._fill(index, value, site)
            return
        if self.listeners:
            self._tell(site, "store", index, place, value)
        self.write(place, value)

    def update(self, index: Any, new: Callable[[Any], Any], site: Site) -> Any:
        """Make an element `new(old)` atomically; gives the old one."""
        place = self._place(index, site)
        if place is None:
            raise TypeError("an atomic function takes the index of one element")
        if self.listeners:
            self._tell(site, "atomic", index, place, None)
        old = self.read(place)
        self.write(place, new(old))
        return old

    def _tell(self, site: Site, kind: Kind, index: Any, place: Any, value: Any) -> None:
        offset, who = self._offset(place), self.machine.place
        for listener in self.listeners:
            listener(site, kind, self, index, offset, who, value)

    def _offset(self, place: Any) -> int:
        if not isinstance(place, tuple):
            return self.offset + _times(place, self.strides[0])
        steps: int = sum(map(_times, place, self.strides))
        return self.offset + steps

    def _place(self, index: Any, site: Site) -> Any:
        """An element's index, counted from the start; None where it is not one element's.

        Raises:
            KernelFault: it is outside of the array.
        """
        kind = type(index)
        if kind in PLAIN and self._good == 1:
            if 0 <= index < self.shape[0]:
                return index
        elif kind is tuple and len(index) == self._good:
            good = True
            for p, n in zip(index, self.shape):
                if type(p) not in PLAIN or not 0 <= p < n:
                    good = False
                    break
            if good:
                return index
        return self._checked(index, site)

    def _checked(self, index: Any, site: Site) -> Any:
        """As `_place`, for indices that are negative, wrong, or of other types."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(p, slice) or p is Ellipsis for p in parts) or len(parts) < self.ndim:
            return None
        if len(parts) > self.ndim:
            raise TypeError(f"{self.name} has {self.ndim} dimensions, its index {len(parts)}")
        place = []
        for axis, (p, n) in enumerate(zip(parts, self.shape)):
            if isinstance(p, Unsigned):
                i = int(p)
            elif isinstance(p, int | np.integer):
                # Numba counts negative indices from the end, on the GPU too.
                i = int(p) + n if p < 0 else int(p)
            else:
                raise TypeError(f"an index of {self.name} must be an integer, got {p!r}")
            if not 0 <= i < n or type(p) is Wrapped:
                self._refuse(index, axis, site)
            place.append(i)
        found = place[0] if len(place) == 1 else tuple(place)
        if self._good < 0:
            self._check_address(index, found, site)
        return found

    @property
    def alignment(self) -> int:
        """Of what the address of an element must be a multiple."""
        # Records are read field by field, and NumPy knows how those are aligned. A complex number
        # is two reals.
        return self.dtype.alignment if self.dtype.kind in "cV" else self.itemsize

    def _check_address(self, index: Any, place: Any, site: Site) -> None:
        beyond = (self.memory.address + self._offset(place)) % self.alignment
        if not beyond:
            return
        machine, n = self.machine, self.alignment
        raise KernelFault(
            "misaligned access", machine.launch, site,
            f"{machine.launch.who(machine.place)} accesses {self.space} array "
            f"{self.name}[{plain(index)}], {self.itemsize} bytes at an address that is {beyond} "
            f"beyond a multiple of {n}", f"start the view at a multiple of {n} bytes",
            [machine.place], array=self.name, index=index,
        )  # fmt: skip

    def _refuse(self, index: Any, axis: int, site: Site) -> None:
        machine = self.machine
        n, parts = self.shape[axis], index if isinstance(index, tuple) else (index,)
        part = parts[axis]
        does = f"{machine.launch.who(machine.place)} accesses {self.space} array {self.name}"
        if isinstance(part, Wrapped):
            kind, wrong = "index overflow", f"but the index overflowed: {part.why}"
            do = "leave the cast out, for Numba computes in int64, or split the array"
        else:
            along = f" along axis {axis}" if self.ndim > 1 else ""
            kind = "out of bounds"
            wrong = f"which has shape {self.shape}: {int(part)} is not within -{n}..{n - 1}{along}"
            do = f"check the index before, as in `if i < {self.name}.shape[{axis}]`"
        raise KernelFault(
            kind, machine.launch, site, f"{does}[{plain(index)}], {wrong}", do, [machine.place],
            array=self.name, index=index,
        )  # fmt: skip

    def _part(self, index: Any, site: Site) -> View:
        """A row, or a slice."""
        parts = index if isinstance(index, tuple) else (index,)
        for axis, (p, n) in enumerate(zip(parts, self.shape)):
            if isinstance(p, int) and (not -n <= p < n or type(p) is Wrapped):
                self._refuse(index, axis, site)
        data = self.data[index]
        offset = _address(data) - _address(self.data) if data.size else 0
        return View(self.machine, self.memory, data, self.offset + offset, self.half)

    def _fill(self, index: Any, value: Any, site: Site) -> None:
        """Store to each element of a part."""
        part = self._part(index, site)
        for place in np.ndindex(part.shape):
            source = value.load(place, site) if isinstance(value, View) else value
            part.store(place if len(place) != 1 else place[0], source, site)


def _address(data: np.ndarray[Any, Any]) -> int:
    return int(data.__array_interface__["data"][0])


def plain(index: Any) -> str:
    """An index as it is written between brackets."""
    parts = index if isinstance(index, tuple) else (index,)
    return ", ".join(str(int(p)) for p in parts)


def _conversions(
    data: np.ndarray[Any, Any], half: str
) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """Functions that read an element as the interpreter's number, and write one."""
    kind = data.dtype.kind
    if half == BFLOAT16:
        return (
            lambda place: (
                dtypes.from_storage(data[place : place + 1], dtypes.bfloat16)[0]
                if data.ndim == 1
                else dtypes.from_storage(np.asarray(data[place]), dtypes.bfloat16)[()]
            ),
            lambda place, value: data.__setitem__(
                place, dtypes.to_storage(np.asarray(value, np.float32), dtypes.bfloat16)
            ),
        )
    if data.dtype == np.float16:
        return (
            lambda place: np.float32(data[place]),
            lambda place, value: data.__setitem__(place, value),
        )
    if kind == "i":
        cast = CASTS[data.dtype.name]
        return data.item, lambda place, value: data.__setitem__(place, cast(value))
    if kind == "u":
        cast = CASTS[data.dtype.name]
        return (
            lambda place: cast(data.item(place)),
            lambda place, value: data.__setitem__(place, int(cast(value))),
        )
    if kind == "b":
        return data.item, lambda place, value: data.__setitem__(place, bool(value))
    if kind == "f" or kind == "c":
        return data.__getitem__, data.__setitem__
    return lambda place: number(data[place]), data.__setitem__

"""Indices that overflowed, and accesses that hardware refuses for their addresses."""

from __future__ import annotations

from typing import Any

from blutrain.device.cpu.interpret.events import Kind, Launch, Observer, Place, Site
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.numbers import Wrapped
from blutrain.device.cpu.interpret.view import View, plain


class Overflow(Observer):
    """Finds indices that come from a signed integer which overflowed, even where they are inside.

    Numba adds and multiplies in 64 bits, so that is a cast (`int32(i * n)`) of what does not fit,
    or a product beyond 64 bits. A hash overflows on purpose; the remainder, the bits or the
    comparison that it ends in are ordinary again.
    """

    def begin(self, launch: Launch) -> None:
        """A launch starts."""
        self._launch = launch

    def access(
        self, site: Site, kind: Kind, array: View, index: Any, offset: int, place: Place, value: Any
    ) -> None:
        """Look at the parts of the index."""
        for part in index if isinstance(index, tuple) else (index,):
            if type(part) is Wrapped:
                raise KernelFault(
                    "index overflow", self._launch, site,
                    f"{self._launch.who(place)} accesses {array.space} array "
                    f"{array.name}[{plain(index)}], but the index overflowed: {part.why}",
                    "leave the cast out, for Numba computes in int64, or split the array",
                    [place], array=array.name, index=index,
                )  # fmt: skip


class Misaligned(Observer):
    """Finds accesses at addresses that are no multiple of the element's size."""

    def begin(self, launch: Launch) -> None:
        """A launch starts."""
        self._launch = launch

    def access(
        self, site: Site, kind: Kind, array: View, index: Any, offset: int, place: Place, value: Any
    ) -> None:
        """Look at the address."""
        address = array.memory.address + offset
        # Records are read field by field, and NumPy knows how those are aligned. A complex number
        # is two reals.
        alignment = array.dtype.alignment if array.dtype.kind in "cV" else array.itemsize
        if address % alignment:
            raise KernelFault(
                "misaligned access", self._launch, site,
                f"{self._launch.who(place)} accesses {array.space} array "
                f"{array.name}[{plain(index)}], {array.itemsize} bytes at an address that is "
                f"{address % alignment} beyond a multiple of {alignment}",
                f"start the view at a multiple of {alignment} bytes",
                [place], array=array.name, index=index,
            )  # fmt: skip

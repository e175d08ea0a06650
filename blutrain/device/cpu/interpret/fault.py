"""The error that says what a kernel did wrong, where, and who was in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blutrain.device.cpu.interpret.events import Launch, Place, Site
from blutrain.errors import KernelError, message


class KernelFault(KernelError):
    """A kernel did something that CUDA does not define.

    Attributes:
        kind: "out of bounds", "uninitialised read", "race", "divergent barrier", "shuffle",
            "misaligned access", "index overflow", "deadlock" or "failure".
        kernel: the kernel's name.
        site: where.
        array: name of the array; "" where there is none.
        index: the index into it.
        places: the threads that have a part in it; the one that was caught comes first.
        sites: where each of them was.
    """

    def __init__(
        self,
        kind: str,
        launch: Launch,
        site: Site,
        wrong: str,
        do: str,
        places: Sequence[Place],
        sites: Sequence[Site] | None = None,
        array: str = "",
        index: Any = None,
    ) -> None:
        self.kind, self.kernel, self.site = kind, launch.kernel, site
        self.array, self.index = array, index
        self.places = tuple(places)
        self.sites = tuple(sites or [site] * len(self.places))
        where = f"kernel {launch.kernel} ({site.file}:{site.line}, `{site.text}`)"
        super().__init__(message(where, f"{kind}: {wrong}", do=do))

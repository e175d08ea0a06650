"""Barriers that not all threads of a block come to in the same place."""

from __future__ import annotations

from collections.abc import Sequence

from blutrain.device.cpu.interpret.events import Launch, Observer, Place, Site
from blutrain.device.cpu.interpret.fault import KernelFault


class DivergentBarrier(Observer):
    """Finds threads that meet, but at different barriers of the text.

    Newer hardware counts arrivals and would let them pass; CUDA leaves it undefined. Threads that
    never come are found by the interpreter itself: then nobody can go on.
    """

    def begin(self, launch: Launch) -> None:
        """A launch starts."""
        self._launch = launch

    def barrier(self, what: str, sites: Sequence[Site], places: Sequence[Place]) -> None:
        """Compare with the first thread's barrier."""
        for site, place in zip(sites, places, strict=True):
            if site is not sites[0] and site != sites[0]:
                who = self._launch.who
                raise KernelFault(
                    "divergent barrier", self._launch, sites[0],
                    f"{who(places[0])} waits at this {what}, {who(place)} at that in {site}",
                    "move the barrier out of the branch, so that all threads come to the same one",
                    [places[0], place], [sites[0], site],
                )  # fmt: skip

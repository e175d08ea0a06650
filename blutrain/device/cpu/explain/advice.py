"""What to do about a cost: one sentence where a figure is worse than it need be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blutrain.device.cpu.explain.costs import (
    Atomics,
    Branches,
    Cost,
    GlobalTraffic,
    SharedTraffic,
)
from blutrain.device.cpu.explain.occupancy import Occupancy

if TYPE_CHECKING:
    from blutrain.device.cuda.ptxas import Assembled

# A block's edge makes some waste unavoidable; below these nothing is worth a sentence.
WORTH_SAYING = 1.1
# At most one sector more than would do: a row that does not begin at a sector.
SHIFTED = 1.3
FEW_WARPS = 0.5


def for_line(cost: Cost) -> Iterator[str]:
    """Sentences about one line."""
    yield from _global("load", cost.global_loads)
    yield from _global("store", cost.global_stores)
    yield from _shared("load", cost.shared_loads)
    yield from _shared("store", cost.shared_stores)
    yield from _atomics(cost.global_atomics, "a shared cell of the block")
    yield from _atomics(cost.shared_atomics, "a register of each warp, by shuffles")
    yield from _branches(cost.branches)


def _global(verb: str, traffic: GlobalTraffic) -> Iterator[str]:
    if not traffic or traffic.sectors <= WORTH_SAYING * traffic.least_sectors:
        return
    each, least = (n / traffic.requests for n in (traffic.sectors, traffic.least_sectors))
    what = f"a {verb} touches {each:.3g} sectors where {least:.3g} would do: "
    if traffic.sectors <= SHIFTED * traffic.least_sectors:
        yield what + "let rows begin at multiples of 32 bytes"
    else:
        yield what + f"let neighbouring threads {verb} neighbouring elements"


def _shared(verb: str, traffic: SharedTraffic) -> Iterator[str]:
    if traffic and traffic.ways > WORTH_SAYING:
        yield (
            f"{traffic.ways:.3g}-way bank conflicts: let a {verb}'s lanes fall into different "
            "banks; a row one element longer often does"
        )


def _atomics(atomics: Atomics, instead: str) -> Iterator[str]:
    if atomics and atomics.contention > WORTH_SAYING:
        yield (
            f"{atomics.contention:.3g} lanes of a warp meet at one address and take turns: "
            f"sum in {instead} first"
        )


def _branches(branches: Branches) -> Iterator[str]:
    if branches.divergent:
        share = branches.divergent / branches.executed
        yield (
            f"{share:.0%} of the warps that come here go both ways: decide by warp or block "
            "rather than by thread, or compute both and select"
        )


def for_resources(resources: Assembled, occupancy: Occupancy) -> Iterator[str]:
    """Sentences about registers, shared memory and occupancy."""
    if resources.spill_stores or resources.spill_loads:
        yield "registers spill into local memory: keep fewer values alive, or use smaller tiles"
    elif resources.stack:
        yield (
            f"{resources.stack} bytes a thread lie in local memory, which is as slow as global: "
            "index local arrays by constants and by loops that can be unrolled"
        )
    if resources.uses_float64:
        yield "it computes with float64: give literals and accumulators a smaller type if not meant"
    if not occupancy.blocks:
        yield f"no block fits on a multiprocessor: use less of {occupancy.limited_by}"
    elif occupancy.fraction < FEW_WARPS:
        yield (
            f"{occupancy.warps} of {occupancy.max_warps} warps are resident, limited by "
            f"{occupancy.limited_by}: fine if each thread has enough independent work in flight"
        )

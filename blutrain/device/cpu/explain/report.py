"""An explanation as text: the source by line, with the figures and advice beneath each line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blutrain.device.cpu.explain import advice
from blutrain.device.cpu.explain.costs import Atomics, Cost, GlobalTraffic, Line, SharedTraffic
from blutrain.device.cpu.explain.occupancy import Occupancy

if TYPE_CHECKING:
    from blutrain.device.cuda.ptxas import Assembled

MARGIN = 5


def source(lines: Sequence[Line]) -> Iterator[str]:
    """Each line with what it costs a block; a heading where another file begins."""
    file = lines[0].file if lines else ""
    for line in lines:
        if line.file != file:
            file = line.file
            yield f"{Path(file).name}:"
        yield f"{line.number:{MARGIN}} | {line.text}".rstrip()
        for note in figures(line.cost):
            yield f"{'':{MARGIN}} |     {note}"
        for sentence in advice.for_line(line.cost):
            yield f"{'':{MARGIN}} |     ! {sentence}"


def figures(cost: Cost) -> Iterator[str]:
    """What was counted, a line for each kind that occurs."""
    for name, traffic in (("loads ", cost.global_loads), ("stores", cost.global_stores)):
        if traffic:
            yield f"global {name}   {global_figures(traffic)}"
    for name, shared in (("loads ", cost.shared_loads), ("stores", cost.shared_stores)):
        if shared:
            yield f"shared {name}   {shared_figures(shared)}"
    for name, atomics in (("global", cost.global_atomics), ("shared", cost.shared_atomics)):
        if atomics:
            yield f"{name} atomics  {atomic_figures(atomics)}"
    if cost.branches:
        b = cost.branches
        yield (
            f"branches        {count(b.executed)} by warps, {count(b.divergent)} divergent, "
            f"{b.active:.3g} of 32 lanes active"
        )
    if cost.barriers:
        yield f"barriers        {count(cost.barriers)} by warps"


def global_figures(traffic: GlobalTraffic) -> str:
    """Such as "32 requests, 4.0 KiB asked, 32.0 KiB moved in 1,024 sectors (12%)"."""
    return (
        f"{count(traffic.requests)} requests, {size(traffic.bytes_asked)} asked, "
        f"{size(traffic.bytes_moved)} moved in {count(traffic.sectors)} sectors "
        f"({traffic.efficiency:.0%})"
    )


def shared_figures(traffic: SharedTraffic) -> str:
    """Such as "32 requests, 1,024 wavefronts, 992 bank conflicts"."""
    return (
        f"{count(traffic.requests)} requests, {count(traffic.wavefronts)} wavefronts, "
        f"{count(traffic.conflicts)} bank conflicts"
    )


def atomic_figures(atomics: Atomics) -> str:
    """Such as "8 requests of 256 threads, 32 at one address"."""
    return (
        f"{count(atomics.requests)} requests of {count(atomics.lanes)} threads, "
        f"{atomics.contention:.3g} of a warp at one address"
    )


def resources(seen: Assembled, occupancy: Occupancy, dynamic: int) -> Iterator[str]:
    """Registers, spills, shared memory and occupancy."""
    spilled = seen.spill_stores + seen.spill_loads
    yield (
        f"{occupancy.architecture}: {seen.registers} registers a thread, "
        f"{f'{size(spilled)} of spills' if spilled else 'no spills'}, "
        f"{size(seen.shared + dynamic)} of shared memory a block"
    )
    yield (
        f"occupancy: {occupancy.blocks} blocks a multiprocessor, {occupancy.warps} of "
        f"{occupancy.max_warps} warps ({occupancy.fraction:.0%}), limited by {occupancy.limited_by}"
    )
    for sentence in advice.for_resources(seen, occupancy):
        yield f"! {sentence}"


def count(value: float) -> str:
    """A count with separators, one decimal if it is no whole number.

    Example:
        >>> count(1024), count(2.5)
        ('1,024', '2.5')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def size(n_bytes: float) -> str:
    """Bytes in the largest unit that leaves at least one.

    Example:
        >>> size(96), size(4096), size(3 << 20)
        ('96 B', '4.0 KiB', '3.0 MiB')
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if n_bytes >= 1024**power:
            return f"{n_bytes / 1024**power:,.1f} {unit}"
    return f"{n_bytes:,.0f} B"

"""Interpret a kernel: the grid's blocks one after another, or side by side where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blutrain.device.cpu.interpret.block import Block
from blutrain.device.cpu.interpret.events import Launch, Observer, Place
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.machine import Machine, Order
from blutrain.device.cpu.interpret.numbers import number
from blutrain.device.cpu.interpret.rewrite import GRID_SYNC, Functions
from blutrain.device.cpu.interpret.view import Memory, View
from blutrain.device.cpu.source import source_of
from blutrain.device.geometry import Dim, block_of, check_shared, grid_of
from blutrain.errors import KernelError, message


class Bfloat16(np.ndarray[Any, Any]):
    """A uint16 array whose elements are the bits of bfloat16 numbers."""


def interpret(
    kernel: Any,
    grid: Dim,
    block: Dim,
    *arguments: Any,
    shared: int = 0,
    observers: Sequence[Observer] = (),
    order: Order = "ascending",
    blocks: Sequence[int] | None = None,
) -> None:
    """Run a `@cuda.jit` kernel thread by thread, and tell observers what the threads do.

    Args:
        kernel: the kernel.
        grid: blocks, up to three extents.
        block: threads of a block, up to three extents.
        arguments: as of `blutrain.device.cpu.run`.
        shared: bytes of dynamic shared memory.
        observers: who is told.
        order: in which order threads run between two places where they meet, and blocks:
            "ascending", "reversed", or a seed for random orders.
        blocks: linear numbers of the blocks to run, each once; all of the grid's when None. At a
            barrier of the grid they wait for each other only.

    Raises:
        KernelFault: a thread leaves an array, or threads do not meet as they must.
        KernelError: the kernel cannot be interpreted, or the launch is impossible.
    """
    source = source_of(kernel)
    name = source.function.__name__
    launch = Launch(name, grid_of(name, grid), block_of(name, block))
    check_shared(name, shared)
    if len(arguments) != len(source.parameters):
        wrong = f"takes {len(source.parameters)} arguments ({', '.join(source.parameters)})"
        raise KernelError(message(f"kernel {name}", wrong, len(arguments)))
    if not (order in ("ascending", "reversed") or type(order) is int):
        wrong = 'order must be "ascending", "reversed" or a seed'
        raise KernelError(message(f"kernel {name}", wrong, repr(order)))
    machine = Machine(launch, observers, order)
    seen = [_seen(machine, p, a) for p, a in zip(source.parameters, arguments, strict=True)]
    callee = Functions(bool(machine.on_branch)).of(kernel, generator=True)
    nx, ny, _ = launch.grid
    chosen = range(int(np.prod(launch.grid))) if blocks is None else blocks
    standing: dict[int, Block] = {}
    # As on a GPU, a division by zero gives infinity, and nobody is told.
    with np.errstate(all="ignore"):
        for n in machine.ordered(chosen):
            made = Block(machine, n, (n % nx, n // nx % ny, n // (nx * ny)), shared)
            made.begin(callee, seen)
            if not made.run():
                standing[n] = made
        while standing:
            _meet(machine, standing, chosen)
            for n in machine.ordered(standing):
                if standing[n].run(dict.fromkeys(standing[n].waiting())):
                    del standing[n]


def _meet(machine: Machine, standing: dict[int, Block], chosen: Sequence[int]) -> None:
    """All blocks that run pass a barrier of the grid."""
    waiting = {n: block.waiting() for n, block in standing.items()}
    places = [Place(n, t) for n, threads in waiting.items() for t in threads]
    sites = [site for threads in waiting.values() for site in threads.values()]
    if len(standing) != len(chosen):
        gone = min(set(chosen) - standing.keys())
        raise KernelFault(
            "deadlock", machine.launch, sites[0],
            f"{machine.launch.who(places[0])} waits for the grid, but block {gone} has ended",
            "let all blocks come to the barrier", [places[0], Place(gone, 0)],
        )  # fmt: skip
    for observer in machine.on_barrier:
        observer(GRID_SYNC, sites, places)


def _seen(machine: Machine, name: str, value: Any) -> Any:
    """An argument as the kernel sees it."""
    if isinstance(value, np.ndarray):
        half = "bfloat16" if isinstance(value, Bfloat16) else ""
        memory = Memory("global", name, value.ctypes.data, value.nbytes)
        return View(machine, memory, value.view(np.ndarray), 0, half)
    if isinstance(value, tuple):
        parts = [_seen(machine, f"{name}[{k}]", v) for k, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if type(value) is float:
        return np.float32(value)  # as in a launch
    return number(value)

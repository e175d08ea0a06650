"""What a kernel would cost on a GPU, counted on the CPU.

`explain` lets `blutrain.device.cpu.interpret` execute some blocks of a kernel thread by thread,
notes every access, decision and barrier, and puts the threads together again by warps: what a warp
does at one time is what the hardware counts.

| file | does |
|---|---|
| `copies.py` | the arguments, where a GPU would have them |
| `observe.py`, `recorder.py` | notes what threads do |
| `loops.py`, `warps.py` | puts it together by warps |
| `counting.py`, `costs.py` | sectors and wavefronts of accesses; sums of them |
| `occupancy.py` | blocks that a multiprocessor holds |
| `explanation.py`, `report.py`, `advice.py` | the result and its text |

What the compiler does is not seen: it may keep a value that is read twice, join neighbouring
accesses into wider ones, and unroll or predicate. Local arrays count as registers. Caches are not
modelled: sectors are what warps ask of the first-level cache.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from blutrain.device.arguments import numba_type, type_of
from blutrain.device.array import Array
from blutrain.device.cpu.explain.copies import Copies
from blutrain.device.cpu.explain.costs import Cost, Line
from blutrain.device.cpu.explain.explanation import Explanation
from blutrain.device.cpu.explain.loops import around
from blutrain.device.cpu.explain.observe import Watch
from blutrain.device.cpu.explain.occupancy import multiprocessor, occupancy
from blutrain.device.cpu.explain.recorder import Recorder
from blutrain.device.cpu.interpret import Bfloat16, interpret
from blutrain.device.cpu.run import pack_argument
from blutrain.device.cpu.source import Source, is_device_function, source_of
from blutrain.device.geometry import Dim, Dim3, block_of, check_shared, grid_of
from blutrain.device.pointer import array_at
from blutrain.dtypes import bfloat16
from blutrain.errors import DeviceError, KernelError, message

if TYPE_CHECKING:  # a kernel is compiled for a GPU only when one is explained
    from blutrain.device.cuda.compile import ComputeCapability
    from blutrain.device.cuda.ptxas import Assembled

__all__ = ["Explanation", "explain"]


def explain(
    kernel: Any,
    grid: Dim,
    block: Dim,
    *arguments: Any,
    shared: int = 0,
    blocks: Sequence[Dim] | Literal["all"] | None = None,
    architecture: str = "sm_90",
) -> Explanation:
    """Count what a kernel would cost on a GPU: memory traffic, bank conflicts, divergence.

    A few blocks are executed on copies of the arguments; no GPU is needed, and nothing is changed.

    Args:
        kernel: what `numba.cuda.jit` returned.
        grid: blocks, as an int or up to three of them.
        block: threads a block, likewise.
        arguments: NumPy arrays, tensors and scalars.
        shared: bytes of dynamic shared memory a block.
        blocks: the indices of those to execute, or "all"; one in the middle of the grid when None.
        architecture: for registers and occupancy.

    Returns:
        The figures by source line, in total and for the grid; shown with advice.

    Raises:
        KernelError: the kernel, the grid or the block cannot run, or a thread leaves an array.

    Example:
        >>> import numpy as np
        >>> import blutrain as bt
        >>> from blutrain.device.cpu import examples
        >>> x, y = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
        >>> seen = bt.explain(examples.double, 4, 256, x, y)
        >>> seen.total.global_stores  # 8 warps write 32 neighbouring floats each: 4 sectors
        GlobalTraffic(requests=8, bytes_asked=1024, sectors=32, least_sectors=32)
        >>> seen.grid_total.global_stores.bytes_moved
        4096
        >>> seen.occupancy.blocks, seen.occupancy.limited_by
        (8, 'threads')
    """
    source = source_of(kernel)
    name = source.function.__name__
    grid3, block3 = grid_of(name, grid), block_of(name, block)
    check_shared(name, shared)
    multiprocessor(architecture)
    _refuse_addresses(f"kernel {name}", source, set())
    chosen = _chosen(name, grid3, blocks)
    copies = Copies()
    given = [_Argument(f"kernel {name}", a, copies) for a in arguments]
    types = tuple(a.type for a in given)
    if len(types) != len(source.parameters):
        wrong = f"takes {len(source.parameters)} arguments ({', '.join(source.parameters)})"
        raise KernelError(message(f"kernel {name}", wrong, len(types)))

    file, line = source.function.__code__.co_filename, source.first_line + source.node.lineno - 1
    watch = Watch(around(file, line).function)
    numbers = [x + grid3[0] * (y + grid3[1] * z) for x, y, z in chosen]
    values = [a.value for a in given]
    interpret(kernel, grid3, block3, *values, shared=shared, observers=[watch], blocks=numbers)
    lines = _counted(source, list(watch.recorders.values()))
    resources, why = _resources(kernel, types, architecture)
    found = None
    if resources is not None:
        threads = block3[0] * block3[1] * block3[2]
        asked = resources.shared + shared
        found = occupancy(threads, resources.registers, asked, architecture)
    return Explanation(name, grid3, block3, chosen, lines, shared, resources, found, why)


def _chosen(name: str, grid: Dim3, blocks: Sequence[Dim] | str | None) -> list[Dim3]:
    """The blocks to execute."""
    if blocks is None:
        x, y, z = ((n - 1) // 2 for n in grid)
        return [(x, y, z)]
    if blocks == "all":
        return [(x, y, z) for z, y, x in itertools.product(*map(range, reversed(grid)))]
    if isinstance(blocks, str) or not isinstance(blocks, Sequence):
        raise KernelError(message(name, 'blocks must be a list of indices or "all"', repr(blocks)))
    chosen = []
    for index in blocks:
        parts = index if isinstance(index, tuple) else (index,)
        place = (*parts, 0, 0)[:3]
        whole = len(parts) <= 3 and all(isinstance(p, int) for p in parts)
        if not whole or not all(0 <= p < n for p, n in zip(place, grid, strict=True)):
            raise KernelError(message(name, f"blocks must be indices within grid {grid}", index))
        if place not in chosen:
            chosen.append(place)
    if not chosen:
        raise KernelError(message(name, "blocks must name at least one block", list(blocks)))
    return chosen


def _refuse_addresses(where: str, source: Source, seen: set[Source]) -> None:
    """Refuse a kernel that makes arrays from addresses: it would work on the originals."""
    seen.add(source)
    for node in ast.walk(source.node):
        value = source.resolve(node.func) if isinstance(node, ast.Call) else None
        if value is array_at:
            wrong = "explain works on copies of the arguments, which are not at their addresses"
            raise KernelError(message(where, wrong, "array_at"))
        if is_device_function(value) and source_of(value) not in seen:
            _refuse_addresses(where, source_of(value), seen)


class _Argument:
    """An argument of the kernel: its Numba type, and a copy of what it holds."""

    def __init__(self, where: str, value: Any, copies: Copies) -> None:
        if hasattr(value, "array"):  # a tensor
            value = value.array()
        if isinstance(value, Array):
            self.type = numba_type(type_of(value, where))
            self.value: Any = copies.of_device(value)
            if value.dtype is bfloat16:
                self.value = self.value.view(Bfloat16)
            return
        self.type, _ = pack_argument(where, value)
        if isinstance(value, np.ndarray):
            value = copies.of(value)
        self.value = value


def _counted(source: Source, blocks: list[Recorder]) -> list[Line]:
    """The source's lines, each with its cost for one block: the mean of those that ran."""
    costs: defaultdict[tuple[str, int], Cost] = defaultdict(Cost)
    for recorder in blocks:
        for site, cost in recorder.costs():
            costs[site.file, site.line] += cost
    if len(blocks) > 1:  # of one, the figures stay integers
        for where in costs:
            costs[where] *= 1 / len(blocks)
    return [
        Line(file, number, text, costs[file, number])
        for file, number, text in _source_lines(source, list(costs))
    ]


def _source_lines(source: Source, costly: list[tuple[str, int]]) -> Iterator[tuple[str, int, str]]:
    """The kernel's own lines, then those of other functions that cost anything."""
    file, first = source.function.__code__.co_filename, source.first_line
    own = textwrap.dedent("".join(source.lines)).splitlines()
    for k, text in enumerate(own):
        yield file, first + k, text
    for other, number in sorted(costly):
        if not (other == file and first <= number < first + len(own)):
            yield other, number, linecache.getline(other, number).strip()


def _resources(
    kernel: Any, types: tuple[Any, ...], architecture: str
) -> tuple[Assembled | None, str]:
    """What the assembler says, or None and why it says nothing.

    There may be none, or it may want what is linked in only where the kernel runs.

    Raises:
        KernelError: the kernel does not compile for a GPU.
    """
    from blutrain.device.cuda.compile import compile_kernel
    from blutrain.device.cuda.ptxas import assemble

    digits = architecture.removeprefix("sm_").rstrip("af")
    suffix = architecture[len("sm_") + len(digits) :]
    major, minor = int(digits[:-1]), int(digits[-1])
    capability: ComputeCapability = (major, minor, suffix) if suffix else (major, minor)
    ptx = compile_kernel(kernel, types, capability)
    try:
        return assemble(ptx, capability, kernel.__name__, kernel.targetoptions), ""
    except (DeviceError, KernelError) as error:
        return None, str(error)

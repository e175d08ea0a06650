"""Runs the threads of one block, one after another between the places where they meet."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blutrain.device.cpu.interpret.events import Place, Site
from blutrain.device.cpu.interpret.fault import KernelFault
from blutrain.device.cpu.interpret.machine import WARP, Machine
from blutrain.device.cpu.interpret.meetings import (
    block_answer,
    mask_of,
    source_lane,
    warp_answers,
)
from blutrain.device.cpu.interpret.rewrite import EARLY, GRID_SYNC, Callee
from blutrain.device.cpu.interpret.thread import Cuda
from blutrain.device.cpu.interpret.view import Memory, View
from blutrain.device.geometry import Dim3
from blutrain.errors import BlutrainError

SHARED_ALIGNMENT = 16
_HERE = Path(__file__).parent
Meeting = tuple[str, Site, tuple[Any, ...]]


class Block:
    """One block of a grid: its shared memory and its threads.

    Args:
        machine: the launch.
        number, position: which block.
        dynamic: bytes of dynamic shared memory.
    """

    def __init__(self, machine: Machine, number: int, position: Dim3, dynamic: int) -> None:
        self.machine, self.number, self.position = machine, number, position
        self._shared: dict[Site, View] = {}
        self._dynamic_bytes = dynamic
        self._dynamic: tuple[Memory, Any] | None = None
        self._end = -(-dynamic // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        self._threads: list[Generator[Meeting, Any, Any]] = []
        self._waiting: dict[int, Meeting] = {}
        # Of a thread that is at its end: whether it returned before the kernel's last line.
        self._ended: dict[int, bool] = {}

    def begin(self, kernel: Callee, arguments: Sequence[Any]) -> None:
        """Make the threads."""
        nx, ny, nz = self.machine.launch.block
        places = [(x, y, z) for z in range(nz) for y in range(ny) for x in range(nx)]
        self._threads = [
            kernel.function(Cuda(self, n, place), *arguments) for n, place in enumerate(places)
        ]
        for observer in self.machine.on_block_begin:
            observer(self.number)

    def run(self, answers: Mapping[int, Any] | None = None) -> bool:
        """Run all threads to their ends or to a barrier of the grid; gives whether they ended.

        Raises:
            KernelFault: a thread fails, or threads wait for each other for ever.
        """
        answers = dict.fromkeys(range(len(self._threads))) if answers is None else answers
        while answers:
            for n in self.machine.ordered(answers):
                self._waiting.pop(n, None)
                self._continue(n, answers[n])
            answers = self._warps() or self._whole()
        if not self._waiting:
            for observer in self.machine.on_block_end:
                observer(self.number)
        elif not self._at_grid():
            self._stuck()
        return not self._waiting

    def waiting(self) -> dict[int, Site]:
        """The threads that wait, and where."""
        return {n: site for n, (_, site, _) in self._waiting.items()}

    def shared_array(self, site: Site, name: str, shape: Any, kind: np.dtype[Any]) -> View:
        """The shared array that is declared at a place of the source."""
        found = self._shared.get(site)
        if found is not None:
            return found
        if shape in (0, (0,)):
            if self._dynamic is None:
                memory = self._allocate(name, 0, self._dynamic_bytes)
                self._dynamic = memory, np.zeros(self._dynamic_bytes, np.uint8)
            memory, raw = self._dynamic
            data = raw[: raw.size // kind.itemsize * kind.itemsize].view(kind)
        else:
            data = np.zeros(shape, kind)
            memory = self._allocate(name, self._end, data.nbytes)
            self._end += -(-data.nbytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        made = self._shared[site] = View(self.machine, memory, data)
        return made

    def _allocate(self, name: str, address: int, size: int) -> Memory:
        memory = Memory("shared", name, address, size)
        for observer in self.machine.on_allocate:
            observer(memory, self.machine.place)
        return memory

    def _continue(self, n: int, answer: Any) -> None:
        """Run a thread on to where it meets others, or to its end."""
        self.machine.place = Place(self.number, n)
        thread = self._threads[n]
        try:
            met = thread.send(answer)
            while met[0] == "activemask":  # answered at once: who is active, nobody can know
                met = thread.send(1 << n % WARP)
            self._waiting[n] = met
        except StopIteration as end:
            self._ended[n] = end.value == EARLY
        except BlutrainError:
            raise
        except Exception as error:  # a kernel's own mistakes can be any
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> KernelFault:
        frames = traceback.extract_tb(error.__traceback__)
        # The interpreter's own frames lie around the kernel's.
        frame = [f for f in frames if Path(f.filename).parent != _HERE][-1]
        site = Site(frame.filename, frame.lineno or 0, frame.colno or 0, frame.line or "")
        who = self.machine.launch.who(self.machine.place)
        wrong = f"{who} failed with {type(error).__name__}: {error}"
        return KernelFault(
            "failure", self.machine.launch, site, wrong, "correct the expression",
            [self.machine.place],
        )  # fmt: skip

    def _warps(self) -> dict[int, Any]:
        """What the lanes get that wait for lanes of their warp that have all come."""
        answers: dict[int, Any] = {}
        groups: dict[tuple[int, str, int], list[int]] = {}
        for n, (what, _, operands) in self._waiting.items():
            if not what.startswith("syncthreads") and what != GRID_SYNC:
                mask = mask_of(what, operands)
                if not mask >> n % WARP & 1:
                    self._excluded(n, what, mask)
                groups.setdefault((n // WARP, what, mask), []).append(n)
        for (warp, what, mask), members in groups.items():
            first = warp * WARP
            wanted = {
                first + lane
                for lane in range(WARP)
                if mask >> lane & 1 and first + lane < len(self._threads)
            } - self._ended.keys()
            if wanted != set(members):
                continue
            members.sort()
            self._check_sources(what, members)
            for observer in self.machine.on_warp:
                sites = [self._waiting[n][1] for n in members]
                observer(what, mask, sites, [Place(self.number, n) for n in members])
            given = {n % WARP: self._waiting[n][2] for n in members}
            got = warp_answers(what, given)
            answers |= {first + lane: answer for lane, answer in got.items()}
        return answers

    def _whole(self) -> dict[int, Any]:
        """What all threads get, if all wait at a barrier of the block."""
        kinds = {what for what, _, _ in self._waiting.values()}
        if len(kinds) != 1 or not next(iter(kinds)).startswith("syncthreads"):
            return {}
        what = kinds.pop()
        members = sorted(self._waiting)
        skipped = [n for n, early in self._ended.items() if not early]
        if skipped:
            self._divergent(members[0], min(skipped))
        for observer in self.machine.on_barrier:
            sites = [self._waiting[n][1] for n in members]
            observer(what, sites, [Place(self.number, n) for n in members])
        answer = block_answer(what, [self._waiting[n][2] for n in members])
        return dict.fromkeys(members, answer)

    def _at_grid(self) -> bool:
        return {what for what, _, _ in self._waiting.values()} == {GRID_SYNC}

    # What goes wrong ---------------------------------------------------------------------------

    def _fault(self, kind: str, n: int, wrong: str, do: str, others: Sequence[int] = ()) -> None:
        sites = [self._waiting[k][1] if k in self._waiting else self._waiting[n][1]
                 for k in (n, *others)]  # fmt: skip
        places = [Place(self.number, k) for k in (n, *others)]
        raise KernelFault(kind, self.machine.launch, sites[0], wrong, do, places, sites)

    def _who(self, n: int) -> str:
        return self.machine.launch.who(Place(self.number, n))

    def _state(self, n: int) -> str:
        """What another thread does at present."""
        if n in self._waiting:
            what, site, operands = self._waiting[n]
            warp = not what.startswith(("syncthreads", "grid"))
            mask = f" with mask {mask_of(what, operands):#010x}" if warp else ""
            return f"{self._who(n)} waits at {what}{mask} in {site}"
        return f"{self._who(n)} has ended"

    def _excluded(self, n: int, what: str, mask: int) -> None:
        self._fault(
            "shuffle", n, f"{self._who(n)} calls {what} with mask {mask:#010x}, which lacks its "
            f"own lane {n % WARP}", "name every lane that comes here in the mask",
        )  # fmt: skip

    def _check_sources(self, what: str, members: Sequence[int]) -> None:
        """A shuffle must read from a lane that takes part in it."""
        for n in members:
            source = source_lane(what, n % WARP, self._waiting[n][2])
            if source is None:
                continue
            other = n // WARP * WARP + source
            if other not in members:
                exists = other < len(self._threads)
                state = self._state(other) if exists else f"lane {source} has no thread"
                self._fault(
                    "shuffle", n, f"{self._who(n)} reads lane {source} in {what}, which takes no "
                    f"part in it: {state}; the value is undefined",
                    "let every lane that is read come there", [other] if exists else [],
                )  # fmt: skip

    def _divergent(self, n: int, other: int) -> None:
        self._fault(
            "divergent barrier", n, f"{self._who(n)} waits at {self._waiting[n][0]}, but "
            f"{self._who(other)} ended without coming to it",
            "move the barrier out of the branch, so that all threads of the block come to it",
            [other],
        )  # fmt: skip

    def _stuck(self) -> None:
        """Say why nobody can go on."""
        for n, (what, _, operands) in sorted(self._waiting.items()):
            if what.startswith("syncthreads") or what == GRID_SYNC:
                continue
            mask, first = mask_of(what, operands), n // WARP * WARP
            for lane in range(WARP):
                other = first + lane
                if not mask >> lane & 1 or other in self._ended or other >= len(self._threads):
                    continue
                met = self._waiting[other]
                if (met[0], met[2] and mask_of(met[0], met[2])) != (what, operands and mask):
                    self._fault(
                        "shuffle", n, f"{self._who(n)} waits at {what} with mask {mask:#010x} for "
                        f"lane {lane}, which does not come: {self._state(other)}",
                        "call it where all lanes of the mask come, or take ballot_sync's result "
                        "from before the branch for the mask", [other],
                    )  # fmt: skip
        n = min(self._waiting)
        other = next((k for k in sorted(self._waiting) if self._waiting[k][0] !=
                      self._waiting[n][0]), n)  # fmt: skip
        self._fault(
            "divergent barrier" if other != n else "deadlock", n,
            f"{self._state(n)}, {self._state(other)}: they wait for each other for ever",
            "let all threads of the block come to the same barrier", [other],
        )  # fmt: skip

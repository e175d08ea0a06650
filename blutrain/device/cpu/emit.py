"""Write the compiled program as Python text: blocks outside, a loop over threads for each region.

The text is what is compiled, and can be read: `CompiledKernel.source`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from numba import types

from blutrain.device.cpu import cooperative, visits, votes
from blutrain.device.cpu.arrays import (
    argument,
    dynamic_array,
    dynamic_bytes,
    poison,
    scratch_array,
    slot_count,
    stack_array,
)  # fmt: skip
from blutrain.device.cpu.bounds import Checks, checked
from blutrain.device.cpu.cooperative import Abandoned
from blutrain.device.cpu.distribution import Distribution
from blutrain.device.cpu.executable import NegativeArgument
from blutrain.device.cpu.integers import unsigned
from blutrain.device.cpu.math import minimum
from blutrain.device.cpu.options import Options
from blutrain.device.cpu.program import WARP, Memory, Program
from blutrain.device.cpu.ranges import Facts
from blutrain.device.cpu.regions import Builder
from blutrain.device.cpu.source import Source
from blutrain.device.cpu.storage import Storage
from blutrain.device.cpu.syntax import call, clone, name, reads, text_of, writes
from blutrain.device.cpu.tree import (
    Check,
    GridBarrier,
    MaskedLoop,
    Node,
    Once,
    Region,
    UniformIf,
    UniformLoop,
    Vote,
)  # fmt: skip

# Arrays of a block are on the C stack, where LLVM knows that nothing else points into them, up to
# this many bytes; what does not fit is in scratch memory that the caller gives.
STACK_LIMIT = 256 << 10


_VOTES = {
    "syncthreads_count": "count_set",
    "syncthreads_or": "or_set",
    "syncthreads_and": "and_set",
    "any_sync": "any_set",
    "all_sync": "and_set",
}


class _ByThread(ast.NodeTransformer):
    """Carried local arrays by thread."""

    def __init__(self, carried_arrays: set[str]) -> None:
        self.carried_arrays = carried_arrays

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`q[i]` of a carried array is `q__t[_t, i]`."""
        base = node.value
        if not (isinstance(base, ast.Name) and base.id in self.carried_arrays):
            return self.generic_visit(node)
        index = self.visit(node.slice)
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        whole = ast.Tuple([name("_t"), *parts], ast.Load())
        return ast.Subscript(name(base.id + "__t"), whole, node.ctx)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A carried array as a whole."""
        if node.id not in self.carried_arrays:
            return node
        return ast.Subscript(name(node.id + "__t"), name("_t"), node.ctx)


class Emitter:
    """Writes one program.

    Attributes:
        objects: what the text's free names mean, beside the program's own objects.
        scratch_bytes: memory that the program needs beyond the stack.
        checks: where the bounds checks are.
    """

    def __init__(
        self,
        parameters: Sequence[str],
        builder: Builder,
        storage: Storage,
        program: Program,
        options: Options,
        facts: Facts,
    ) -> None:
        self.parameters, self.tree, self.storage = parameters, builder.tree, storage
        self.program, self.options, self.facts = program, options, facts
        self.objects: dict[str, object] = {
            "_minimum": minimum, "_ballot": votes.ballot, "_match": votes.match,
            "_unsigned": unsigned,
            "_NegativeArgument": NegativeArgument,
        }  # fmt: skip
        self.distribution = Distribution(parameters, program)
        self.checks = Checks()
        self.objects["_checked"] = checked
        self.lines: list[str] = []
        self.origins: dict[int, tuple[Source, int]] = {}
        self.scratch_bytes = 0
        padded = -(-program.n_threads // WARP) * WARP
        self.n_padded = padded

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _statements(self, depth: int, body: Sequence[ast.stmt]) -> None:
        for s in body:
            origin = getattr(s, "origin", None)
            if origin is not None:
                self.origins[len(self.lines)] = origin
            if isinstance(s, ast.If | ast.For | ast.While):
                self._line(depth, _head(s))
                self._statements(depth + 1, s.body)
                if s.orelse:
                    self._line(depth, "else:")
                    self._statements(depth + 1, s.orelse)
            else:
                for line in text_of(s).splitlines():
                    self._line(depth, line)

    def origin(self, line: int) -> tuple[Source, int] | None:
        """Where in the kernel's sources a line of the program (the first is 1) came from."""
        before = [k for k in self.origins if k <= line - 1]
        return self.origins[max(before)] if before else None

    def _indexed(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        copies = [self.facts.unsigned_indices(clone(s)) for s in body]
        if self.options.check_bounds:
            return self.checks.statements(copies, in_thread=False)  # type: ignore[arg-type]
        return copies  # type: ignore[return-value]

    # The two programs ---------------------------------------------------------------------------

    def kernel(self, kinds: Sequence[types.Type]) -> str:
        """The program for parameters of these types."""
        self.lines, self.scratch_bytes = [], 0
        program = self.program
        self._line(0, "def kernel(_first, _last, _gx, _gy, _gz, _shared_bytes, _scratch, _slots):")
        slot = 0
        for k, (parameter, kind) in enumerate(zip(self.parameters, kinds, strict=True)):
            self.objects[f"_argument{k}"] = argument(kind, slot)
            self._line(1, f"{parameter} = _argument{k}(_slots)")
            slot += slot_count(kind)
        arrays = self._memory()
        self._checks_at = len(self.lines)
        self._line(1, "for _b in range(_first, _last):")
        self._line(2, "_bx = _b % _gx")
        self._line(2, "_by = _b // _gx % _gy")
        self._line(2, "_bz = _b // (_gx * _gy)")
        if self.options.poison:
            self.objects["_poison"] = poison
            for array in arrays:
                self._line(2, f"_poison({array})")
        depth = 2
        if program.warps_apart:
            for place, n in (("_wz", program.shape[2]), ("_wy", program.shape[1])):
                if n > 1:
                    self._line(depth, f"for {place} in range({n}):")
                    depth += 1
        self._tree(depth, self.tree)
        checks = [
            f"    if {parameter} < 0: raise _NegativeArgument"
            for parameter in sorted(self.facts.assumed)
        ]
        # What split loops hand on; known, like the checks, when all regions are written.
        checks += [f"    {c} = _cells({n})" for c, n in self.distribution.cells.items()]
        self.lines[self._checks_at : self._checks_at] = checks
        self.origins = {
            k + len(checks) * (k >= self._checks_at): origin for k, origin in self.origins.items()
        }
        return "\n".join(self.lines) + "\n"

    def _memory(self) -> list[str]:
        """Allocate every array of a block; gives their names."""
        program, n = self.program, self.program.n_threads
        wanted: dict[str, Memory] = {}
        for array, mem in program.shared.items():
            if mem.shape != (0,):
                wanted[array] = mem
                continue
            # All dynamic shared arrays are views of the same bytes, as in CUDA.
            if "_dynamic" not in self.objects:
                self.objects["_dynamic"] = dynamic_bytes
                self._line(1, "_bytes = _dynamic(_shared_bytes)")
            self.objects[f"_dynamic_{array}"] = dynamic_array(mem.dtype)
            self._line(1, f"{array} = _dynamic_{array}(_bytes)")
        for array, mem in program.local.items():
            carried = array in self.storage.carried_arrays
            key = array + "__t" if carried else array
            wanted[key] = Memory((n, *mem.shape), mem.dtype) if carried else mem
        used = 0
        for array, mem in wanted.items():
            if used + mem.nbytes <= STACK_LIMIT:
                used += mem.nbytes
                self.objects[f"_make_{array}"] = stack_array(mem.shape, mem.dtype)
                self._line(1, f"{array} = _make_{array}()")
                continue
            make = scratch_array(mem.shape, mem.dtype, self.scratch_bytes)
            self.objects[f"_make_{array}"] = make
            self._line(1, f"{array} = _make_{array}(_scratch)")
            self.scratch_bytes += -(-mem.nbytes // 64) * 64
        cells = [v + "__t" for v in sorted(self.storage.carried)]
        for array in cells:
            self._line(1, f"{array} = _cells({self.n_padded})")
        return [*wanted, *cells]

    # The tree -----------------------------------------------------------------------------------

    def _tree(self, depth: int, nodes: Sequence[Node]) -> None:
        mark = len(self.lines)
        for node in nodes:
            if isinstance(node, Region):
                self._region(depth, node)
            elif isinstance(node, Once):
                self._statements(depth, self._indexed(node.statements))
            elif isinstance(node, Vote):
                self._vote(depth, node)
            elif isinstance(node, Check):
                self._check(depth, node)
            elif isinstance(node, GridBarrier):
                self._grid_barrier(depth, node)
            elif isinstance(node, UniformIf):
                self._line(depth, f"if {text_of(node.test)}:")
                self._tree(depth + 1, node.then)
                if node.otherwise:
                    self._line(depth, "else:")
                    self._tree(depth + 1, node.otherwise)
            elif isinstance(node, UniformLoop):
                self._line(depth, _head(node.head))
                self._tree(depth + 1, node.body)
            elif isinstance(node, MaskedLoop):
                test = self._over_block("any_set", node.mask)
                self._line(depth, f"while {text_of(test)}:")
                self._tree(depth + 1, node.body)
        if len(self.lines) == mark:
            self._line(depth, "pass")

    def _over_block(self, function: str, operand: str) -> ast.expr:
        self.objects[f"_{function}"] = getattr(votes, function)
        return call(f"_{function}", name(operand + "__t"), ast.Constant(self.program.n_threads))

    def _vote(self, depth: int, node: Vote) -> None:
        if node.kind == "ballot_sync":
            self._line(depth, f"{node.target} = _ballot({node.operand}__t, 0, {WARP})")
            return
        vote = text_of(self._over_block(_VOTES[node.kind], node.operand))
        self._line(depth, f"{node.target} = {vote}{' != 0' if node.kind == 'all_sync' else ''}")

    def _check(self, depth: int, node: Check) -> None:
        n = self.program.n_threads
        group = WARP if node.kind == "syncwarp" else n
        # Under a mask, threads that are off do not reach the barrier.
        self._line(depth, f"for _w in range(0, {n}, {group}):")
        self._line(depth + 1, f"for _t in range(_w, _minimum(_w + {group}, {n})):")
        self._line(depth + 2, f"if {node.mask}__t[_t] != {node.mask}__t[_w]:")
        self._line(depth + 3, f"raise RuntimeError('only some threads reach a {node.kind}')")

    def _grid_barrier(self, depth: int, node: GridBarrier) -> None:
        self.objects.update(_wait_for_grid=cooperative.wait_for_grid, _Abandoned=Abandoned)
        if node.mask:
            self._line(depth, f"if {text_of(self._over_block('any_set', node.mask))}:")
            depth += 1
        self._line(depth, "if _wait_for_grid(_b) != 0: raise _Abandoned")

    # A region -----------------------------------------------------------------------------------

    def _region(self, depth: int, region: Region) -> None:
        by_thread = _ByThread(self.storage.carried_arrays)
        body: list[ast.stmt] = [by_thread.visit(clone(s)) for s in region.statements]
        # Recomputed variables get their value at the head of every region that reads them.
        body = [s for s in body if not self._is_recomputation(s)]
        if not body:
            return
        use = self.storage.use[id(region)]
        needed = self._recomputed(reads(body), writes(body))
        mine = sorted(self.storage.carried & use.names)
        loads = [v for v in mine if v in use.exposed or (v in use.written and v not in use.defined)]
        stores = [v for v in mine if v in use.written]
        values = self.storage.recomputed
        bound = None
        if self.options.in_order:
            body, bound = self.facts.clip(body, self._places())
        body = [self.facts.unsigned_indices(s) for s in body]  # type: ignore[misc]
        if self.options.check_bounds:
            body = self.checks.statements(body, in_thread=True)
        else:
            body = self.distribution.statements(body)
        used = reads(body) | _all_reads(needed, values)
        opening, n_loops = visits.loops(self.program, self.options, bound, used)
        for line in opening:
            self._line(depth, line)
        depth += n_loops
        for v in needed:
            self._line(depth, f"{v} = {text_of(values[v])}")
        for v in loads:
            self._line(depth, f"{v} = {v}__t[_t]")
        self._statements(depth, body)
        for v in stores:
            self._line(depth, f"{v}__t[_t] = {v}")

    def _is_recomputation(self, s: ast.stmt) -> bool:
        target = s.targets[0] if isinstance(s, ast.Assign) else None
        return isinstance(target, ast.Name) and target.id in self.storage.recomputed

    def _places(self) -> frozenset[str]:
        """Names that the innermost loop over the threads may count with."""
        return frozenset({"_t", "_lane"} if self.program.is_flat else {"_tx"})

    def _recomputed(self, used: set[str], written: set[str]) -> list[str]:
        """Variables to compute again at the head of a region."""
        needed: set[str] = set()
        pending = set(used)
        while pending:
            v = pending.pop()
            if v in self.storage.recomputed and v not in needed and v not in written:
                needed.add(v)
                pending |= reads(self.storage.recomputed[v])
        return [v for v in self.storage.recomputed if v in needed]


def _head(s: ast.If | ast.For | ast.While) -> str:
    """The line that opens a construct."""
    if isinstance(s, ast.For):
        return f"for {text_of(s.target)} in {text_of(s.iter)}:"
    return f"{'if' if isinstance(s, ast.If) else 'while'} {text_of(s.test)}:"


def _all_reads(needed: Sequence[str], values: Mapping[str, ast.expr]) -> set[str]:
    return set().union(*(reads(values[v]) for v in needed)) if needed else set()

"""Where each variable of a thread lives: nowhere, in its region, or in an array over all threads.

A variable that is used in one region only stays an ordinary local variable of its loop over the
threads. One that is computed from thread and block positions and from constants (`row`, `lane`) is
computed again in each region, which is cheaper than memory. Any other that lives from one region
to the next is *carried*: it has an array with an element a thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from blutrain.device.cpu.program import Memory, Program
from blutrain.device.cpu.regions import Builder
from blutrain.device.cpu.syntax import (  # fmt: skip
    BLOCK_NAMES,
    LOOPS,
    THREAD_NAMES,
    called,
    has,
    loads_memory,
    names,
    reads,
    walk,
    writes,
)
from blutrain.device.cpu.tree import (
    Node,
    Once,
    Region,
    UniformLoop,
    Vote,
    children,
    regions,
)  # fmt: skip
from blutrain.device.cpu.uniformity import Uniformity, is_pure


@dataclass(eq=False)
class Use:
    """How a region uses names.

    Attributes:
        names: all that occur.
        exposed: read, perhaps, before the region itself gave them a value.
        defined: given a value on every path.
        written: given a value on some path.
    """

    region: Region
    names: set[str]
    exposed: set[str]
    defined: set[str]
    written: set[str]


def exposed(body: Sequence[ast.stmt], defined: set[str]) -> tuple[set[str], set[str]]:
    """(names read before they are surely given a value, names surely given a value)."""
    early: set[str] = set()
    defined = set(defined)
    for s in body:
        if isinstance(s, ast.If):
            early |= reads(s.test) - defined
            then, in_then = exposed(s.body, defined)
            otherwise, in_else = exposed(s.orelse, defined)
            early |= then | otherwise
            defined |= in_then & in_else
        elif isinstance(s, LOOPS):
            early |= reads(s.iter if isinstance(s, ast.For) else s.test) - defined
            target = writes(s.target) if isinstance(s, ast.For) else set()
            inner, in_body = exposed(s.body, defined | target)
            early |= inner
            if isinstance(s, ast.For) and _surely_runs(s):
                defined |= in_body
        else:
            early |= reads(s) - defined
            defined |= writes(s)
    return early, defined


def _surely_runs(s: ast.For) -> bool:
    """Whether a loop over a constant range runs its whole body at least once."""
    if called(s.iter) != "range" or has(s, (ast.Break, ast.Continue)):
        return False
    assert isinstance(s.iter, ast.Call)
    if not all(isinstance(a, ast.Constant) for a in s.iter.args):
        return False
    return len(range(*(a.value for a in s.iter.args))) > 0  # type: ignore[attr-defined]


def fills(body: Sequence[ast.stmt], array: str, shape: tuple[int, ...]) -> bool:
    """Whether the first use of a local array gives a value to all of its elements."""
    using = [s for s in body if array in names(s)]
    if not using:
        return True
    s, extents = using[0], {}
    while isinstance(s, ast.For) and called(s.iter) == "range" and len(s.body) == 1:
        assert isinstance(s.iter, ast.Call) and isinstance(s.target, ast.Name)
        if len(s.iter.args) != 1 or not isinstance(s.iter.args[0], ast.Constant):
            break
        extents[s.target.id] = s.iter.args[0].value
        s = s.body[0]
    if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
        if array not in reads(s.value):
            index = s.targets[0].slice
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            found = [p.id if isinstance(p, ast.Name) else "" for p in parts]
            different = len(found) == len(shape) == len(set(found))
            if different and all(extents.get(p) == n for p, n in zip(found, shape, strict=True)):
                return True
    # All uses may lie in one construct that fills the array before it uses it.
    first = using[0]
    if len(using) > 1 or not isinstance(first, (*LOOPS, ast.If)):
        return False
    if isinstance(first, ast.If):
        return (
            array not in names(first.test)
            and fills(first.body, array, shape)
            and fills(first.orelse, array, shape)
        )
    return fills(first.body, array, shape)


@dataclass
class Storage:
    """The decision for every variable of a kernel.

    Attributes:
        recomputed: variables computed again in each region, with their value, in an order in which
            each needs only those before it.
        carried: scalar variables with an element a thread.
        carried_arrays: local arrays with a copy a thread.
        use: how each region uses names.
    """

    recomputed: dict[str, ast.expr] = field(default_factory=dict)
    carried: set[str] = field(default_factory=set)
    carried_arrays: set[str] = field(default_factory=set)
    use: dict[int, Use] = field(default_factory=dict)


def place(
    builder: Builder, parameters: Sequence[str], uniform: Uniformity, program: Program
) -> Storage:
    """Decide for all variables of a kernel."""
    storage = Storage()
    uses: list[Use] = []
    for region in regions(builder.tree):
        early, defined = exposed(region.statements, set())
        use = Use(region, names(region.statements), early, defined, writes(region.statements))
        storage.use[id(region)] = use
        uses.append(use)
    touched: dict[str, list[Use]] = {}
    stores: dict[str, list[tuple[int, ast.stmt]]] = {}
    for k, use in enumerate(uses):
        for v in use.names:
            touched.setdefault(v, []).append(use)
        for s in use.region.statements:
            for n in walk(s):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                    stores.setdefault(n.id, []).append((k, s))
    memory = program.shared.keys() | program.local.keys()
    private = ({v for v in touched if v in stores} - memory) | builder.exchanged

    fixed, loop_variables = _uniform_names(builder.tree)
    stable = (set(parameters) - uniform.assigned) | fixed | THREAD_NAMES | BLOCK_NAMES
    stable |= program.shared.keys()
    changed = True
    while changed:
        changed = False
        for v in sorted(private - builder.exchanged - storage.recomputed.keys()):
            value = _recomputable(v, stores.get(v, []), program)
            if value is None:
                continue
            operands = {x for x in reads(value) if x not in program.objects and not _is_builtin(x)}
            known = stable | storage.recomputed.keys() | loop_variables
            if not operands <= known:
                continue
            if _used_elsewhere(v, stores[v][0][0], uses, touched):
                continue
            storage.recomputed[v] = value
            changed = True
    storage.carried = {
        v
        for v in private - storage.recomputed.keys()
        if v in builder.exchanged or any(v in use.exposed for use in touched[v])
    }
    for array, mem in program.local.items():
        if _is_carried_array(array, mem, touched.get(array, [])):
            storage.carried_arrays.add(array)
    return storage


def _recomputable(v: str, stores: list[tuple[int, ast.stmt]], program: Program) -> ast.expr | None:
    """The value of a variable that one plain assignment gives it, without reading memory."""
    if len(stores) != 1:
        return None
    s = stores[0][1]
    if not (isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)):
        return None
    if s.targets[0].id != v or (loads_memory(s.value) and not _is_window(s.value)):
        return None
    for n in walk(s.value):
        if isinstance(n, ast.Call) and not (is_pure(n, program) and _is_cheap(n)):
            return None
    return s.value


def _is_window(value: ast.expr) -> bool:
    """Whether a value is a part of an array, `a[i, :]`: finding it reads no memory."""
    if not (isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name)):
        return False
    index = value.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(p, ast.Slice) for p in parts) and not loads_memory(index)


def _is_cheap(call: ast.Call) -> bool:
    return called(call) in ("min", "max", "int", "abs", "bool", "_minimum", "_maximum") or (
        called(call).startswith("g_")
    )


def _is_builtin(v: str) -> bool:
    return v in ("min", "max", "int", "abs", "bool", "range", "_nan", "_inf")


def _used_elsewhere(v: str, home: int, uses: list[Use], touched: dict[str, list[Use]]) -> bool:
    """Whether a variable is looked at where its assignment has not run."""
    defining = uses[home]
    if v in defining.exposed:
        return True
    path = defining.region.path
    order = {id(u): k for k, u in enumerate(uses)}
    return any(order[id(u)] < home or u.region.path[: len(path)] != path for u in touched[v])


def _uniform_names(tree: Sequence[Node]) -> tuple[set[str], set[str]]:
    """(block variables assigned once, outside of any construct; variables of single loops)."""
    counts: dict[str, int] = {}
    loops: set[str] = set()

    def visit(nodes: Sequence[Node], inside: bool) -> None:
        for node in nodes:
            if isinstance(node, Once):
                for v in _stores(node.statements):
                    nested = not any(_assigns(s, v) for s in node.statements)
                    counts[v] = counts.get(v, 0) + (2 if inside or nested else 1)
            elif isinstance(node, Vote):
                counts[node.target] = counts.get(node.target, 0) + 2
            elif isinstance(node, UniformLoop) and isinstance(node.head, ast.For):
                for v in writes(node.head.target):
                    counts[v] = counts.get(v, 0) + 2
                    loops.add(v)
            for inner in children(node):
                visit(inner, True)

    visit(tree, False)
    return {v for v, c in counts.items() if c == 1}, {v for v in loops if counts[v] == 2}


def _stores(body: Sequence[ast.stmt]) -> Iterator[str]:
    for n in walk(body):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            yield n.id


def _assigns(s: ast.stmt, v: str) -> bool:
    return isinstance(s, ast.Assign) and v in writes(s)


def _is_carried_array(array: str, mem: Memory, touched: list[Use]) -> bool:
    """Whether a local array's content lives from one region, or from one turn, to the next."""
    if len(touched) != 1:
        return len(touched) > 1
    region = touched[0].region
    return bool(region.path) and not fills(region.statements, array, mem.shape)

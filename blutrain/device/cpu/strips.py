"""Turn a loop that is strided over threads inside out.

    for j in range(threadIdx.x, n, blockDim.x):     # each thread: every 256th element
        y[row, j] = f(x[row, j])

One thread after another, that walks memory in steps of 256 elements. There is no order between
threads, so the loop may as well be

    for base in range(0, n, 256):                   # all threads together
        for t in range(min(256, n - base)):         # neighbouring threads: neighbouring elements
            y[row, base + t] = f(x[row, base + t])

whose inner loop LLVM turns into vector instructions. What a thread keeps from one turn to the next
(a running sum) lives in an array with an element a thread.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from blutrain.device.cpu.program import Program
from blutrain.device.cpu.syntax import (  # fmt: skip
    BLOCK_NAMES,
    called,
    leaves_loop,
    name,
    name_counts,
    reads,
    walk,
    writes,
)
from blutrain.device.cpu.uniformity import Uniformity

# Threads that differ by one in these names are neighbours.
_NEIGHBOURS = frozenset({"_t", "_tx", "_lane"})


@dataclass(frozen=True)
class Strip:
    """A loop turned inside out.

    Attributes:
        head: the uniform loop, without a body.
        base: its variable.
        index: the kernel's own variable, which is `place` in each thread.
        place: base plus the thread's place.
        guarded: the kernel's own body, where the index is within the range.
    """

    head: ast.For
    base: str
    index: str
    place: ast.expr
    guarded: ast.If


def definitions(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """The value of every variable that is assigned in exactly one place."""
    values: dict[str, ast.expr] = {}
    counts: dict[str, int] = {}
    for n in walk(body):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            counts[n.id] = counts.get(n.id, 0) + 1
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
            values[n.targets[0].id] = n.value
    augmented = {
        n.target.id
        for n in walk(body)
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    return {v: e for v, e in values.items() if counts[v] == 1 and v not in augmented}


def range_arguments(arguments: Sequence[ast.expr]) -> tuple[ast.expr, ast.expr, ast.expr]:
    """Start, stop and step of a range."""
    if len(arguments) == 1:
        return ast.Constant(0), arguments[0], ast.Constant(1)
    step = arguments[2] if len(arguments) > 2 else ast.Constant(1)
    if isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub):
        operand = step.operand
        if isinstance(operand, ast.Constant):
            step = ast.Constant(-operand.value)  # type: ignore[operator]
    return arguments[0], arguments[1], step


def is_positive(node: ast.expr, known: dict[str, ast.expr]) -> bool:
    """Whether an expression is surely greater than zero."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and node.value > 0
    if isinstance(node, ast.Name):
        if node.id in ("_gx", "_gy", "_gz"):
            return True
        return node.id in known and is_positive(known[node.id], known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add):
        return is_positive(node.left, known) and is_positive(node.right, known)
    return False


def affine(
    node: ast.expr, known: dict[str, ast.expr], uniform: Uniformity
) -> tuple[ast.expr, str] | None:
    """(u, v) such that the expression is u + v, u uniform and v a thread's place; else None."""
    if isinstance(node, ast.Name):
        if node.id in _NEIGHBOURS:
            return ast.Constant(0), node.id
        value = known.get(node.id)
        if value is None or not _is_stable(value, known, uniform):
            return None
        return affine(value, known, uniform)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if uniform.of_expression(other) and _is_stable(other, known, uniform):
            found = affine(one, known, uniform)
            if found is None or (isinstance(node.op, ast.Sub) and one is node.right):
                continue
            start, place = found
            zero = isinstance(start, ast.Constant) and start.value == 0
            if isinstance(node.op, ast.Add) and zero:
                return other, place
            return ast.BinOp(start, node.op, other), place
    return None


def _is_stable(node: ast.expr, known: dict[str, ast.expr], uniform: Uniformity) -> bool:
    """Whether an expression means the same wherever in the kernel it is evaluated."""
    if any(isinstance(n, ast.Subscript) for n in walk(node)):
        shapes = [n for n in walk(node) if isinstance(n, ast.Subscript)]
        if not all(isinstance(n.value, ast.Attribute) for n in shapes):
            return False
    assigned = uniform.assigned
    return all(
        v not in assigned or (v in known and _is_stable(known[v], known, uniform))
        for v in reads(node)
        if v not in BLOCK_NAMES
    )


def strip_of(
    s: ast.stmt, known: dict[str, ast.expr], uniform: Uniformity, program: Program
) -> Strip | None:
    """The strip that a loop becomes, or None when it must stay a loop within each thread."""
    if not (isinstance(s, ast.For) and called(s.iter) == "range"):
        return None
    assert isinstance(s.iter, ast.Call)
    if not isinstance(s.target, ast.Name) or len(s.iter.args) != 3:
        return None
    start, stop, step = range_arguments(s.iter.args)
    inside = name_counts([s])
    if inside[s.target.id] != uniform.counts[s.target.id] or s.target.id in writes(s.body):
        return None
    if any(leaves_loop(t) for t in s.body) or not is_positive(step, known):
        return None
    changed = writes(s.body)
    if not (uniform.of_expression(stop) and uniform.of_expression(step)):
        return None
    found = affine(start, known, uniform)
    if found is None or (reads(stop) | reads(step)) & changed:
        return None
    base_value, place = found
    base = program.fresh("_base")
    iterable = ast.Call(name("range"), [base_value, stop, step], [])
    head = ast.For(ast.Name(base, ast.Store()), iterable, [], [], lineno=0)
    index = ast.BinOp(name(base), ast.Add(), name(place))
    guard = ast.Compare(name(s.target.id), [ast.Lt()], [stop])
    return Strip(head, base, s.target.id, index, ast.If(guard, list(s.body), []))

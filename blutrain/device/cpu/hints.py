"""What LLVM's loop passes are told about the loops of a program.

A loop over threads is parallel by CUDA's own rules: between two barriers no thread may touch what
another writes. Told so, LLVM vectorises it without proving it. There are two exceptions. Arrays of
which a thread has one of its own in CUDA, and all threads one after another share one here. And
loops in which a thread itself returns to what it stored: LLVM 22 takes "parallel" to mean that it
may also move a group of strided stores past a load of the same elements in the same turn.

Short loops of constant length within a thread are unrolled, as on the GPU, where that is what puts
local arrays into registers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from llvmlite import ir

from blutrain.device.cpu.strips import range_arguments
from blutrain.device.cpu.syntax import LOOPS, THREAD_NAMES, called, leaves_loop, names, walk

# The longest loop that is written out: with calls, whose formulas are long, and without.
_LONGEST_WITH_CALLS, _LONGEST = 16, 64
# Loops of fewer turns are not vectorised: LLVM's own threshold, below which it makes no remainder.
_TINY = 16
# The most innermost bodies that are written out.
_MOST = 128


class _Distinct(ir.values.MDValue):
    """A metadata node that equals no other; a loop's begins with itself."""

    def __init__(self, module: Any, values: Sequence[Any], of_loop: bool) -> None:
        self.of_loop = of_loop
        super().__init__(module, values, str(len(module.metadata)))

    def descr(self, buf: Any) -> None:
        """Append the node's text."""
        parts = [self.get_reference()] if self.of_loop else []
        parts += [v.get_reference() for v in self.operands]
        buf += (f"distinct !{{ {', '.join(parts)} }}", "\n")

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def access_group(module: Any) -> Any:
    """A name for the memory accesses of one parallel loop."""
    return _Distinct(module, (), of_loop=False)


def mark(
    module: Any, branch: Any, group: Any = None, unroll: bool = False, scalar: bool = False
) -> None:
    """Attach to the branch that closes a loop what is known about it."""
    properties = []
    if group is not None:
        label = ir.MetaDataString(module, "llvm.loop.parallel_accesses")
        properties.append(module.add_metadata([label, group]))
    if unroll:
        label = ir.MetaDataString(module, "llvm.loop.unroll.full")
        properties.append(module.add_metadata([label]))
    if scalar:
        label = ir.MetaDataString(module, "llvm.loop.vectorize.enable")
        properties.append(module.add_metadata([label, ir.Constant(ir.IntType(1), 0)]))
    if properties:
        branch.set_metadata("llvm.loop", _Distinct(module, properties, of_loop=True))


def is_over_threads(s: ast.For) -> bool:
    """Whether a loop goes over threads."""
    # A variable with several webs is numbered: see webs.py.
    return isinstance(s.target, ast.Name) and s.target.id.split(".")[0] in THREAD_NAMES


def returns_to_stores(body: Sequence[ast.stmt], cells: Collection[str]) -> bool:
    """Whether a thread may load from, or store to, an array that it stored to before.

    Args:
        body: what a thread does.
        cells: arrays of one element a thread, whose accesses are never strided.
    """
    stored: set[str] = set()
    return any(_returns(s, stored, cells) for s in body)


def _returns(s: ast.stmt, stored: set[str], cells: Collection[str]) -> bool:
    if isinstance(s, ast.If):
        parts = [_loads(s.test, stored), *(_returns(t, stored, cells) for t in s.body + s.orelse)]
        return any(parts)
    if isinstance(s, ast.For | ast.While):
        head = s.iter if isinstance(s, ast.For) else s.test
        # Twice: what one turn stores, the next may load.
        turns = [_returns(t, stored, cells) for _ in range(2) for t in s.body]
        return any([_loads(head, stored), *turns])
    if not isinstance(s, ast.Assign):
        return _loads(s, stored)
    found = _loads(s.value, stored)
    for target in s.targets:
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            array = target.value.id
            found |= array in stored or _loads(target.slice, stored)
            stored |= {array} - set(cells)
    return found


def _loads(node: ast.AST, stored: set[str]) -> bool:
    """Whether an array of these is named, and so perhaps loaded from."""
    return bool(names(node) & stored)


def is_short(s: ast.For, reorders: bool) -> bool:
    """Whether a loop should be unrolled.

    Args:
        s: the loop.
        reorders: whether sums may be reordered. LLVM then vectorises a sum over a long loop, and
            does so much better while it still is a loop.
    """
    turns = _turns(s)
    if has_jump(s):
        return False
    simple = ("_unsigned", "range")
    calls = any(isinstance(n, ast.Call) and called(n) not in simple for n in walk(s.body))
    longest = _LONGEST_WITH_CALLS if calls or reorders else _LONGEST
    return turns is not None and 0 < turns <= longest and _bodies(s) <= _MOST


def is_tiny(s: ast.For) -> bool:
    """Whether a loop is too short to be worth a vectorised form, a remainder and their tests.

    LLVM would agree nearly always, but its two cost models may differ over such a loop, and LLVM 22
    as Numba has it then fails an assertion, which ends the process
    (github.com/llvm/llvm-project/issues/182646).
    """
    turns = _turns(s)
    return turns is not None and turns < _TINY


def has_jump(s: ast.For | ast.While) -> bool:
    """Whether a loop has a break or continue: LLVM may not unroll there, and would warn."""
    return any(leaves_loop(t) for t in s.body)


def _turns(s: ast.stmt) -> int | None:
    """How often a loop of constant length goes round."""
    if not isinstance(s, ast.For) or called(s.iter) != "range":
        return None
    assert isinstance(s.iter, ast.Call)
    start, stop, step = (_constant(a) for a in range_arguments(s.iter.args))
    if start is None or stop is None or not step:
        return None
    return len(range(start, stop, step))


def _constant(node: ast.expr) -> int | None:
    """The value of an expression of integer literals."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _constant(node.left), _constant(node.right)
        if left is not None and right:
            return _ARITHMETIC[type(node.op)](left, right)
    return None


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _bodies(s: ast.For) -> int:
    """How many innermost bodies unrolling would write; too many where a length is not constant."""
    turns = _turns(s)
    if turns is None:
        return _MOST + 1
    inner = 0
    for n in walk(s.body):
        if isinstance(n, LOOPS):
            inner = max(inner, _bodies(n) if isinstance(n, ast.For) else _MOST + 1)
    return turns * max(1, inner)

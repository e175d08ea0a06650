"""What LLVM's loop passes are told about the loops of a program.

A loop over threads is parallel by CUDA's own rules: between two barriers no thread may touch what
another writes. Told so, LLVM vectorises it without proving it. Arrays of which a thread has one of
its own in CUDA, and all threads one after another share one here, are the exception.

Short loops of constant length within a thread are unrolled, as on the GPU, where that is what puts
local arrays into registers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from blutrain.device.cpu.strips import range_arguments
from blutrain.device.cpu.syntax import LOOPS, THREAD_NAMES, called, walk

# The longest loop that is written out: with calls, whose formulas are long, and without.
_LONGEST_WITH_CALLS, _LONGEST = 16, 64
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


def mark(module: Any, branch: Any, group: Any = None, unroll: bool = False) -> None:
    """Attach to the branch that closes a loop what is known about it."""
    properties = []
    if group is not None:
        label = ir.MetaDataString(module, "llvm.loop.parallel_accesses")
        properties.append(module.add_metadata([label, group]))
    if unroll:
        label = ir.MetaDataString(module, "llvm.loop.unroll.full")
        properties.append(module.add_metadata([label]))
    if properties:
        branch.set_metadata("llvm.loop", _Distinct(module, properties, of_loop=True))


def is_over_threads(s: ast.For) -> bool:
    """Whether a loop goes over threads."""
    # A variable with several webs is numbered: see webs.py.
    return isinstance(s.target, ast.Name) and s.target.id.split(".")[0] in THREAD_NAMES


def is_short(s: ast.For) -> bool:
    """Whether a loop should be unrolled."""
    turns = _turns(s)
    simple = ("_unsigned", "range")
    calls = any(isinstance(n, ast.Call) and called(n) not in simple for n in walk(s.body))
    longest = _LONGEST_WITH_CALLS if calls else _LONGEST
    return turns is not None and turns <= longest and _bodies(s) <= _MOST


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

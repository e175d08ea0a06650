"""The vocabulary that every pass of the CPU compiler shares: small questions about Python syntax.

The passes rewrite a kernel as Python syntax trees (`ast`), not as machine code, so that what they
make can be printed and read: `CompiledKernel.source` is the whole program that was compiled.
Names that the compiler makes start with an underscore; a kernel's own are renamed if theirs do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=ast.AST)

LOOPS = (ast.For, ast.While)
# The kind of barrier at which all blocks meet.
GRID = "grid"
# A thread's position: its index in each direction, in the block, in its warp; and its warp.
THREAD_NAMES = frozenset({"_t", "_tx", "_ty", "_tz", "_lane", "_warp"})
# The same for all threads that run together, and never negative: the block, the grid, and which
# warp of a block it is where warps run apart.
BLOCK_NAMES = frozenset({"_bx", "_by", "_bz", "_gx", "_gy", "_gz", "_wy", "_wz"})


def name(text: str) -> ast.Name:
    """Reading a variable."""
    return ast.Name(text, ast.Load())


def expression(text: str) -> ast.expr:
    """A parsed expression."""
    return ast.parse(text, mode="eval").body


def statement(text: str) -> ast.stmt:
    """A parsed statement."""
    return ast.parse(text).body[0]


def text_of(node: ast.AST) -> str:
    """Source text of a node."""
    return ast.unparse(ast.fix_missing_locations(node))


def assign(target: str, value: ast.expr) -> ast.Assign:
    """`target = value`."""
    return ast.Assign([ast.Name(target, ast.Store())], value, lineno=0)


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """`function(*arguments)`."""
    return ast.Call(name(function), list(arguments), [])


def negation(test: ast.expr) -> ast.expr:
    """`not test`, as a plain comparison where that means the same (integers have no NaN)."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def conjunction(*tests: ast.expr | None) -> ast.expr:
    """`a and b and ...` of those that are not None."""
    present = [t for t in tests if t is not None]
    return present[0] if len(present) == 1 else ast.BoolOp(ast.And(), present)


def called(node: ast.AST) -> str:
    """The name that a call calls, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return ""


def walk(nodes: ast.AST | Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node in a tree or in several, but for contexts (`Load`, `Store`), in no special order.

    The passes ask small questions of the same trees thousands of times: this is several times
    faster than `ast.walk`.
    """
    pending = [nodes] if isinstance(nodes, ast.AST) else list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for field in node._fields:
            value = getattr(node, field, None)
            if value.__class__ is list:
                pending += [v for v in value if isinstance(v, ast.AST)]
            elif isinstance(value, ast.AST) and field != "ctx":
                pending.append(value)


def clone(node: T) -> T:
    """A copy of a tree, faster than `copy.deepcopy` makes it."""
    kind = node.__class__
    new = kind.__new__(kind)
    fields = new.__dict__
    for field, value in node.__dict__.items():
        if value.__class__ is list:
            fields[field] = [clone(v) if isinstance(v, ast.AST) else v for v in value]
        elif isinstance(value, ast.AST) and field != "ctx":
            fields[field] = clone(value)
        else:
            fields[field] = value
    return new


def reads(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Names whose value is used."""
    found = set()
    for n in walk(nodes):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            found.add(n.id)
        elif isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
            found.add(n.target.id)
    return found


def writes(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Names that are assigned."""
    return {n.id for n in walk(nodes) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def names(nodes: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Names that occur."""
    return {n.id for n in walk(nodes) if isinstance(n, ast.Name)}


def name_counts(nodes: Iterable[ast.AST]) -> dict[str, int]:
    """How often each name occurs."""
    counts: dict[str, int] = {}
    for n in walk(nodes):
        if isinstance(n, ast.Name):
            counts[n.id] = counts.get(n.id, 0) + 1
    return counts


def has(node: ast.AST, kinds: type | tuple[type, ...], stop: tuple[type, ...] = ()) -> bool:
    """Whether a node of some kind lies below `node`, not looking below nodes of kind `stop`."""
    return any(
        isinstance(c, kinds) or (not isinstance(c, stop) and has(c, kinds, stop))
        for c in ast.iter_child_nodes(node)
    )


def leaves_loop(node: ast.AST) -> bool:
    """Whether a break or continue in `node` belongs to a loop around it."""
    if isinstance(node, ast.Break | ast.Continue):
        return True
    return not isinstance(node, LOOPS) and has(node, (ast.Break, ast.Continue), LOOPS)


def is_meeting(node: ast.AST) -> bool:
    """Whether `node` is a place where threads meet: a barrier, a shuffle or a vote."""
    return called(node) in ("__barrier", "__collective")


def meets(nodes: ast.AST | Iterable[ast.AST]) -> bool:
    """Whether threads meet anywhere in these nodes."""
    return any(is_meeting(n) for n in walk(nodes))


def meets_as_block(nodes: Iterable[ast.AST]) -> bool:
    """Whether threads of different warps meet in these nodes."""
    meetings = [n for n in walk(nodes) if isinstance(n, ast.Call) and is_meeting(n)]
    kinds = [str(getattr(n.args[0], "value", "")) for n in meetings]
    return any(kind.startswith("syncthreads") or kind == GRID for kind in kinds)


def stores_memory(nodes: ast.AST | Iterable[ast.AST]) -> bool:
    """Whether an array may be written: a subscript assigned, or an atomic."""
    return any(
        (isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
        or called(n).startswith(("_atomic_", "_plain_"))
        for n in walk(nodes)
    )


def loads_memory(nodes: ast.AST | Iterable[ast.AST]) -> bool:
    """Whether an array may be read. A shape is no memory."""
    return any(
        isinstance(n, ast.Subscript)
        and not (isinstance(n.value, ast.Attribute) and n.value.attr in ("shape", "strides"))
        for n in walk(nodes)
    )


class Substitute(ast.NodeTransformer):
    """Replace names by expressions."""

    def __init__(self, replacements: dict[str, ast.expr]) -> None:
        self.replacements = replacements

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """One name."""
        return clone(self.replacements.get(node.id, node))


def substitute(node: ast.expr, replacements: dict[str, ast.expr]) -> ast.expr:
    """A copy of `node` with names replaced by expressions."""
    result: ast.expr = Substitute(replacements).visit(clone(node))
    return result

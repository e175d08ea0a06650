"""What a kernel becomes: a tree of regions, of statements that run once, and of control flow."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Region:
    """Statements that every thread runs; `path` are the constructs around them, outermost first."""

    statements: list[ast.stmt]
    path: tuple[int, ...]


@dataclass(eq=False)
class Once:
    """Statements that run once for the block."""

    statements: list[ast.stmt]


@dataclass(eq=False)
class Vote:
    """`target` = a block-wide vote over each thread's `operand`."""

    target: str
    operand: str
    kind: str


@dataclass(eq=False)
class Check:
    """An assertion that a barrier under a mask is reached by all threads or by none."""

    mask: str
    kind: str


@dataclass(eq=False)
class GridBarrier:
    """All blocks meet; where there is a mask, if a thread of this block has it set."""

    mask: str | None


@dataclass(eq=False)
class UniformIf:
    """An if with a uniform test."""

    test: ast.expr
    then: list[Node]
    otherwise: list[Node]


@dataclass(eq=False)
class UniformLoop:
    """A for or while loop that all threads go through together; `head` has an empty body."""

    head: ast.For | ast.While
    body: list[Node]


@dataclass(eq=False)
class MaskedLoop:
    """Repeat while the mask is set in any thread."""

    mask: str
    body: list[Node]


Node = Region | Once | Vote | Check | GridBarrier | UniformIf | UniformLoop | MaskedLoop


def children(node: Node) -> list[list[Node]]:
    """The sequences of nodes inside a node."""
    if isinstance(node, UniformIf):
        return [node.then, node.otherwise]
    return [node.body] if isinstance(node, UniformLoop | MaskedLoop) else []


def regions(tree: Sequence[Node]) -> Iterator[Region]:
    """Every region, in the order of the program."""
    for node in tree:
        if isinstance(node, Region):
            yield node
        for inner in children(node):
            yield from regions(inner)

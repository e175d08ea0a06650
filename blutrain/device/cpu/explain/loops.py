"""In which turn of which loops a thread is, so that lanes meet in the same turn.

Lanes that take an `if` in different turns of a loop do so one turn after the other: the hardware
brings them together again at the end of each turn. So executions of one place belong to one
instruction only if the threads are in the same turn of every loop around it.
"""

from __future__ import annotations

import ast
import functools
import linecache
from typing import NamedTuple


class Span(NamedTuple):
    """Lines of a file, the first and the last."""

    file: str
    first: int
    last: int

    def holds(self, file: str, line: int) -> bool:
        """Whether a line is among them."""
        return self.file == file and self.first <= line <= self.last


class Loop(NamedTuple):
    """A loop and the function that it is in."""

    span: Span
    function: Span


class Around(NamedTuple):
    """What a line of a file is in.

    Attributes:
        function: the function; None outside of any.
        head: the loop whose question the line asks, if it is one's first line.
        loops: all loops around it.
    """

    function: Span | None
    head: Loop | None
    loops: frozenset[Loop]


@functools.cache
def _loops_of(file: str) -> tuple[list[Span], list[Loop]]:
    """The functions and loops of a file."""
    functions: list[Span] = []
    loops: list[Loop] = []

    def visit(node: ast.AST, function: Span | None) -> None:
        for child in ast.iter_child_nodes(node):
            inside = function
            if isinstance(child, ast.stmt):
                span = Span(file, child.lineno, child.end_lineno or child.lineno)
                if isinstance(child, ast.FunctionDef):
                    functions.append(span)
                    inside = span
                elif isinstance(child, ast.For | ast.While) and function is not None:
                    loops.append(Loop(span, function))
            visit(child, inside)

    try:
        visit(ast.parse("".join(linecache.getlines(file))), None)
    except SyntaxError:  # a notebook's cell with commands in it: loops are then not told apart
        return [], []
    return functions, loops


@functools.cache
def around(file: str, line: int) -> Around:
    """What a line is in."""
    functions, loops = _loops_of(file)
    inside = [f for f in functions if f.holds(file, line)]
    found = frozenset(loop for loop in loops if loop.span.holds(file, line))
    head = next((loop for loop in found if loop.span.first == line), None)
    # The innermost function begins last.
    return Around(max(inside, key=lambda f: f.first, default=None), head, found)


class Turns:
    """The turns of the loops in which one thread is.

    Args:
        kernel: the kernel's function, which nobody calls.

    Attributes:
        moment: the loops from the outermost and the turn of each; equal for threads that are in the
            same turns.
    """

    __slots__ = ("_kernel", "_stack", "moment")

    def __init__(self, kernel: Span | None) -> None:
        self._kernel = kernel
        self._stack: list[tuple[Loop, int]] = []
        self.moment: tuple[tuple[Loop, int], ...] = ()

    def come_to(self, where: Around) -> None:
        """The thread is at a line: leave the loops that it is not in any more.

        A thread leaves by `break` or `return` without coming to the loop's question again.
        """
        stack = self._stack
        if not stack or stack[-1][0] in where.loops:
            return
        n = len(stack)
        # Another function's loop is around the call of this one; or the other was called from here,
        # and has returned from within its loop: so if one of this function's loops is further out.
        own = [k for k, (loop, _) in enumerate(stack) if loop.function == where.function]
        if own:
            within = [k for k in own if stack[k][0] in where.loops]
            n = within[-1] + 1 if within else own[0]
        elif where.function == self._kernel:
            n = 0
        if n < len(stack):
            del stack[n:]
            self.moment = tuple(stack)

    def decide(self, where: Around, taken: bool) -> None:
        """The thread asks a loop's question at a line: it goes round once more, or leaves."""
        loop, stack = where.head, self._stack
        if loop is None:
            return
        turn = 0
        if stack and stack[-1][0] == loop:
            turn = stack.pop()[1] + 1
        if taken:
            stack.append((loop, turn))
        self.moment = tuple(stack)

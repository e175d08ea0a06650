"""An interpreter of kernels, thread by thread.

Every thread is a Python generator that stops where threads meet; between two such places they run
one after another, in any order that one likes.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Sequence
from typing import Any

WARP = 32
N_BLOCKS = 2


class _Meetings(ast.NodeTransformer):
    """Barriers, shuffles and votes become yields; device functions generators."""

    DEVICE = ("spread", "pair", "first", "meet", "apply", "op")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """One call."""
        self.generic_visit(node)
        path = ast.unparse(node.func)
        if path in self.DEVICE:
            return ast.YieldFrom(node)
        if path.startswith(
            ("cuda.syncthreads", "cuda.shfl", "cuda.ballot", "cuda.any", "cuda.all")
        ):
            kind = path.removeprefix("cuda.")
            operands = node.args if kind.startswith("syncthreads") else node.args[1:]
            return ast.Yield(ast.Tuple([ast.Constant(kind), *operands], ast.Load()))
        return node


def _generators(text: str) -> dict[str, Any]:
    """The functions of a module as generator functions."""
    module = ast.parse(text)
    namespace: dict[str, Any] = {
        "F": 0xFFFFFFFF, "FEW": 3, "int64": int, "int32": int, "float64": float,
    }  # fmt: skip
    for f in [s for s in module.body if isinstance(s, ast.FunctionDef)]:
        f.decorator_list = []
        changed: ast.FunctionDef = _Meetings().visit(f)
        changed.args.args += [ast.arg("cuda"), ast.arg("memory")] if f.name == "kernel" else []
        # A generator even where threads never meet.
        changed.body.insert(0, ast.parse("if 0: yield").body[0])
        for k, s in enumerate(changed.body):
            if isinstance(s, ast.Assign) and "array" in ast.unparse(s.value):
                target = ast.unparse(s.targets[0])
                changed.body[k] = ast.parse(f"{target} = memory.get('{target}', [0] * 4)").body[0]
        tree = ast.fix_missing_locations(ast.Module([changed], []))
        exec(compile(tree, "<interpreted>", "exec"), namespace)
    return namespace


class _Cuda:
    """The `cuda` of one thread."""

    def __init__(
        self, thread: tuple[int, int, int], block: int, shape: tuple[int, int, int]
    ) -> None:
        point = ("x", "y", "z")
        self.threadIdx = types.SimpleNamespace(**dict(zip(point, thread, strict=True)))
        self.blockIdx = types.SimpleNamespace(x=block)
        self.blockDim = types.SimpleNamespace(**dict(zip(point, shape, strict=True)))
        self.gridDim = types.SimpleNamespace(x=N_BLOCKS)
        self.atomic = self

    @staticmethod
    def add(array: list[int], index: int, value: int) -> None:
        """An atomic addition."""
        array[index] += value

    @staticmethod
    def popc(x: int) -> int:
        """How many bits are set."""
        return x.bit_count()


def _exchange(kind: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What each thread of a warp or block gets where they meet."""
    values = [a[1] if len(a) > 1 else None for a in asked]
    n = len(asked)
    if kind in ("ballot_sync",):
        return [sum(1 << k for k, v in enumerate(values) if v)] * n
    if kind == "any_sync":
        return [any(values)] * n
    if kind == "all_sync":
        return [all(values)] * n
    if kind == "syncthreads_count":
        return [sum(map(bool, values))] * n
    if kind == "syncthreads_or":
        return [int(any(values))] * n
    if kind == "syncthreads_and":
        return [int(all(values))] * n
    if kind == "syncthreads":
        return [None] * n
    lane = {
        "shfl_sync": lambda k, d: d % n, "shfl_xor_sync": lambda k, d: k ^ d,
        "shfl_up_sync": lambda k, d: k - d if k >= d else k,
        "shfl_down_sync": lambda k, d: k + d if k + d < n else k,
    }[kind]  # fmt: skip
    return [values[lane(k, a[2])] for k, a in enumerate(asked)]


def _run_block(threads: list[Iterator[Any]], order: Sequence[int]) -> None:
    """Run the threads of a block to their ends."""
    n = len(threads)
    asked: list[Any] = [None] * n
    answers: list[Any] = [None] * n
    running = list(order)
    alive = set(range(n))
    while alive:
        for t in running:
            try:
                asked[t] = threads[t].send(answers[t])  # type: ignore[attr-defined]
            except StopIteration:
                asked[t] = None
                alive.discard(t)
        running = []
        for first in range(0, n, WARP):
            warp = range(first, min(first + WARP, n))
            kinds = {asked[t][0] if asked[t] else "" for t in warp if t in alive}
            if not kinds or next(iter(kinds)).startswith("syncthreads"):
                continue
            assert len(kinds) == 1 and len(warp) == WARP, f"divergent warp: {kinds}"
            got = _exchange(kinds.pop(), [asked[t] for t in warp])
            for t, answer in zip(warp, got, strict=True):
                answers[t] = answer
            running += [t for t in order if t in warp]
        if not running and alive:
            kinds = {asked[t][0] for t in alive}
            assert len(kinds) == 1 and len(alive) == n, f"divergent barrier: {kinds}"
            answers = _exchange(kinds.pop(), asked)
            running = list(order)


def interpret(
    text: str, block: tuple[int, int, int], arguments: Sequence[Any], order: Sequence[int]
) -> None:
    """Run a kernel's threads one by one, in the given order between any two meetings."""
    namespace = _generators(text)
    bx, by, bz = block
    for b in range(N_BLOCKS):
        shared = {"s": [0] * (bx * by * bz), "hist": [0] * 8}
        places = [(x, y, z) for z in range(bz) for y in range(by) for x in range(bx)]
        kernel = namespace["kernel"]
        threads = [kernel(*arguments, _Cuda(place, b, block), shared) for place in places]
        _run_block(threads, order)

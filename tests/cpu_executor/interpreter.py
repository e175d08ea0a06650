"""An interpreter of kernels, thread by thread.

Every thread is a Python generator that stops where threads meet; between two such places they run
one after another, in any order that one likes.
"""

from __future__ import annotations

import ast
import math
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

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
        "F": 0xFFFFFFFF, "FEW": 3, "int64": int, "int32": int, "uint32": int, "float64": float,
        "float32": float, "math": math,
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


def _update(combine: Callable[[int, int], int]) -> Any:
    def atomic(array: Any, index: Any, value: int) -> None:
        place = index[0] if isinstance(index, tuple) else index
        array[place] = combine(array[place], value)

    return staticmethod(atomic)


class _Atomic:
    """`cuda.atomic`; what the functions give is the old value, which no kernel here reads."""

    add = _update(operator.add)
    sub = _update(operator.sub)
    max = _update(max)
    min = _update(min)
    and_ = _update(operator.and_)
    or_ = _update(operator.or_)
    xor = _update(operator.xor)
    inc = _update(lambda old, top: 0 if old >= top else old + 1)
    dec = _update(lambda old, top: top if old == 0 or old > top else old - 1)
    exch = _update(lambda old, new: new)

    @staticmethod
    def cas(array: Any, index: int, old: int, new: int) -> None:
        """The new value where the old one is the given."""
        if array[index] == old:
            array[index] = new


class _Cuda:
    """The `cuda` of one thread."""

    def __init__(
        self,
        thread: tuple[int, int, int],
        block: tuple[int, int, int],
        shape: tuple[int, int, int],
        grid: tuple[int, int, int],
    ) -> None:
        point = ("x", "y", "z")
        self.threadIdx, self.blockIdx, self.blockDim, self.gridDim = (
            types.SimpleNamespace(**dict(zip(point, extents, strict=True)))
            for extents in (thread, block, shape, grid)
        )
        self.atomic = _Atomic

    @staticmethod
    def fma(a: float, b: float, c: float) -> float:
        """a * b + c; the product's own rounding is far below what is compared."""
        return a * b + c

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


def _places(extents: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """All threads of a block, or blocks of a grid, in CUDA's order."""
    nx, ny, nz = extents
    return [(x, y, z) for z in range(nz) for y in range(ny) for x in range(nx)]


def interpret(
    text: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: Sequence[Any],
    order: Sequence[int],
) -> None:
    """Run a kernel's threads one by one, in the given order between any two meetings."""
    namespace = _generators(text)
    kernel, places = namespace["kernel"], _places(block)
    for b in _places(grid):
        shared = {"s": [0] * len(places), "hist": [0] * 8, "counts": [0] * 8,
                  "m": np.zeros((len(places), 4))}  # fmt: skip
        threads = [kernel(*arguments, _Cuda(place, b, block, grid), shared) for place in places]
        _run_block(threads, order)

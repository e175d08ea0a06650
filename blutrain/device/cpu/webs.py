"""Split variables into webs: parts of a variable's life that have nothing to do with each other.

    v = blockIdx.x          # one web, an integer
    y[v] = 0
    v = x[v] * 0.5          # another, a float

A definition and a use belong together when the value may reach the use. Each web then has one
type, which is how Numba (by its SSA form) types variables, on CUDA too.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from blutrain.device.cpu.syntax import clone, walk

Reaching = dict[str, frozenset[int]]


def split(body: Sequence[ast.stmt]) -> None:
    """Rename, in place, the variables of which there are several webs to `name.1`, `name.2`, ..."""
    webs = _Webs()
    webs.block(body, {})
    webs.rename()


def _merge(*ways: Reaching | None) -> Reaching | None:
    """The definitions that may reach a place where control flow joins; None is no way there."""
    present = [w for w in ways if w is not None]
    if not present:
        return None
    merged = dict(present[0])
    for way in present[1:]:
        for v, found in way.items():
            merged[v] = merged.get(v, frozenset()) | found
    return merged


class Plain(ast.NodeTransformer):
    """`x += e` as `x = x + e`."""

    def visit_AugAssign(self, s: ast.AugAssign) -> ast.Assign:
        """One statement."""
        load = clone(s.target)
        load.ctx = ast.Load()
        return ast.copy_location(ast.Assign([s.target], ast.BinOp(load, s.op, s.value)), s)


class _Webs:
    def __init__(self) -> None:
        self.parent: list[int] = []
        self.ids: dict[int, int] = {}  # by the syntax node of the definition
        self.nodes: list[ast.Name] = []
        self.used: dict[int, tuple[ast.Name, int]] = {}
        self.loops: list[tuple[list[Reaching], list[Reaching]]] = []
        self.loads: dict[int, list[ast.Name]] = {}  # of an expression, found once

    def _root(self, k: int) -> int:
        while self.parent[k] != k:
            self.parent[k] = k = self.parent[self.parent[k]]
        return k

    def _define(self, node: ast.Name, now: Reaching) -> None:
        k = self.ids.get(id(node))
        if k is None:
            k = self.ids[id(node)] = len(self.parent)
            self.parent.append(k)
            self.nodes.append(node)
        now[node.id] = frozenset({k})

    def _uses(self, node: ast.AST, now: Reaching) -> None:
        loads = self.loads.get(id(node))
        if loads is None:
            every = walk(node)
            loads = [n for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            self.loads[id(node)] = loads
        for n in loads:
            if n.id in now:
                first, *others = now[n.id]
                root = self._root(first)
                for other in others:
                    self.parent[self._root(other)] = root
                self.used[id(n)] = (n, root)

    def block(self, body: Sequence[ast.stmt], now: Reaching | None) -> Reaching | None:
        """Go through statements; gives what reaches their end, None if nothing does."""
        for s in body:
            if now is None:
                return None
            now = self._statement(s, now)
        return now

    def _statement(self, s: ast.stmt, now: Reaching) -> Reaching | None:
        if isinstance(s, ast.Assign):
            self._uses(s.value, now)
            now = dict(now)
            for target in s.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                for part in parts:
                    if isinstance(part, ast.Name):
                        self._define(part, now)
                    else:
                        self._uses(part, now)
            return now
        if isinstance(s, ast.If):
            self._uses(s.test, now)
            return _merge(self.block(s.body, dict(now)), self.block(s.orelse, dict(now)))
        if isinstance(s, ast.For | ast.While):
            return self._loop(s, now)
        if isinstance(s, ast.Break | ast.Continue):
            self.loops[-1][isinstance(s, ast.Continue)].append(now)
            return None
        self._uses(s, now)
        return None if isinstance(s, ast.Raise) else now

    def _loop(self, s: ast.For | ast.While, now: Reaching) -> Reaching | None:
        if isinstance(s, ast.For):
            self._uses(s.iter, now)
        head = now
        while True:
            breaks: list[Reaching] = []
            continues: list[Reaching] = []
            self.loops.append((breaks, continues))
            inside = dict(head)
            if isinstance(s, ast.For):
                assert isinstance(s.target, ast.Name)
                self._define(s.target, inside)
            else:
                self._uses(s.test, inside)
            end = self.block(s.body, inside)
            self.loops.pop()
            again = _merge(head, end, *continues)
            assert again is not None
            if again == head:
                break
            head = again
        endless = isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and s.test.value
        return _merge(None if endless else head, *breaks)

    def rename(self) -> None:
        """Give every web but a variable's first a name of its own."""
        numbers: dict[str, dict[int, int]] = {}
        for k, node in enumerate(self.nodes):
            of_variable = numbers.setdefault(node.id, {})
            of_variable.setdefault(self._root(k), len(of_variable))
        for k, node in enumerate(list(self.nodes)):
            node.id = _numbered(node.id, numbers[node.id][self._root(k)])
        for node, k in self.used.values():
            node.id = _numbered(node.id, numbers[node.id][self._root(k)])


def _numbered(variable: str, number: int) -> str:
    return f"{variable}.{number}" if number else variable

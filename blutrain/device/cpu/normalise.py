"""First pass: one flat list of plain statements in which every name is settled.

Afterwards: globals are literals or names of `Program.objects`; `cuda.*` is gone (thread positions
are names, barriers are `__barrier(kind)` statements, a shuffle or vote is `x = __collective(kind,
operands...)` and nothing else); every device function is inlined; tuples are taken apart; a loop
in which threads meet has no `break` or `continue`. Python's order of evaluation is kept.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

from blutrain.device.cpu.expressions import Expressions
from blutrain.device.cpu.program import Program, memory
from blutrain.device.cpu.returns import without_else, without_jumps, without_returns
from blutrain.device.cpu.source import Source
from blutrain.device.cpu.strips import range_arguments
from blutrain.device.cpu.syntax import (
    GRID,
    LOOPS,
    assign,
    call,
    called,
    clone,
    expression,
    leaves_loop,
    meets,
    name,
    names,
    negation,
    reads,
    text_of,
    walk,
    writes,
)  # fmt: skip

_PLAIN = (
    ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Break, ast.Continue,
    ast.Assert, ast.Raise,
)  # fmt: skip


def normalise_kernel(source: Source, program: Program) -> tuple[list[str], list[ast.stmt]]:
    """The parameters' names and the statements of a kernel."""
    for s in walk(source.node):
        if isinstance(s, ast.FunctionDef | ast.ClassDef | ast.Lambda) and s is not source.node:
            source.fail(s, "a kernel cannot define a function; define it outside, @cuda.jit")
        if isinstance(s, ast.Return) and not _is_none(s.value):
            source.fail(s, "a kernel returns nothing; store the result in an array")
    renames = _safe_names(source)
    body = without_returns(source.body(), None, source, program)
    scope = Normaliser(source, program, {k: name(v) for k, v in renames.items()})
    statements = scope.statements(body)
    for rebound in writes(statements) & (program.shared.keys() | program.local.keys()):
        source.fail(None, f"array {rebound!r} is assigned twice; give each array its own name")
    return [renames.get(p, p) for p in source.parameters], statements


def _safe_names(source: Source) -> dict[str, str]:
    """New names for a kernel's own that look like the compiler's."""
    renames = {}
    for local in sorted(source.locals):
        if local.startswith("_"):
            new = "u" + local
            while new in source.locals:
                new += "_"
            renames[local] = new
    return renames


class Normaliser(Expressions):
    """Rewrites the body of one function; device functions get a Normaliser of their own.

    A statement that it makes has an attribute `origin`: the source and the line it came from.
    """

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The normal form of consecutive statements."""
        out: list[ast.stmt] = []
        for s in body:
            outer, self.before = self.before, []
            try:
                made = self._statement(s)
            except (ValueError, TypeError, AttributeError, LookupError) as error:
                why = f"this cannot be in a kernel ({type(error).__name__}: {error}); rewrite it"
                self.source.fail_at(s.lineno, why)
            if any(_has_barrier(m) for m in made):
                self.source.fail(s, "a barrier gives nothing; make it a statement of its own")
            mark = len(out)
            out += self.before
            self.before = outer
            for m in made:
                ast.copy_location(m, s)
            for m in [*out[mark:], *made]:
                if not hasattr(m, "origin") and hasattr(s, "lineno"):
                    m.origin = (self.source, s.lineno)  # type: ignore[attr-defined]
            for m in made:
                loop = isinstance(m, LOOPS) and meets(m)
                out += without_jumps(m, self.program) if loop else [m]
        return out

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return self.statements(body) or [ast.Pass()]

    def _statement(self, s: ast.stmt) -> list[ast.stmt]:
        if isinstance(s, ast.Pass):
            return []
        if isinstance(s, ast.AnnAssign) and s.value is not None:
            s = ast.copy_location(ast.Assign([s.target], s.value), s)
        if not isinstance(s, _PLAIN):
            self.source.fail(s, f"{type(s).__name__} statements cannot be in a kernel; rewrite it")
        if isinstance(s, LOOPS) and s.orelse:
            return self.statements(without_else(s, self.program))
        if isinstance(s, ast.If):
            test = self.visit(s.test)
            return [ast.If(test, self._block(s.body), self.statements(s.orelse))]
        if isinstance(s, ast.For):
            if called(s.iter) != "range":
                function = self.source.resolve(getattr(s.iter, "func", s.iter))
                unrolls = getattr(function, "__name__", "") == "literal_unroll"
                return self._unrolled(s) if unrolls else self._for_each(s)
            if not 1 <= len(s.iter.args) <= 3:  # type: ignore[attr-defined]
                self.source.fail(s, f"range takes one to three numbers, got {text_of(s.iter)}")
            iterable = self.visit(s.iter)
            for a in iterable.args:
                if isinstance(a, ast.Constant) and not isinstance(a.value, int):
                    self.source.fail(s, f"range needs integers, got {text_of(a)}")
            return [ast.For(self.visit(s.target), iterable, self._block(s.body), [])]
        if isinstance(s, ast.While):
            return self._while(s)
        if isinstance(s, ast.Assign):
            return self._assign(s)
        if isinstance(s, ast.AugAssign):
            return self._augmented(s)
        if isinstance(s, ast.Expr):
            if self._is_grid_sync(s.value):
                self.program.has_grid_barriers = True
                return [ast.Expr(call("__barrier", ast.Constant(GRID)))]
            value = self.visit(s.value)
            idle = isinstance(value, ast.Constant | ast.Name | ast.Tuple)
            return [] if idle else [ast.Expr(value)]
        return [self.generic_visit(s)]  # type: ignore[list-item]

    def _unrolled(self, s: ast.For) -> list[ast.stmt]:
        """`for x in literal_unroll(values)`: the body once for each value, whatever its type."""
        assert isinstance(s.iter, ast.Call)
        values = self.source.constant(s.iter.args[0], "what is unrolled")
        if any(leaves_loop(t) for t in s.body):
            self.source.fail(s, "a loop that is unrolled cannot have a break or continue")
        out: list[ast.stmt] = []
        for k, value in enumerate(values):
            item = self._global(s.iter, value, f"unrolled_{k}")
            out += self._bind(clone(s.target), item)
            out += self.statements([clone(t) for t in s.body])
        return out

    def _for_each(self, s: ast.For) -> list[ast.stmt]:
        """`for x in a`, also of an enumerate or zip: a loop over a's indices."""
        index = self.program.fresh("_i")
        item, lengths = self._item(s.iter, index)
        stop = lengths[0] if len(lengths) == 1 else f"min({', '.join(lengths)})"
        if not lengths:
            self.source.fail(s, "a loop in a kernel must be over range(...) or an array or tuple")
        outer, self.before = self.before, []
        take = self._bind(s.target, item)
        body = [*self.before, *take, *self.statements(s.body)]
        self.before = outer
        head = ast.Name(index, ast.Store())
        return [ast.For(head, call("range", self.visit(expression(stop))), body, [], lineno=0)]

    def _item(self, iterable: ast.expr, index: str) -> tuple[ast.expr, list[str]]:
        """What an iterable gives at an index, and how many there are: the least of these."""
        if called(iterable) == "zip":
            pairs = [self._item(a, index) for a in iterable.args]  # type: ignore[attr-defined]
            return ast.Tuple([e for e, _ in pairs], ast.Load()), [n for _, ns in pairs for n in ns]
        if called(iterable) == "enumerate":
            inner, lengths = self._item(iterable.args[0], index)  # type: ignore[attr-defined]
            start = iterable.args[1:]  # type: ignore[attr-defined]
            start += [k.value for k in iterable.keywords]  # type: ignore[attr-defined]
            count: ast.expr = name(index)
            if start:
                count = ast.BinOp(count, ast.Add(), self._hold(self.visit(start[0])))
            return ast.Tuple([count, inner], ast.Load()), lengths
        if called(iterable) == "range":
            bounds = range_arguments(iterable.args)  # type: ignore[attr-defined]
            first, last, by = (text_of(self._hold(self.visit(b))) for b in bounds)
            span = f"{last} - {first} + {by} - (1 if {by} > 0 else -1)"
            turns = self._hold(self.visit(expression(f"max(0, ({span}) // {by})")))
            return expression(f"{first} + {index} * {by}"), [text_of(turns)]
        held = self.visit(iterable)
        if isinstance(held, ast.Constant):
            return held, []
        if not isinstance(held, ast.Name):
            self.before.append(assign(self.program.fresh("_h"), held))
            held = name(self.before[-1].targets[0].id)  # type: ignore[attr-defined]
        return ast.Subscript(held, name(index), ast.Load()), [f"len({held.id})"]

    def _while(self, s: ast.While) -> list[ast.stmt]:
        test = self.visit(s.test)
        if not self.before:
            return [ast.While(test, self._block(s.body), [])]
        # The test needs statements: they go to the head of an endless loop.
        head, self.before = self.before, []
        leave: list[ast.stmt] = [ast.If(negation(test), [ast.Break()], [])]
        return [ast.While(ast.Constant(True), head + leave + self.statements(s.body), [])]

    def _assign(self, s: ast.Assign) -> list[ast.stmt]:
        if isinstance(s.value, ast.Call):
            kind = self.source.cuda_name(s.value.func)
            if kind in ("shared.array", "local.array"):
                return self._array(s, kind)
            if kind == "cg.this_grid" and isinstance(s.targets[0], ast.Name):
                self.grids.add(s.targets[0].id)
                return []
        if len(s.targets) > 1:
            held = self._hold(self.visit(s.value))
            return list(itertools.chain(*(self._bind(t, held) for t in s.targets)))
        value = self.visit(s.value)
        if isinstance(s.targets[0], ast.Tuple) and isinstance(value, ast.Attribute):
            n = len(s.targets[0].elts)
            if value.attr in ("shape", "strides"):
                elements = [ast.Subscript(value, ast.Constant(k), ast.Load()) for k in range(n)]
                value = ast.Tuple(list(elements), ast.Load())
        return self._bind(s.targets[0], value)

    def _array(self, s: ast.Assign, kind: str) -> list[ast.stmt]:
        target = self.visit(s.targets[0]) if len(s.targets) == 1 else None
        if not isinstance(target, ast.Name):
            self.source.fail(s, "a shared or local array must be assigned to one name")
        place = self.program.shared if kind == "shared.array" else self.program.local
        if target.id in place:
            self.source.fail(s, f"array {target.id!r} is made twice; give each its own name")
        place[target.id] = memory(self.source, s.value)
        return []

    def _bind(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        """`target = value` for a visited value and a target not yet visited."""
        if isinstance(target, ast.Tuple | ast.List):
            if not isinstance(value, ast.Tuple):
                visited = [self.visit(t) for t in target.elts]
                return [ast.Assign([ast.Tuple(visited, ast.Store())], value)]
            if len(value.elts) != len(target.elts):
                self.source.fail(target, f"{len(target.elts)} names for {len(value.elts)} values")
            values = list(value.elts)
            visited = [self.visit(t) for t in target.elts]
            # a, b = b, a: all values are taken before any is assigned.
            if any(not isinstance(t, ast.Name) for t in visited) or names(visited) & reads(values):
                values = [self._hold(v) for v in values]
            nested = any(isinstance(t, ast.Tuple | ast.List) for t in target.elts)
            if nested:
                return list(itertools.chain(*map(self._bind, target.elts, values)))
            return [ast.Assign([t], v) for t, v in zip(visited, values, strict=True)]
        visited_target = self.visit(target)
        if isinstance(value, ast.Tuple) and isinstance(visited_target, ast.Name):
            if visited_target.id in self.parts or visited_target.id.startswith("_result"):
                return self._bind_parts(visited_target.id, value)
        return [ast.Assign([visited_target], value)]

    def _bind_parts(self, variable: str, value: ast.Tuple) -> list[ast.stmt]:
        """A tuple that is returned becomes one variable an element."""
        parts = self.parts.setdefault(variable, [f"{variable}_{k}" for k in range(len(value.elts))])
        return [assign(p, v) for p, v in zip(parts, value.elts, strict=True)]

    def _augmented(self, s: ast.AugAssign) -> list[ast.stmt]:
        mark = len(self.before)
        value = self.visit(s.value)
        if isinstance(s.target, ast.Name) or len(self.before) == mark:
            return [ast.AugAssign(self.visit(s.target), s.op, value)]
        # The value needs statements; Python reads the target before them.
        late, self.before = self.before[mark:], self.before[:mark]
        target = self.visit(s.target)
        target.slice = self._hold(target.slice)
        load = ast.Subscript(target.value, target.slice, ast.Load())
        old = self._hold(load)
        self.before += late
        return [ast.Assign([target], ast.BinOp(old, s.op, value))]


def _has_barrier(s: ast.stmt) -> bool:
    """Whether a statement's own expressions, not those of statements in it, hold a barrier."""
    if isinstance(s, ast.Expr) and called(s.value) == "__barrier":
        return False
    nested = isinstance(s, ast.If | ast.For | ast.While)
    own = (s.iter if isinstance(s, ast.For) else s.test) if nested else s  # type: ignore[attr-defined]
    return any(called(n) == "__barrier" for n in walk(own))


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)

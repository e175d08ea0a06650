"""First pass: one flat list of plain statements in which every name is settled.

Afterwards: globals are literals or names of `Program.objects`; `cuda.*` is gone (thread positions
are names, barriers are `__barrier(kind)` statements, a shuffle or vote is `x = __collective(kind,
operands...)` and nothing else); every device function is inlined; tuples are taken apart; a loop
in which threads meet has no `break` or `continue`. Python's order of evaluation is kept.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from blutrain.device.cpu import vocabulary
from blutrain.device.cpu.printing import printer
from blutrain.device.cpu.program import Program, memory
from blutrain.device.cpu.ptx.lanes import of_warp
from blutrain.device.cpu.returns import without_else, without_jumps, without_returns
from blutrain.device.cpu.source import Source, is_device_function, literal, source_of
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
    loads_memory,
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


class Normaliser(ast.NodeTransformer):
    """Rewrites the body of one function; device functions get a Normaliser of their own.

    A statement that it makes has an attribute `origin`: the source and the line it came from.

    Attributes:
        renames: what each local name becomes.
        before: statements that must run before the expression being visited.
        parts: for a variable that holds a returned tuple, the variables of its elements.
        grids: names of what `cuda.cg.this_grid()` gave.
    """

    def __init__(
        self,
        source: Source,
        program: Program,
        renames: dict[str, ast.expr],
        depth: int = 0,
    ) -> None:
        self.source, self.program, self.renames = source, program, renames
        self.depth = depth
        self.before: list[ast.stmt] = []
        self.parts: dict[str, list[str]] = {}
        self.grids: set[str] = set()

    # Statements ----------------------------------------------------------------------------------

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

    # Expressions ---------------------------------------------------------------------------------

    def _hold(self, value: ast.expr) -> ast.expr:
        """Evaluate now into a fresh variable, unless it is a constant."""
        if isinstance(value, ast.Constant):
            return value
        if isinstance(value, ast.Tuple):
            return ast.Tuple([self._hold(e) for e in value.elts], ast.Load())
        held = self.program.fresh("_h")
        self.before.append(assign(held, value))
        return name(held)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit operands from left to right.

        When a later operand needs statements (an inlined function, which may store), an earlier one
        that read memory is evaluated before them.
        """
        if not isinstance(node, ast.expr):
            return super().generic_visit(node)
        done: list[tuple[Any, Any, ast.expr]] = []
        for field, value in ast.iter_fields(node):
            many = value if isinstance(value, list) else [value]
            for k, child in enumerate(many):
                inner = child.value if isinstance(child, ast.keyword) else child
                if not isinstance(inner, ast.expr):
                    continue
                mark = len(self.before)
                new = self.visit(inner)
                if len(self.before) > mark:
                    self._settle(done, mark)
                holder: Any = child if isinstance(child, ast.keyword) else node
                where: Any = "value" if holder is child else field
                if holder is node and isinstance(value, list):
                    holder, where = value, k
                _put(holder, where, new)
                done.append((holder, where, new))
        return node

    def _settle(self, done: list[tuple[Any, Any, ast.expr]], mark: int) -> None:
        late, self.before = self.before[mark:], self.before[:mark]
        for k, (holder, where, value) in enumerate(done):
            if loads_memory(value) and not isinstance(getattr(value, "ctx", None), ast.Store):
                done[k] = (holder, where, self._hold(value))
                _put(holder, where, done[k][2])
        self.before += late

    def _lazily(self, node: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
        """Visit what is evaluated only sometimes: its statements are kept apart."""
        outer, self.before = self.before, []
        value = self.visit(node)
        mine, self.before = self.before, outer
        return mine, value

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """`a and f(b)`: statements of f run only when a holds."""
        first = self.visit(node.values[0])
        rest = [self._lazily(v) for v in node.values[1:]]
        if not any(before for before, _ in rest):
            return ast.BoolOp(node.op, [first, *(v for _, v in rest)])
        result = self.program.fresh("_h")
        self.before.append(assign(result, call("bool", first)))
        into = self.before
        for before, value in rest:
            go_on = name(result) if isinstance(node.op, ast.And) else negation(name(result))
            body = [*before, assign(result, call("bool", value))]
            into.append(ast.If(go_on, body, []))
        return name(result)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """`f(a) if c else b`: becomes an if statement when a branch needs statements."""
        test = self.visit(node.test)
        before_then, then = self._lazily(node.body)
        before_else, otherwise = self._lazily(node.orelse)
        if not before_then and not before_else:
            return ast.IfExp(test, then, otherwise)
        result = self.program.fresh("_h")
        then_body = [*before_then, assign(result, then)]
        else_body = [*before_else, assign(result, otherwise)]
        self.before.append(ast.If(test, then_body, else_body))
        return name(result)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A local under its new name, or a global."""
        if node.id in self.renames:
            new = self.renames[node.id]
            if not isinstance(new, ast.Name):
                return new
            parts = self.parts.get(new.id)
            if parts and isinstance(node.ctx, ast.Load):
                return ast.Tuple([name(p) for p in parts], ast.Load())
            return ast.Name(new.id, node.ctx)
        if node.id in self.source.locals:
            return node
        value = self.source.resolve(node)
        known = value is not None or node.id in self.source.environment
        return self._global(node, value, node.id) if known else node

    def _global(self, node: ast.expr, value: Any, hint: str) -> ast.expr:
        text = literal(value)
        if text:
            return expression(text)
        if value is None:
            return ast.Constant(None)
        meaning = vocabulary.cpu_meaning(value)
        if meaning is not None:
            return name(self.program.name_of(meaning, vocabulary.name_of(meaning)))
        if getattr(builtins, hint, None) is value:
            return name(hint)
        if isinstance(value, tuple):
            return ast.Tuple([self._global(node, v, f"{hint}_{k}") for k, v in enumerate(value)],
                             ast.Load())  # fmt: skip
        return name(self.program.name_of(value, "g_" + hint))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`cuda.threadIdx.x`, `math.pi`, `x.shape`."""
        path = self.source.cuda_name(node)
        if path:
            made = vocabulary.position(path, self.program)
            if made is not None:
                return made
        value = self.source.resolve(node)
        known = path.startswith(("jit", "libdevice.")) or isinstance(value, types.Type)
        if path and not known:
            self.source.fail(node, f"cuda.{path} has no meaning on the CPU; see the kernel rules")
        if value is not None:
            return self._global(node, value, node.attr)
        visited: ast.expr = self.generic_visit(node)  # type: ignore[assignment]
        return visited

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """An element; that of a tuple known at compile time is taken at once."""
        visited: ast.Subscript = self.generic_visit(node)  # type: ignore[assignment]
        if isinstance(visited.value, ast.Tuple) and isinstance(visited.slice, ast.Constant):
            return visited.value.elts[int(visited.slice.value)]  # type: ignore[arg-type]
        return visited

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """`cuda.*` calls, device functions, and functions that Numba knows."""
        path = self.source.cuda_name(node.func)
        if self._is_grid_sync(node):
            self.source.fail(node, "a grid's sync() must be a statement of its own")
        if path and not path.startswith("libdevice."):
            return self._cuda_call(node, path)
        function = self.source.resolve(node.func)
        if is_device_function(function):
            return self._inline(node, function)
        if function is print:
            return self._print(node)
        lanes = of_warp(function)
        if lanes is not None:
            known = self.program.name_of(lanes, lanes._name)
            return self._collective(
                vocabulary.INSTRUCTION, name(known), *self._arguments(node.args)
            )
        if function in (types.float16, np.float16) and len(node.args) == 1:
            value = self._arguments(node.args)[0]
            return self._template(f"_half({text_of(value)})")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "bit_count":
            popc = vocabulary.cuda_function("popc")
            known = self.program.name_of(popc, vocabulary.name_of(popc))
            return call(known, self.visit(node.func.value))
        two = len(node.args) == 2 and not node.keywords
        if two and function in (min, max):
            meaning = vocabulary.MINIMUM if function is min else vocabulary.MAXIMUM
            node.func = name(self.program.name_of(meaning, vocabulary.name_of(meaning)))
            node.args = self._arguments(node.args)
            return node
        visited: ast.expr = self.generic_visit(node)  # type: ignore[assignment]
        return visited

    def _print(self, node: ast.Call) -> ast.expr:
        """`print` of texts and numbers."""
        if node.keywords:
            self.source.fail(node, "print in a kernel takes no keywords; it ends a line by itself")
        texts = [a.value if isinstance(a, ast.Constant) and isinstance(a.value, str) else None
                 for a in node.args]  # fmt: skip
        values = [a for a, text in zip(node.args, texts, strict=True) if text is None]
        function = printer(tuple(texts))
        return call(self.program.name_of(function, "_print"), *self._arguments(values))

    def _is_grid_sync(self, node: ast.expr) -> bool:
        """Whether this is `cuda.cg.this_grid().sync()`, or `g.sync()` of such a g."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        grid = node.func.value
        made = isinstance(grid, ast.Call) and self.source.cuda_name(grid.func) == "cg.this_grid"
        known = isinstance(grid, ast.Name) and grid.id in self.grids
        return node.func.attr == "sync" and (made or known)

    def _arguments(self, nodes: Sequence[ast.expr]) -> list[ast.expr]:
        packed: ast.Tuple = self.generic_visit(ast.Tuple(list(nodes), ast.Load()))  # type: ignore[assignment]
        return packed.elts

    def _cuda_call(self, node: ast.Call, path: str) -> ast.expr:
        program, source = self.program, self.source
        if path in ("grid", "gridsize"):
            n = source.constant(node.args[0], f"the argument of cuda.{path}") if node.args else 0
            if n not in (1, 2, 3):
                source.fail(node, f"cuda.{path} takes 1, 2 or 3, got {text_of(node)}")
            made = [vocabulary.grid(path, k, program) for k in range(n)]
            return made[0] if n == 1 else ast.Tuple(made, ast.Load())
        if path in ("syncthreads", "syncwarp"):
            return call("__barrier", ast.Constant(path))
        if path.startswith("threadfence") or path in ("nanosleep", "cg.this_grid"):
            return ast.Constant(None)
        if path == "const.array_like":
            return self._arguments(node.args)[0]
        if path in vocabulary.COLLECTIVES:
            takes = vocabulary.COLLECTIVES[path]
            if len(node.args) != len(takes):
                source.fail(node, f"cuda.{path} takes ({', '.join(takes)}), got {text_of(node)}")
            operands = self._arguments(node.args)
            # The mask is dropped: kernels may use full warps only.
            first = 0 if path in vocabulary.BLOCK_VOTES else 1
            result = program.fresh("_c")
            collective = call("__collective", ast.Constant(path), *operands[first:])
            self.before.append(assign(result, collective))
            return name(result)
        special = self._warp_query(node, path)
        if special is not None:
            return special
        if path.startswith("fp16.") and path[5:] in vocabulary.HALF:
            texts = [text_of(a) for a in self._arguments(node.args)]
            return self._template(vocabulary.HALF[path[5:]].format(*texts))
        meaning = vocabulary.cuda_function(path)
        if meaning is None:
            source.fail(node, f"cuda.{path} has no meaning on the CPU; see the kernel rules")
        arguments = self._arguments(node.args)
        if path.startswith("atomic."):
            private = program.shared.keys() | program.local.keys()
            if not (isinstance(arguments[0], ast.Name) and arguments[0].id in private):
                program.has_global_atomics = True
            if path == "atomic.compare_and_swap":
                arguments.insert(1, ast.Constant(0))
        return call(program.name_of(meaning, vocabulary.name_of(meaning)), *arguments)

    def _collective(self, path: str, *operands: ast.expr) -> ast.expr:
        result = self.program.fresh("_c")
        self.before.append(assign(result, call("__collective", ast.Constant(path), *operands)))
        return name(result)

    def _warp_query(self, node: ast.Call, path: str) -> ast.expr | None:
        """Questions about a warp that are put together from a vote or a match; None for others."""
        if path == "lanemask_lt":
            uint32 = self.program.name_of(types.uint32, "g_uint32")
            return call(uint32, expression("(1 << _lane) - 1"))
        if path == "activemask":
            return self._collective("ballot_sync", ast.Constant(True))
        if path not in ("eq_sync", "match_all_sync"):
            return None
        value = self._arguments(node.args)[1]
        there = self._collective("ballot_sync", ast.Constant(True))
        if path == "eq_sync":
            votes = self._collective("ballot_sync", value)
            return expression(f"{text_of(votes)} == 0 or {text_of(votes)} == {text_of(there)}")
        same = text_of(self._collective(vocabulary.MATCH, value))
        agreed = f"{same} == {text_of(there)}"
        return expression(f"({same} if {agreed} else {same} ^ {same}, {agreed})")

    def _template(self, text: str) -> ast.expr:
        """An expression in terms of `vocabulary.HALF_NAMES`."""
        made = expression(text)
        for used in names(made) & vocabulary.HALF_NAMES.keys():
            self.program.objects[used] = vocabulary.HALF_NAMES[used]
        return made

    # Device functions ----------------------------------------------------------------------------

    def _inline(self, node: ast.Call, function: Any) -> ast.expr:
        """Put a device function's statements before the expression that calls it."""
        callee = source_of(function)
        if self.depth > 32:
            self.source.fail(node, f"device function {callee.function.__name__} calls itself")
        assigned = writes(callee.node.body)
        given = dict(zip(callee.parameters, callee.bind(node), strict=True))
        constants = {p: self._constant(a) for p, a in given.items() if p not in assigned}
        known = {p: value for p, (is_known, value) in constants.items() if is_known}
        callee = callee.with_constants(known)
        given = {p: a for p, a in given.items() if p not in known}
        suffix = self.program.fresh("_")
        renames: dict[str, ast.expr] = {
            local: name(f"v{local}{suffix}" if local.startswith("_") else f"{local}{suffix}")
            for local in callee.locals
        }
        for parameter, value in zip(given, self._arguments(list(given.values())), strict=True):
            simple = isinstance(value, ast.Name | ast.Constant | ast.Tuple)
            if parameter not in assigned and simple and not loads_memory(value):
                renames[parameter] = value
            else:
                target = renames[parameter]
                assert isinstance(target, ast.Name)
                self.before.append(assign(target.id, value))
        result = self.program.fresh("_result")
        renames[result] = name(result)
        body = without_returns(callee.body(), result, callee, self.program)
        inner = Normaliser(callee, self.program, renames, self.depth + 1)
        self.before += inner.statements(body)
        parts = inner.parts.get(result)
        return ast.Tuple([name(p) for p in parts], ast.Load()) if parts else name(result)

    def _constant(self, node: ast.expr) -> tuple[bool, Any]:
        """Whether an argument is known at compile time, and its value.

        Inside, it is then a global: it may be a function, a type, the shape of an array.
        """
        if isinstance(node, ast.Constant):
            return True, node.value
        if isinstance(node, ast.Tuple):
            elements = [self._constant(e) for e in node.elts]
            return all(known for known, _ in elements), tuple(value for _, value in elements)
        if not isinstance(node, ast.Name | ast.Attribute):
            return False, None
        value = self.source.resolve(node)
        place = vocabulary.position(self.source.cuda_name(node), self.program)
        return value is not None and place is None, value


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _put(holder: Any, where: Any, value: ast.expr) -> None:
    if isinstance(holder, list):
        holder[where] = value
    else:
        setattr(holder, where, value)

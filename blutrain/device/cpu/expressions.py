"""What names, attributes and calls in a kernel mean: the second half of normalising.

`cuda.*` becomes the compiler's own names and functions, a device function its statements.
"""

from __future__ import annotations

import abc
import ast
import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from blutrain.device.cpu import vocabulary
from blutrain.device.cpu.evaluation import Evaluation
from blutrain.device.cpu.printing import printer
from blutrain.device.cpu.ptx.lanes import of_warp
from blutrain.device.cpu.returns import without_returns
from blutrain.device.cpu.source import is_device_function, literal, source_of
from blutrain.device.cpu.syntax import (
    assign,
    call,
    expression,
    loads_memory,
    name,
    names,
    text_of,
    writes,
)  # fmt: skip


class Expressions(Evaluation, abc.ABC):
    """Rewrites expressions; what a device function's statements become, the subclass knows."""

    @abc.abstractmethod
    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The normal form of consecutive statements."""

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
        known = path.startswith(("jit", "libdevice.", "random.")) or isinstance(value, types.Type)
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
        if path and not path.startswith(("libdevice.", "random.")):
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
        inner = type(self)(callee, self.program, renames, self.depth + 1)
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

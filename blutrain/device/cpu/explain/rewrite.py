"""A kernel as a generator that stops where its threads meet.

What the text does is left as it is, with four changes: names of `numba.cuda` are looked up in
`_cuda`, a parameter that stands for the thread; where threads meet (barriers, shuffles, votes) the
generator yields; device functions are generators too; and each decision is reported.
"""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from blutrain.device.cpu.explain.mathematics import as_on_a_gpu
from blutrain.device.cpu.source import Source, is_device_function, source_of

MEETINGS = ("syncthreads", "syncwarp", "shfl", "ballot", "any_sync", "all_sync", "match")


def generator_of(kernel: Any) -> FunctionType:
    """A generator function of (`_cuda`, the kernel's parameters)."""
    return _Functions().of(source_of(kernel))


class _Functions:
    """The functions of one kernel, each rewritten once."""

    def __init__(self) -> None:
        self._made: dict[FunctionType, FunctionType] = {}

    def of(self, source: Source) -> FunctionType:
        """The generator function of one of them."""
        found = self._made.get(source.function)
        if found is not None:
            return found
        rewriter = _Rewriter(source, self)
        body = [rewriter.visit(s) for s in source.body()]
        body.insert(0, ast.parse("if False: yield").body[0])  # a generator, whatever is in it
        names = ["_cuda", *source.parameters]
        arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
        name = source.function.__name__
        definition = ast.FunctionDef(name, arguments, body, [], lineno=1)
        module = ast.fix_missing_locations(ast.Module([definition], []))
        ast.increment_lineno(module, source.first_line - 1)
        scope = {name: as_on_a_gpu(value) for name, value in source.environment.items()}
        scope |= rewriter.called
        exec(compile(module, source.function.__code__.co_filename, "exec"), scope)
        made: FunctionType = scope[name]
        self._made[source.function] = made
        return made


class _Rewriter(ast.NodeTransformer):
    """The changes to one function; `called` are the generators that it needs, by new name."""

    def __init__(self, source: Source, functions: _Functions) -> None:
        self.source, self.functions = source, functions
        self.called: dict[str, Any] = {}
        self._n_places = 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name that was imported from numba.cuda."""
        return self._of_cuda(node) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A dotted name of numba.cuda."""
        found = self._of_cuda(node)
        if found is None:
            self.generic_visit(node)
        return found or node

    def _of_cuda(self, node: ast.expr) -> ast.expr | None:
        path = self.source.cuda_name(node)
        return _parsed(f"_cuda.{path}", node) if path else None

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Meetings and device functions."""
        path = self.source.cuda_name(node.func)
        if path.startswith(MEETINGS):
            met = _parsed(f"({path!r}, {self._place(node)}, ())", node)
            assert isinstance(met, ast.Tuple)
            met.elts[-1] = ast.copy_location(
                ast.Tuple([self.visit(a) for a in node.args], ast.Load()), node
            )
            return ast.copy_location(ast.Yield(met), node)
        callee = None if path else self.source.resolve(node.func)
        if is_device_function(callee):
            source = source_of(callee)
            name = f"_device_{len(self.called)}"
            self.called[name] = self.functions.of(source)
            call = _parsed(f"{name}(_cuda)", node)
            assert isinstance(call, ast.Call)
            call.args += [self.visit(a) for a in source.bind(node)]
            return ast.copy_location(ast.YieldFrom(call), node)
        self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If) -> ast.stmt:
        """A decision."""
        self.generic_visit(node)
        node.test = self._reported("decide", node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.stmt:
        """A decision before each turn."""
        self.generic_visit(node)
        node.test = self._reported("decide", node.test)
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        """A decision before each turn."""
        self.generic_visit(node)
        node.iter = self._reported("turns", node.iter)
        return node

    def _reported(self, function: str, value: ast.expr) -> ast.expr:
        call = _parsed(f"_cuda.{function}({self._place(value)})", value)
        assert isinstance(call, ast.Call)
        call.args.append(value)
        return call

    def _place(self, node: ast.expr) -> str:
        """The site of a node, as text of an expression."""
        self._n_places += 1
        line = self.source.first_line + node.lineno - 1
        return f"({self.source.function.__code__.co_filename!r}, {line}, {self._n_places})"


def _parsed(text: str, where: ast.expr) -> ast.expr:
    """An expression that stands where another one stood."""
    made = ast.parse(text, mode="eval").body
    for part in ast.walk(made):
        ast.copy_location(part, where)
    return made

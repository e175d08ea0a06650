"""From a Python function to its syntax tree, and from a name in it to the object that it means.

A kernel is compiled from its source, so the source must be at hand. Globals and closure variables
are looked up once, when the kernel is compiled, exactly as Numba does: they are constants.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import math
import textwrap
from collections import ChainMap
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from blutrain.device.cpu.syntax import clone, walk, writes
from blutrain.errors import KernelError, message

_MISSING = object()


def python_function(kernel: Any) -> FunctionType:
    """The Python function behind a kernel, whatever its decorators."""
    function = inspect.unwrap(getattr(kernel, "py_func", kernel))
    if not isinstance(function, FunctionType):
        raise KernelError(
            message(
                "cpu", "a kernel must be a @cuda.jit function", type(kernel).__name__,
                "decorate a Python function with numba's @cuda.jit",
            )
        )  # fmt: skip
    return function


def is_device_function(value: Any) -> bool:
    """Whether `value` is a function made by `@cuda.jit`, which a kernel may call."""
    return hasattr(value, "py_func") and ".cuda" in type(value).__module__


_sources: dict[FunctionType, Source] = {}


def source_of(kernel: Any) -> Source:
    """The source of a kernel or device function, parsed once."""
    function = python_function(kernel)
    found = _sources.get(function)
    if found is None:
        found = _sources[function] = Source(function)
    return found


class Source:
    """A function's syntax, with what its free names mean.

    Attributes:
        function: the Python function.
        node: its parsed definition, not to be modified.
        parameters: names of its parameters.
        locals: names that are parameters or assigned somewhere in the body.
    """

    def __init__(self, kernel: Any) -> None:
        self.function = function = python_function(kernel)
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise KernelError(
                message(
                    f"kernel {function.__name__}", "its source text must be available", None,
                    "define it in a file (or in a notebook cell), not through exec or a REPL",
                )
            ) from None  # fmt: skip
        try:
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except SyntaxError:  # a lambda on a line of a longer expression
            tree = ast.Module([], [])
        found = next((n for n in walk(tree) if isinstance(n, ast.FunctionDef)), None)
        lambdas = [n for n in walk(tree) if isinstance(n, ast.Lambda)]
        if found is None and len(lambdas) == 1:
            result = ast.copy_location(ast.Return(lambdas[0].body), lambdas[0].body)
            found = ast.FunctionDef("_lambda", lambdas[0].args, [result], [], lineno=1)
        self.first_line, self.lines = first, lines
        if found is None:
            self.fail(None, "a kernel must be written with def, got a lambda among others")
        self.node = found
        self.parameters = [a.arg for a in found.args.posonlyargs + found.args.args]
        if found.args.vararg or found.args.kwarg or found.args.kwonlyargs:
            self.fail(found, "a kernel takes positional parameters only; name each of them")
        self.locals = frozenset(self.parameters) | writes(found.body)
        free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = {v: cell.cell_contents for v, cell in free}
        self.environment = ChainMap[str, Any](closure, function.__globals__)

    def fail(self, node: ast.AST | None, wrong: str) -> NoReturn:
        """Raise a KernelError that names the kernel and the line.

        Args:
            node: where in the source.
            wrong: what is wrong and, after a semicolon, what to do.
        """
        where = self.place(getattr(node, "lineno", 1))
        raise KernelError(f"kernel {self.function.__name__} ({where}): {wrong}")

    def place(self, line: int) -> str:
        """File and line in it, for a line of this source (the first is 1)."""
        return f"{self.function.__code__.co_filename}:{self.first_line + line - 1}"

    def with_constants(self, values: Mapping[str, Any]) -> Source:
        """The same function with some of its parameters taken for globals of these values."""
        known = copy.copy(self)
        known.locals = self.locals - values.keys()
        known.environment = self.environment.new_child(dict(values))
        return known

    def fail_at(self, line: int, wrong: str) -> NoReturn:
        """As `fail`, quoting the line with this number in the source."""
        self.fail(ast.Pass(lineno=line), f"{wrong} (in `{self.lines[line - 1].strip()}`)")

    def body(self) -> list[ast.stmt]:
        """A fresh copy of the statements."""
        return [clone(s) for s in self.node.body]

    def bind(self, node: ast.Call) -> list[ast.expr]:
        """The arguments of a call of this function, in the order of its parameters."""
        given: dict[str, ast.expr] = dict(zip(self.parameters, node.args, strict=False))
        given.update({k.arg: k.value for k in node.keywords if k.arg})
        defaults = self.function.__defaults__ or ()
        for parameter, value in zip(self.parameters[::-1], defaults[::-1], strict=False):
            given.setdefault(parameter, ast.Constant(value))
        if set(given) != set(self.parameters) or len(node.args) > len(self.parameters):
            self.fail(None, f"takes ({', '.join(self.parameters)}), got {ast.unparse(node)}")
        return [given[p] for p in self.parameters]

    def resolve(self, node: ast.AST) -> Any:
        """The object that a free name or a dotted name means; None when it has none."""
        if isinstance(node, ast.Name):
            if node.id in self.locals:
                return None
            return self.environment.get(node.id, getattr(builtins, node.id, None))
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return None if base is None else getattr(base, node.attr, None)
        return None

    def cuda_name(self, node: ast.AST) -> str:
        """What follows `cuda.` in a name of `numba.cuda`'s, such as "threadIdx.x"; or ""."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return ""
        value = self.environment.get(node.id)
        if isinstance(value, ModuleType):
            path = value.__name__
            return ".".join(parts) if path == "numba.cuda" or path.endswith(".cuda") else ""
        # `from numba.cuda import threadIdx, atomic`, or `cuda.atomic.add` passed to a function:
        # stubs and intrinsics carry their name.
        home = getattr(value, "__module__", "") or ""
        known = getattr(value, "__qualname__", "")
        if home in ("numba.cuda.stubs", "numba.cuda.intrinsics") and known:
            return ".".join([known.strip("_") if "." not in known else known, *parts])
        return ""

    def constant(self, node: ast.AST, what: str) -> Any:
        """The value of an expression of literals, globals and closure variables."""
        try:
            expression = ast.Expression(ast.fix_missing_locations(clone(node)))  # type: ignore[arg-type]
            fixed = self._literals()
            unknown = self.locals - fixed.keys()
            if any(isinstance(n, ast.Name) and n.id in unknown for n in walk(node)):
                raise NameError
            known = self.environment.new_child(fixed)
            return eval(compile(expression, "<constant>", "eval"), {}, known)
        except NameError:
            self.fail(node, f"{what} must be a constant, got {ast.unparse(node)}; use a global")

    def _literals(self) -> dict[str, Any]:
        """The local names that are assigned once, a literal."""
        nodes = list(walk(self.node))
        stores = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        return {
            s.targets[0].id: s.value.value
            for s in nodes
            if isinstance(s, ast.Assign)
            and isinstance(s.targets[0], ast.Name)
            and isinstance(s.value, ast.Constant)
            and s.targets[0].id not in self.parameters
            and stores.count(s.targets[0].id) == 1
        }


def literal(value: Any) -> str:
    """Source text of a bool, int or float; "" for anything else."""
    if type(value) not in (bool, int, float):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "_nan" if value != value else ("_inf" if value > 0 else "(-_inf)")
    return repr(value)

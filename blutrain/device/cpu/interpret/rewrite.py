"""A kernel as a generator that tells what it does and stops where its threads meet.

Expressions stay as they are, but for: subscripts, which become calls that check and tell; products,
quotients, powers and shifts, whose results have Numba's types; calls of `numba.cuda`'s, `math`'s
and device functions; and, if somebody wants to know of them, decisions. A device function that
meets nobody stays a function, for a generator costs more.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from numba import types as numba_types

from blutrain.device.cpu.interpret import mathematics, numbers
from blutrain.device.cpu.interpret.events import Site
from blutrain.device.cpu.source import Source, is_device_function, source_of
from blutrain.device.cpu.syntax import walk
from blutrain.device.pointer import array_at

MEETINGS = (
    "syncthreads", "syncwarp", "shfl_", "ballot_sync", "any_sync", "all_sync", "match_",
    "eq_sync", "uni_sync", "activemask",
)  # fmt: skip
GRID_SYNC = "grid.sync"
FENCES = ("threadfence", "threadfence_block", "threadfence_system")
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Mult: "_product", ast.Div: "_quotient", ast.LShift: "_shifted", ast.Pow: "_power",
}  # fmt: skip
EARLY = "early"


class Callee:
    """A device function, interpreted.

    Attributes:
        function: a function of (`_cuda`, the device function's parameters).
        meets: whether it is a generator, since threads meet in it.
    """

    def __init__(self, function: Callable[..., Any], meets: bool) -> None:
        self.function, self.meets = function, meets


class Functions:
    """The functions of one launch, each rewritten once.

    Args:
        decisions: whether decisions are told.
    """

    def __init__(self, decisions: bool) -> None:
        self.decisions = decisions
        self._made: dict[FunctionType, Callee] = {}
        self._meets: dict[FunctionType, bool] = {}

    def meets(self, source: Source) -> bool:
        """Whether threads may meet in a function."""
        found = self._meets.get(source.function)
        if found is None:
            self._meets[source.function] = False
            found = self._meets[source.function] = any(
                self._is_meeting(source, n) for n in walk(source.node) if isinstance(n, ast.Call)
            )
        return found

    def _is_meeting(self, source: Source, call: ast.Call) -> bool:
        path = source.cuda_name(call.func)
        if path:
            return path.startswith(MEETINGS) or path.startswith("cg.")
        callee = source.resolve(call.func)
        if is_device_function(callee):
            return self.meets(source_of(callee))
        # A parameter that is called may be any function; one that syncs may be the grid.
        if isinstance(call.func, ast.Name):
            return call.func.id in source.locals
        return isinstance(call.func, ast.Attribute) and call.func.attr == "sync"

    def of(self, kernel: Any, generator: bool = False) -> Callee:
        """A function as it is interpreted."""
        source = source_of(kernel)
        found = self._made.get(source.function)
        if found is None:
            meets = generator or self.meets(source)
            found = self._made[source.function] = Callee(lambda: None, meets)
            found.function = _compiled(source, self, meets)
        return found


def _compiled(source: Source, functions: Functions, generator: bool) -> Callable[..., Any]:
    rewriter = _Rewriter(source, functions)
    body = rewriter.body(source.body())
    if generator:
        body.insert(0, ast.parse("if False: yield").body[0])
    names = ["_cuda", *source.parameters]
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    name = source.function.__name__.replace("<lambda>", "_lambda")
    definition = ast.FunctionDef(name, arguments, body, [], lineno=1)
    module = ast.fix_missing_locations(ast.Module([definition], []))
    ast.increment_lineno(module, source.first_line - 1)
    scope = {**source.environment, **_SCOPE, **rewriter.scope}
    exec(compile(module, source.function.__code__.co_filename, "exec"), scope)
    made: Callable[..., Any] = scope[name]
    return made


def _call(cuda: Any, callee: Any, *arguments: Any) -> Any:
    """Call a function that a device function was given."""
    if isinstance(callee, Callee):
        result = callee.function(cuda, *arguments)
        return (yield from result) if callee.meets else result
    return callee(*arguments)


def _load(base: Any, index: Any, site: Site) -> Any:
    """`base[index]` of what is an array, or a tuple, or a constant array."""
    load = getattr(base, "load", None)
    if load is not None:
        return load(index, site)
    return numbers.number(base[index])


_SCOPE: dict[str, Any] = {
    "_load": _load, "_call": _call, "_product": numbers.product, "_quotient": numbers.quotient,
    "_shifted": numbers.shifted, "_power": numbers.power, "_EARLY": EARLY,
}  # fmt: skip


class _Rewriter(ast.NodeTransformer):
    """The changes to one function; `scope` has the names that they need."""

    def __init__(self, source: Source, functions: Functions) -> None:
        self.source, self.functions = source, functions
        self.scope: dict[str, Any] = {}
        self._target = ""
        self._n = 0

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, changed."""
        out: list[ast.stmt] = []
        for s in statements:
            made = self.visit(s)
            out += made if isinstance(made, list) else [made]
        return out

    # Names -------------------------------------------------------------------------------------

    def _bound(self, value: Any, node: ast.AST) -> ast.expr:
        """A name for a constant."""
        name = f"_k{len(self.scope)}"
        self.scope[name] = value
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _site(self, node: ast.AST) -> ast.expr:
        line = self.source.first_line + getattr(node, "lineno", 1) - 1
        column = getattr(node, "col_offset", 0)
        file = self.source.function.__code__.co_filename
        return self._bound(Site(file, line, column, ast.unparse(node)), node)

    def _call_of(self, function: str | ast.expr, given: list[ast.expr], where: ast.AST) -> ast.Call:
        if isinstance(function, str):
            function = _parsed(function, where)
        return ast.copy_location(ast.Call(function, given, []), where)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A Python float is a float64."""
        return self._bound(np.float64(node.value), node) if type(node.value) is float else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Free names mean what they mean to Numba."""
        if not isinstance(node.ctx, ast.Load) or node.id in self.source.locals:
            return node
        path = self.source.cuda_name(node)
        if path:
            return _parsed(f"_cuda.{path}", node)
        return self._meaning(self.source.resolve(node), node) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A name of `numba.cuda`'s, or of a module; else a field."""
        path = self.source.cuda_name(node)
        if path:
            return _parsed(f"_cuda.{path}", node)
        found = self._meaning(self.source.resolve(node), node)
        if found is None:
            self.generic_visit(node)
        return found or node

    def _meaning(self, value: Any, node: ast.expr) -> ast.expr | None:
        if is_device_function(value):
            return self._bound(self.functions.of(value), node)
        if type(value) is float:
            return self._bound(np.float64(value), node)
        function = meaning_of(value)
        return None if function is None else self._bound(function, node)

    # Calls -------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """One call."""
        path = self.source.cuda_name(node.func)
        if path:
            return self._of_cuda(path, node)
        site = self._site(node)
        callee = self.source.resolve(node.func)
        if is_device_function(callee):
            return self._of_device(callee, node)
        if callee is array_at:
            return self._call_of("_cuda.array_at", [self.visit(a) for a in node.args], node)
        if hasattr(callee, "ptx"):
            return self._call_of(
                "_cuda.instruction", [self._bound(callee, node), site, *map(self.visit, node.args)],
                node,
            )  # fmt: skip
        if isinstance(node.func, ast.Name) and node.func.id in self.source.locals:
            given = [_parsed("_cuda", node), node.func, *map(self.visit, node.args)]
            return ast.copy_location(ast.YieldFrom(self._call_of("_call", given, node)), node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "sync":
            return self._meeting(GRID_SYNC, [], node)
        if isinstance(node.func, ast.Call):  # type(v)(x)
            kind = self.visit(node.func)
            return self._call_of("_cuda.cast", [kind, *map(self.visit, node.args)], node)
        self.generic_visit(node)
        return node

    def _of_device(self, callee: Any, node: ast.Call) -> ast.expr:
        made = self.functions.of(callee)
        given = [self.visit(a) for a in source_of(callee).bind(node)]
        # By way of the callee, whose function a recursive one has not yet.
        function = ast.Attribute(self._bound(made, node), "function", ast.Load())
        call = self._call_of(function, [_parsed("_cuda", node), *given], node)
        return ast.copy_location(ast.YieldFrom(call), node) if made.meets else call

    def _of_cuda(self, path: str, node: ast.Call) -> ast.expr:
        given = [self.visit(a) for a in node.args]
        if path.startswith(MEETINGS):
            return self._meeting(path, given + [self.visit(k.value) for k in node.keywords], node)
        site = self._site(node)
        if path in ("shared.array", "local.array"):
            return self._new_array(path, site, node)
        if path.startswith("atomic."):
            return self._call_of(f"_cuda.{path}", [*given, site], node)
        if path in FENCES:
            return self._call_of("_cuda.fence", [site], node)
        if path in mathematics.CUDA:
            return self._call_of(self._bound(mathematics.CUDA[path], node), given, node)
        return self._call_of(_parsed(f"_cuda.{path}", node), given, node)

    def _new_array(self, path: str, site: ast.expr, node: ast.Call) -> ast.expr:
        written = dict(zip(("shape", "dtype"), node.args, strict=False))
        written.update({k.arg: k.value for k in node.keywords if k.arg})
        # The type as it is, not as the cast that a call of it means.
        kind = self.source.resolve(written["dtype"])
        dtype = self.visit(written["dtype"]) if kind is None else self._bound(kind, node)
        name = ast.copy_location(ast.Constant(self._target or path), node)
        function = f"_cuda.{path.replace('.', '_')}"
        return self._call_of(function, [site, name, self.visit(written["shape"]), dtype], node)

    def _meeting(self, what: str, given: list[ast.expr], node: ast.Call) -> ast.expr:
        met = ast.Tuple(
            [ast.Constant(what), self._site(node), ast.Tuple(given, ast.Load())], ast.Load()
        )
        return ast.copy_location(ast.Yield(met), node)

    # Arithmetic and subscripts -----------------------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Operators whose results Python types otherwise."""
        site = node
        self.generic_visit(node)
        return self._operation(node.left, node.op, node.right, site)

    def _operation(self, a: ast.expr, op: ast.operator, b: ast.expr, where: ast.AST) -> ast.expr:
        function = _OPERATORS.get(type(op))
        if function is None:
            return ast.copy_location(ast.BinOp(a, op, b), where)
        return self._call_of(function, [a, b], where)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """A load."""
        site = self._site(node)
        base, index = self.visit(node.value), self._index(node.slice)
        return self._call_of("_load", [base, index, site], node)

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            parts = [
                ast.Constant(None) if p is None else self.visit(p)
                for p in (node.lower, node.upper, node.step)
            ]
            return self._call_of(self._bound(slice, node), parts, node)
        if isinstance(node, ast.Tuple):
            made = ast.Tuple([self._index(e) for e in node.elts], ast.Load())
            return ast.copy_location(made, node)
        made_index: ast.expr = self.visit(node)
        return made_index

    def _fresh(self) -> str:
        self._n += 1
        return f"_v{self._n}"

    def _store(self, target: ast.Subscript, value: ast.expr) -> ast.stmt:
        # The value first, as Python has it.
        site = self._site(target)
        base, index = self.visit(target.value), self._index(target.slice)
        store = ast.copy_location(ast.Attribute(base, "store", ast.Load()), target)
        call = self._call_of(store, [index, value, site], target)
        return ast.copy_location(ast.Expr(call), target)

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Stores, and names for new arrays."""
        target = node.targets[0]
        self._target = target.id if isinstance(target, ast.Name) else ""
        value = self.visit(node.value)
        self._target = ""
        if all(isinstance(t, ast.Name) for t in node.targets):
            return ast.copy_location(ast.Assign(node.targets, value), node)
        held = self._fresh()
        out: list[ast.stmt] = [ast.Assign([ast.Name(held, ast.Store())], value)]
        for t in node.targets:
            out += self._assigned(t, ast.Name(held, ast.Load()))
        return [ast.copy_location(s, node) for s in out]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """As without the annotation."""
        return self.visit_Assign(
            ast.copy_location(ast.Assign([node.target], node.value or ast.Constant(None)), node)
        )

    def _assigned(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Subscript):
            return [self._store(target, value)]
        if not isinstance(target, ast.Tuple | ast.List):
            return [ast.Assign([target], value)]
        names = [self._fresh() for _ in target.elts]
        into = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
        out: list[ast.stmt] = [ast.Assign([into], value)]
        for part, name in zip(target.elts, names, strict=True):
            out += self._assigned(part, ast.Name(name, ast.Load()))
        return out

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """`x op= y`; of an element, the array and the index are evaluated once."""
        where, target = node, node.target
        if isinstance(target, ast.Name):
            old = ast.Name(target.id, ast.Load())
            value = self._operation(old, node.op, self.visit(node.value), node)
            return ast.copy_location(ast.Assign([target], value), node)
        assert isinstance(target, ast.Subscript)
        site = self._site(target)
        base, index = self._fresh(), self._fresh()
        out: list[ast.stmt] = [
            ast.Assign([ast.Name(base, ast.Store())], self.visit(target.value)),
            ast.Assign([ast.Name(index, ast.Store())], self._index(target.slice)),
        ]
        element = [ast.Name(base, ast.Load()), ast.Name(index, ast.Load())]
        old_value = self._call_of("_load", [*element, site], node)
        value = self._operation(old_value, node.op, self.visit(node.value), node)
        store = ast.Attribute(element[0], "store", ast.Load())
        out.append(ast.Expr(self._call_of(store, [element[1], value, site], node)))
        return [ast.copy_location(s, where) for s in out]

    # Decisions ---------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> ast.stmt:
        """A decision."""
        test = self._told("branch", node.test)
        made = ast.If(test, self.body(node.body), self.body(node.orelse))
        return ast.copy_location(made, node)

    def visit_While(self, node: ast.While) -> ast.stmt:
        """A decision before each turn."""
        test = self._told("branch", node.test)
        return ast.copy_location(ast.While(test, self.body(node.body), []), node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        """A decision before each turn."""
        turns = self._told("turns", node.iter)
        return ast.copy_location(ast.For(node.target, turns, self.body(node.body), []), node)

    def _told(self, function: str, value: ast.expr) -> ast.expr:
        if not self.functions.decisions:
            changed: ast.expr = self.visit(value)
            return changed
        site = self._site(value)
        return self._call_of(f"_cuda.{function}", [site, self.visit(value)], value)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        """A kernel's early return is told from coming to its end."""
        value = _parsed("_EARLY", node) if node.value is None else self.visit(node.value)
        return ast.copy_location(ast.Return(value), node)


def meaning_of(value: Any) -> Any:
    """What a free name's value becomes: a cast for a type, a function for one of `math`'s."""
    if isinstance(value, numba_types.Type) or (
        isinstance(value, type) and issubclass(value, np.generic)
    ):
        name = value.__name__ if isinstance(value, type) else value.name
        return numbers.CASTS.get(name.rstrip("_"))
    if isinstance(value, BuiltinFunctionType | FunctionType | type):
        if value in mathematics.BUILTINS:
            return mathematics.BUILTINS[value]
        home = getattr(value, "__module__", "")
        if home == "math":
            return mathematics.MATH.get(value.__name__)
        if home == "numba.cuda.libdevice":
            return mathematics.libdevice(value.__name__)
    if isinstance(value, int | float) and type(value) is float and not math.isnan(value):
        return np.float64(value)
    return None


def _parsed(text: str, where: ast.AST) -> ast.expr:
    """An expression that stands where another one stood."""
    made = ast.parse(text, mode="eval").body
    for part in ast.walk(made):
        ast.copy_location(part, where)
    return made

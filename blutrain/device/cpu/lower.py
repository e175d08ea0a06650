"""From a typed program to LLVM: control flow and variables (expressions are in `values.py`)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from blutrain.device.cpu import hints
from blutrain.device.cpu.arrays import stack_view
from blutrain.device.cpu.kinds import Kinds
from blutrain.device.cpu.ptx.instructions import assembly
from blutrain.device.cpu.ptx.memory import window_of
from blutrain.device.cpu.signatures import FAILURES, TypingError, failure
from blutrain.device.cpu.strips import range_arguments
from blutrain.device.cpu.syntax import names, walk
from blutrain.device.cpu.values import I64, Values


class FlaggedBuilder(ir.IRBuilder):
    """A builder whose floating-point instructions all carry the kernel's fast-math flags.

    Inline assembly in a kernel is PTX: it becomes LLVM code (see `ptx/`).
    """

    flags: tuple[str, ...] = ()
    entry: Any = None
    _window: Any = None

    def window(self) -> Any:
        """The address from which addresses in shared memory are counted."""
        if self._window is None:
            self._window = window_of(ir.IRBuilder(self.entry))
        return self._window

    def call(self, fn: Any, args: Any, *more: Any, **options: Any) -> Any:
        """A call, or what a piece of PTX means."""
        if isinstance(fn, ir.InlineAsm):
            return assembly(self, self.window, fn, args)
        return super().call(fn, args, *more, **options)


def _flagged(name: str) -> Any:
    plain = getattr(ir.IRBuilder, name)

    def method(self: FlaggedBuilder, *arguments: Any, **options: Any) -> Any:
        options.setdefault("flags", self.flags)
        return plain(self, *arguments, **options)

    return method


for _name in ("fadd", "fsub", "fmul", "fdiv", "frem", "fcmp_ordered", "fcmp_unordered", "fneg"):
    setattr(FlaggedBuilder, _name, _flagged(_name))


class Lowering:
    """Lowers one function.

    Args:
        definition: the function; its parameters are the entry's.
        kinds: the types of its variables.
        context: Numba's target context.
        function: the LLVM function to fill.
        arguments: LLVM values of the parameters, all int64.
        flags: fast-math flags.
        own: names of arrays that threads use one after another (see `hints.py`).
    """

    def __init__(
        self,
        definition: ast.FunctionDef,
        kinds: Kinds,
        context: Any,
        function: Any,
        arguments: Mapping[str, Any],
        flags: Sequence[str],
        own: frozenset[str],
    ) -> None:
        self.kinds, self.context, self.function = kinds, context, function
        self.module = function.module
        self.entry = function.append_basic_block("entry")
        start = function.append_basic_block("start")
        self.builder = FlaggedBuilder(start)
        self.builder.flags, self.builder.entry = tuple(flags), self.entry
        self.slots: dict[str, Any] = {}
        self.values = Values(kinds, context, self.builder, self._load, own)
        self.values.fixed.update(arguments)
        # (where continue goes, where break goes), innermost last
        self.loops: list[tuple[Any, Any]] = []
        self.within_threads = 0  # how many loops over threads are around
        self.around_jumps = 0  # how many loops with a break or continue
        self.fixed = _assigned_once(definition.body)
        self.block(definition.body)
        if not self.builder.block.is_terminated:
            context.call_conv.return_value(self.builder, context.get_dummy_value())
        # Stack slots come first: all of them dominate their uses, whichever way control takes.
        ir.IRBuilder(self.entry).branch(start)

    # Variables -----------------------------------------------------------------------------------

    def _slot(self, variable: str) -> Any:
        slot = self.slots.get(variable)
        if slot is None:
            llvm_type = self.context.get_value_type(self.kinds.variables[variable])
            slot = self.slots[variable] = ir.IRBuilder(self.entry).alloca(llvm_type, name=variable)
        return slot

    def _load(self, variable: str) -> Any:
        return self.builder.load(self._slot(variable))

    def _store(self, target: ast.expr, value: Any, kind: types.Type) -> None:
        if isinstance(target, ast.Subscript):
            self.values.store(target, value, kind)
            return
        if isinstance(target, ast.Attribute):
            self.values.store_field(target, value, kind)
            return
        assert isinstance(target, ast.Name)
        wanted = self.kinds.variables[target.id]
        cast = self.values.cast(value, kind, wanted)
        if target.id in self.fixed:
            self.values.fixed[target.id] = cast
        else:
            self.builder.store(cast, self._slot(target.id))

    # Statements ----------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Statements, up to one after which nothing runs."""
        for s in body:
            if self.builder.block.is_terminated:
                return
            self.values.statement = s
            try:
                getattr(self, "_" + type(s).__name__.lower())(s)
            except FAILURES as error:
                raise failure(s, error) from error

    def _pass(self, s: ast.Pass) -> None:
        """Nothing."""

    def _expr(self, s: ast.Expr) -> None:
        self.values.of(s.value)

    def _assign(self, s: ast.Assign) -> None:
        target = s.targets[0]
        if isinstance(target, ast.Name) and target.id in self.kinds.cells:
            self._cells(target.id, s.value)
            return
        kind = self.kinds.of(s.value)
        if kind is None:
            raise TypingError(s, f"{ast.unparse(s.value)} has no value")
        if isinstance(target, ast.Subscript) and isinstance(s.value, ast.Constant):
            # A literal takes the element's type at once.
            wanted = self.values.element_kind(target)
            if wanted is not None:
                self.values.store(target, self.values.as_kind(s.value, wanted), wanted)
                return
        value = self.values.of(s.value)
        if isinstance(kind, types.Array) and isinstance(target, ast.Name):
            if names(s.value) & self.values.own:  # a view of a thread's own array
                self.values.own |= {target.id}
        if isinstance(target, ast.Tuple):
            for k, (t, part) in enumerate(zip(target.elts, kind, strict=True)):
                self._store(t, self.builder.extract_value(value, k), part)
        else:
            self._store(target, value, kind)

    def _cells(self, array: str, value: ast.expr) -> None:
        """An array of a carried variable, with an element a thread."""
        assert isinstance(value, ast.Call) and isinstance(value.args[0], ast.Constant)
        element = self.kinds.cells[array]
        if element is None:
            return  # nobody ever stores into it, so nobody reads it
        n: int = value.args[0].value  # type: ignore[assignment]
        llvm_type = self.context.get_data_type(element)
        memory = ir.IRBuilder(self.entry).alloca(ir.ArrayType(llvm_type, n), name=array)
        memory.align = 64
        kind = types.Array(element, 1, "C")
        self.values.fixed[array] = stack_view(self.context, self.builder, kind, memory, [I64(n)])

    def _if(self, s: ast.If) -> None:
        test = self.values.truth(s.test)
        then = self.function.append_basic_block("then")
        end = self.function.append_basic_block("endif")
        otherwise = self.function.append_basic_block("else") if s.orelse else end
        self.builder.cbranch(test, then, otherwise)
        for block, body in ((then, s.body), (otherwise, s.orelse)):
            if block is end:
                continue
            self.builder.position_at_end(block)
            self.block(body)
            if not self.builder.block.is_terminated:
                self.builder.branch(end)
        self.builder.position_at_end(end)

    def _while(self, s: ast.While) -> None:
        head = self.function.append_basic_block("while")
        body = self.function.append_basic_block("body")
        end = self.function.append_basic_block("endwhile")
        self.builder.branch(head)
        self.builder.position_at_end(head)
        self.builder.cbranch(self.values.truth(s.test), body, end)
        self.builder.position_at_end(body)
        self.loops.append((head, end))
        jumps = hints.has_jump(s)
        self.around_jumps += jumps
        self.block(s.body)
        self.around_jumps -= jumps
        self.loops.pop()
        if not self.builder.block.is_terminated:
            self.builder.branch(head)
        self.builder.position_at_end(end)

    def _for(self, s: ast.For) -> None:
        """A counted loop: the number of turns is known before the first, as in Python."""
        assert isinstance(s.iter, ast.Call)
        builder = self.builder
        start, stop, step = range_arguments(s.iter.args)
        first, last, by = (self.values.as_kind(e, types.int64) for e in (start, stop, step))
        counter = ir.IRBuilder(self.entry).alloca(I64)
        builder.store(first, counter)
        head = self.function.append_basic_block("for")
        body = self.function.append_basic_block("body")
        turn = self.function.append_basic_block("next")
        end = self.function.append_basic_block("endfor")
        builder.branch(head)
        builder.position_at_end(head)
        now = builder.load(counter)
        up = builder.icmp_signed("<", now, last)
        if isinstance(step, ast.Constant):
            more = up if step.value > 0 else builder.icmp_signed(">", now, last)  # type: ignore[operator]
        else:
            # A step of zero must not run for ever.
            below = builder.icmp_signed("<", by, I64(0))
            down = builder.and_(below, builder.icmp_signed(">", now, last))
            more = builder.select(builder.icmp_signed(">", by, I64(0)), up, down)
        builder.cbranch(more, body, end)
        builder.position_at_end(body)
        group = None
        over_threads = hints.is_over_threads(s)
        self.within_threads += over_threads
        if over_threads and not hints.returns_to_stores(s.body, self.kinds.cells):
            group = hints.access_group(self.module)
            self.values.groups.append(group)
        self.loops.append((turn, end))
        self._store(s.target, now, types.int64)
        jumps = hints.has_jump(s)
        self.around_jumps += jumps
        self.block(s.body)
        self.around_jumps -= jumps
        self.loops.pop()
        short = self.within_threads > 0 and not self.around_jumps and self._is_short(s)
        self.within_threads -= over_threads
        if group is not None:
            self.values.groups.pop()
        if not builder.block.is_terminated:
            builder.branch(turn)
        builder.position_at_end(turn)
        builder.store(builder.add(builder.load(counter), by, flags=("nsw",)), counter)
        short &= not over_threads
        scalar = not short and not over_threads and hints.is_tiny(s)
        hints.mark(self.module, builder.branch(head), group, unroll=short, scalar=scalar)
        builder.position_at_end(end)

    def _is_short(self, s: ast.For) -> bool:
        return hints.is_short(s, reorders="reassoc" in self.builder.flags)

    def _break(self, s: ast.Break) -> None:
        self.builder.branch(self.loops[-1][1])

    def _continue(self, s: ast.Continue) -> None:
        self.builder.branch(self.loops[-1][0])

    def _raise(self, s: ast.Raise) -> None:
        """Leave the entry; what was raised is a constant of the program."""
        raised, arguments = s.exc, ()
        if isinstance(raised, ast.Call):
            if not all(isinstance(a, ast.Constant) for a in raised.args):
                raise TypingError(s, "an exception's arguments must be constants")
            arguments = tuple(a.value for a in raised.args)  # type: ignore[attr-defined]
            raised = raised.func
        kind = self.kinds.value_of(raised.id) if isinstance(raised, ast.Name) else None
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypingError(s, "only an exception class or a call of one can be raised")
        self.context.call_conv.return_user_exc(self.builder, kind, arguments)

    def _assert(self, s: ast.Assert) -> None:
        test = self.values.truth(s.test)
        good = self.function.append_basic_block("assert.ok")
        bad = self.function.append_basic_block("assert.failed")
        self.builder.cbranch(test, good, bad)
        self.builder.position_at_end(bad)
        text = (s.msg.value,) if isinstance(s.msg, ast.Constant) else ()
        self.context.call_conv.return_user_exc(self.builder, AssertionError, text)
        self.builder.position_at_end(good)


def _assigned_once(body: Sequence[ast.stmt]) -> set[str]:
    """Variables with one assignment, which is among these statements themselves."""
    counts: dict[str, int] = {}
    for s in body:
        for n in walk(s):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                counts[n.id] = counts.get(n.id, 0) + 1
    here = {
        s.targets[0].id
        for s in body
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
    }
    return {v for v in here if counts[v] == 1}

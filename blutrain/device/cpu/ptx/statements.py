"""Statements of inline PTX that concern one thread, as LLVM code."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from blutrain.device.cpu.ptx.parse import NotOnTheCpu, Operand, Statement, parse

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
# LLVM's type for one of PTX; halves are the bits that they are.
TYPES = {
    "pred": I1,
    **dict.fromkeys(("b8", "u8", "s8"), I8),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), I16),
    **dict.fromkeys(("b32", "u32", "s32", "tf32", "f16x2", "bf16x2"), I32),
    **dict.fromkeys(("b64", "u64", "s64"), I64),
    "f32": F32,
    "f64": F64,
}
_WIDTHS = {F32: 32, F64: 64}

Meaning = Callable[["Registers", Statement], None]


def width(kind: Any) -> int:
    """Bits of an LLVM type."""
    return _WIDTHS.get(kind) or int(kind.width)


class Registers:
    """The registers of one piece of inline PTX while it is being lowered.

    Attributes:
        builder: writes LLVM code.
        kinds: LLVM types of the registers.
        values: what is in those that were written.
    """

    def __init__(self, builder: Any, window: Callable[[], Any], kinds: dict[str, Any]) -> None:
        self.builder, self._window, self.kinds = builder, window, kinds
        self.values: dict[str, Any] = {}

    @property
    def window(self) -> Any:
        """The address, an i64, from which addresses in shared memory are counted."""
        return self._window()

    def bits(self, value: Any, kind: Any) -> Any:
        """A value as another type: registers hold bits, of which those missing are zero."""
        builder = self.builder
        if value.type == kind:
            return value
        if width(value.type) == width(kind):
            return builder.bitcast(value, kind)
        if value.type in _WIDTHS:
            value = builder.bitcast(value, ir.IntType(width(value.type)))
        change = builder.zext if width(value.type) < width(kind) else builder.trunc
        return self.bits(change(value, ir.IntType(width(kind))), kind)

    def read(self, operand: Operand, kind: Any) -> Any:
        """The value of a register or an immediate as a type; of a vector, its elements joined."""
        if isinstance(operand, tuple):
            size = width(kind) // len(operand)
            whole, builder = kind(0), self.builder
            for k, part in enumerate(operand):
                wide = builder.zext(self.read(part, ir.IntType(size)), kind)
                whole = builder.or_(whole, builder.shl(wide, kind(size * k)))
            return whole
        assert isinstance(operand, str)
        if operand in self.values:
            return self.bits(self.values[operand], kind)
        if operand in self.kinds:  # not written yet
            return ir.Constant(kind, ir.Undefined)
        return self.bits(_immediate(operand, kind), kind)

    def write(self, operand: Operand, value: Any) -> None:
        """Give a register a value; of a vector, each element its part of the bits."""
        if isinstance(operand, tuple):
            size = width(value.type) // len(operand)
            for k, part in enumerate(operand):
                shifted = self.builder.lshr(value, value.type(size * k))
                self.write(part, self.builder.trunc(shifted, ir.IntType(size)))
            return
        assert isinstance(operand, str)
        if operand != "_":
            self.values[operand] = self.bits(value, self.kinds[operand])


def _immediate(text: str, kind: Any) -> Any:
    try:
        if text[:2].lower() == "0f":
            bits = struct.unpack(">f", bytes.fromhex(text[2:]))[0]
            return ir.Constant(F32, bits)
        if kind in _WIDTHS:
            return ir.Constant(kind, float(text))
        return ir.Constant(kind, int(text, 0))
    except ValueError:
        raise NotOnTheCpu(f"the operand `{text}`") from None


_BY_CONSTRAINT = {"f": F32, "d": F64, "h": I16, "r": I32, "l": I64, "b": I1}


def lower(
    builder: Any,
    window: Callable[[], Any],
    meanings: Callable[[Statement], Meaning],
    assembly: Any,
    values: Sequence[Any],
) -> Any:
    """The result of inline PTX on some values.

    Args:
        builder: writes LLVM code.
        window: gives the address from which shared addresses are counted.
        meanings: gives what an instruction does.
        assembly: llvmlite's InlineAsm.
        values: what stands for the arguments.

    Raises:
        NotOnTheCpu: an instruction has no meaning on the CPU.
    """
    declared, statements = parse(assembly.asm)
    constraints = [c.strip() for c in assembly.constraint.split(",")]
    places = [c for c in constraints if c and not c.startswith("~")]
    outputs = [c for c in places if c.startswith("=")]
    kinds = {f"${k}": _BY_CONSTRAINT[c.lstrip("=&")] for k, c in enumerate(outputs)}
    registers = Registers(builder, window, kinds)
    for k, (c, value) in enumerate(zip(places[len(outputs) :], values, strict=True), len(outputs)):
        tied = c.isdigit()  # the argument is what the result's register holds at first
        kinds[f"${k}"] = kinds[f"${c}"] if tied else value.type
        registers.values[f"${k}"] = value
        if tied:
            registers.values[f"${c}"] = registers.bits(value, kinds[f"${c}"])
    kinds.update({name: TYPES[kind] for name, kind in declared.items()})
    for s in statements:
        _guarded(registers, s, meanings(s))
    results = [registers.read(f"${k}", kinds[f"${k}"]) for k in range(len(outputs))]
    if len(results) < 2:
        return results[0] if results else None
    whole = ir.Constant(ir.LiteralStructType([r.type for r in results]), ir.Undefined)
    for k, r in enumerate(results):
        whole = builder.insert_value(whole, r, k)
    return whole


def _guarded(registers: Registers, s: Statement, meaning: Meaning) -> None:
    """Run a statement, where it has a guard only if that holds."""
    if not s.guard:
        meaning(registers, s)
        return
    builder = registers.builder
    test = registers.read(s.guard.lstrip("!"), I1)
    test = builder.not_(test) if s.guard.startswith("!") else test
    before, start = dict(registers.values), builder.block
    with builder.if_then(test):
        meaning(registers, s)
        end = builder.block
    for name, value in registers.values.items():
        old = before.get(name, ir.Constant(value.type, ir.Undefined))
        if old is not value:
            joined = builder.phi(value.type)
            joined.add_incoming(value, end)
            joined.add_incoming(old, start)
            registers.values[name] = joined

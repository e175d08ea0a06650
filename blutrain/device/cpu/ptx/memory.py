"""Loads, stores and copies of inline PTX."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from blutrain.device.cpu.ptx.parse import Address, Operand, Statement
from blutrain.device.cpu.ptx.refused import refusal
from blutrain.device.cpu.ptx.statements import I8, I32, I64, TYPES, Registers, width

_SPACES = ("global", "shared", "shared::cta", "local", "const")


def pointer(registers: Registers, operand: Operand, is_shared: bool, kind: Any) -> Any:
    """The pointer that an address in brackets means.

    An address in shared memory is a signed distance from the window, so 32 bits hold it.
    """
    assert isinstance(operand, Address)
    builder = registers.builder
    base = registers.read(operand.base, I32 if is_shared else I64)
    if is_shared:
        base = builder.add(builder.sext(base, I64), registers.window)
    place = builder.add(base, I64(operand.offset))
    return builder.inttoptr(place, kind.as_pointer())


def _vector(s: Statement, operand: Operand) -> tuple[bool, Any, tuple[str, ...]]:
    """(whether the access is to shared memory, the type of an element, the registers)."""
    kind = TYPES.get(s.parts[-1])
    spaces = [p for p in s.parts if p in _SPACES]
    if kind is None or len(spaces) > 1:
        raise refusal(s.opcode)
    each = operand if isinstance(operand, tuple) else (operand,)
    return bool(spaces) and spaces[0].startswith("shared"), kind, each  # type: ignore[return-value]


def load(registers: Registers, s: Statement) -> None:
    """`ld.space.vec.type d, [a]`."""
    is_shared, kind, into = _vector(s, s.operands[0])
    place = pointer(registers, s.operands[1], is_shared, kind)
    for k, register in enumerate(into):
        at = registers.builder.gep(place, [I32(k)])
        registers.write(register, registers.builder.load(at, align=width(kind) // 8))


def store(registers: Registers, s: Statement) -> None:
    """`st.space.vec.type [a], b`."""
    is_shared, kind, what = _vector(s, s.operands[1])
    place = pointer(registers, s.operands[0], is_shared, kind)
    for k, register in enumerate(what):
        at = registers.builder.gep(place, [I32(k)])
        registers.builder.store(registers.read(register, kind), at, align=width(kind) // 8)


def copy(registers: Registers, s: Statement) -> None:
    """`cp.async.level.shared.global [d], [a], n, n_read`: done at once, so nobody need wait.

    A kernel may not count on that: until it waits, it may see the old bytes or the new.
    """
    builder = registers.builder
    if len(s.operands) not in (3, 4) or not str(s.operands[2]).isdigit():
        raise refusal(s.opcode)
    size = I64(int(str(s.operands[2])))
    target = pointer(registers, s.operands[0], True, I8)
    source = pointer(registers, s.operands[1], False, I8)
    n_read = size
    if len(s.operands) == 4:
        asked = registers.read(s.operands[3], I32)
        n_read = builder.zext(asked, I64)
        cgutils.memset(builder, target, size, 0)
    cgutils.raw_memcpy(builder, target, source, n_read, 1)


def to_shared(registers: Registers, s: Statement) -> None:
    """`cvta.to.shared.u64 d, a`: a pointer as a distance from the window."""
    if s.opcode != "cvta.to.shared.u64":
        raise refusal(s.opcode)
    address = registers.read(s.operands[1], I64)
    registers.write(s.operands[0], registers.builder.sub(address, registers.window))


def window_of(entry: Any) -> Any:
    """A place on the stack of a function with this first block.

    Shared arrays are on the same stack, less than 2 GiB from it. The low bits of its address are
    zero, so kernels that compute with the bits of an address find those of the pointer.
    """
    memory = entry.alloca(ir.ArrayType(I8, 1024))
    memory.align = 1024
    return entry.ptrtoint(memory, I64)

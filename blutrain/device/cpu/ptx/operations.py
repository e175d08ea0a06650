"""Arithmetic, comparisons and conversions of inline PTX."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from blutrain.device import half
from blutrain.device.cpu import formulas
from blutrain.device.cpu.ptx.parse import Statement
from blutrain.device.cpu.ptx.refused import refusal
from blutrain.device.cpu.ptx.statements import (  # fmt: skip
    F32,
    F64,
    I1,
    I16,
    I32,
    I64,
    TYPES,
    Registers,
    width,
)
from blutrain.device.cpu.reals import Real

_FLOATS = ("f32", "f64")


def _is_signed(kind: str) -> bool:
    return kind.startswith("s")


def _binary(builder: Any, s: Statement, kind: str, x: Any, y: Any) -> Any:
    """x and y combined as the first part of the opcode says; None where it has no such meaning."""
    name, real = s.parts[0], kind in _FLOATS
    if name in ("add", "sub", "mul"):
        if name == "mul" and not real and "lo" not in s.parts:
            return None
        return getattr(builder, ("f" if real else "") + name)(x, y)
    if name == "div":
        if real:
            return builder.fdiv(x, y)
        return builder.sdiv(x, y) if _is_signed(kind) else builder.udiv(x, y)
    if name == "rem" and not real:
        return builder.srem(x, y) if _is_signed(kind) else builder.urem(x, y)
    if name in ("and", "or", "xor") and not real:
        return getattr(builder, name + "_" * (name != "xor"))(x, y)
    if name in ("min", "max"):
        order = "<" if name == "min" else ">"
        if real:  # of a number and NaN the number
            better = builder.fcmp_ordered(order, x, y)
            keep = builder.or_(better, builder.fcmp_unordered("uno", y, y))
        elif _is_signed(kind):
            keep = builder.icmp_signed(order, x, y)
        else:
            keep = builder.icmp_unsigned(order, x, y)
        return builder.select(keep, x, y)
    return None


def binary(registers: Registers, s: Statement) -> None:
    """`op.type d, a, b`."""
    kind = s.parts[-1]
    if kind not in TYPES or len(s.operands) != 3:
        raise refusal(s.opcode)
    x, y = (registers.read(o, TYPES[kind]) for o in s.operands[1:])
    result = _binary(registers.builder, s, kind, x, y)
    if result is None:
        raise refusal(s.opcode)
    registers.write(s.operands[0], result)


def shift(registers: Registers, s: Statement) -> None:
    """`shl.type d, a, b`, `shr...`: by more than the width leaves nothing, or the sign."""
    builder, kind = registers.builder, TYPES[s.parts[-1]]
    x = registers.read(s.operands[1], kind)
    by = registers.bits(registers.read(s.operands[2], I32), kind)
    far = builder.icmp_unsigned(">=", by, kind(width(kind)))
    if s.parts[0] == "shl":
        result = builder.select(far, kind(0), builder.shl(x, by))
    elif _is_signed(s.parts[-1]):
        result = builder.ashr(x, builder.select(far, kind(width(kind) - 1), by))
    else:
        result = builder.select(far, kind(0), builder.lshr(x, by))
    registers.write(s.operands[0], result)


def multiply_add(registers: Registers, s: Statement) -> None:
    """`mad.lo.type d, a, b, c`; `fma.rn.type d, a, b, c`, rounded once."""
    kind = TYPES[s.parts[-1]]
    x, y, z = (registers.read(o, kind) for o in s.operands[1:])
    builder = registers.builder
    if s.parts[-1] in _FLOATS:
        result = Real(builder, x).fma(Real(builder, y), Real(builder, z))
        registers.write(s.operands[0], result.value)
    elif "lo" in s.parts:
        registers.write(s.operands[0], builder.add(builder.mul(x, y), z))
    else:
        raise refusal(s.opcode)


def unary(registers: Registers, s: Statement) -> None:
    """`mov`, `neg`, `not` and `abs`; a move may join registers or take one apart."""
    name, kind = s.parts[0], TYPES.get(s.parts[-1])
    if kind is None or str(s.operands[1]).startswith("%"):
        raise refusal(s.opcode)
    builder, x = registers.builder, registers.read(s.operands[1], kind)
    if name == "not":
        x = builder.not_(x)
    elif name == "neg":
        x = builder.fneg(x) if kind in (F32, F64) else builder.neg(x)
    elif name == "abs" and kind in (F32, F64):
        x = Real(builder, x).magnitude().value
    elif name == "abs":
        x = builder.select(builder.icmp_signed("<", x, kind(0)), builder.neg(x), x)
    registers.write(s.operands[0], x)


_ORDERS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip


def compare(registers: Registers, s: Statement) -> None:
    """`setp.order.type p, a, b`."""
    _, order, *_, kind = s.parts
    x, y = (registers.read(o, TYPES[kind]) for o in s.operands[1:])
    builder = registers.builder
    unordered = order.endswith("u") and kind in _FLOATS
    sign = _ORDERS.get(order.removesuffix("u") if unordered else order)
    if sign is None or len(s.operands) != 3:
        raise refusal(s.opcode)
    if kind in _FLOATS:
        test = builder.fcmp_unordered if unordered else builder.fcmp_ordered
    else:
        test = builder.icmp_signed if _is_signed(kind) else builder.icmp_unsigned
    registers.write(s.operands[0], test(sign, x, y))


def choose(registers: Registers, s: Statement) -> None:
    """`selp.type d, a, b, p`."""
    x, y = (registers.read(o, TYPES[s.parts[-1]]) for o in s.operands[1:3])
    test = registers.read(s.operands[3], I1)
    registers.write(s.operands[0], registers.builder.select(test, x, y))


def permute(registers: Registers, s: Statement) -> None:
    """`prmt.b32 d, a, b, selector`: four of the eight bytes of (b, a)."""
    if s.opcode != "prmt.b32":
        raise refusal(s.opcode)
    builder = registers.builder
    a, b, selector = (registers.read(o, I32) for o in s.operands[1:])
    both = builder.or_(builder.zext(a, I64), builder.shl(builder.zext(b, I64), I64(32)))
    result = I32(0)
    for k in range(4):
        digit = builder.lshr(selector, I32(4 * k))
        place = builder.shl(builder.and_(digit, I32(7)), I32(3))
        byte = builder.trunc(builder.lshr(both, builder.zext(place, I64)), ir.IntType(8))
        sign = builder.ashr(byte, ir.IntType(8)(7))
        is_sign = builder.trunc(builder.lshr(digit, I32(3)), I1)
        byte = builder.zext(builder.select(is_sign, sign, byte), I32)
        result = builder.or_(result, builder.shl(byte, I32(8 * k)))
    registers.write(s.operands[0], result)


def approximate(registers: Registers, s: Statement) -> None:
    """`ex2`, `lg2`, `rcp`, `rsqrt`, `sqrt` and `tanh` of float32: at least as exact as a GPU's."""
    if s.parts[-1] != "f32":
        raise refusal(s.opcode)
    x = Real(registers.builder, registers.read(s.operands[1], F32))
    one = Real(registers.builder, x.of(1.0))
    meanings = {
        "ex2": lambda: formulas.exp2(x), "lg2": lambda: formulas.log2(x), "rcp": lambda: one / x,
        "rsqrt": lambda: one / x.call("sqrt"), "sqrt": lambda: x.call("sqrt"),
        "tanh": lambda: formulas.tanh(x),
    }  # fmt: skip
    registers.write(s.operands[0], meanings[s.parts[0]]().value)


def round_tf32(builder: Any, x: Any) -> Any:
    """float32 to TF32's 11 bits, to nearest, ties away from zero; NaN and infinity stay."""
    bits = builder.bitcast(x, I32)
    rounded = builder.and_(builder.add(bits, I32(0x1000)), I32(0xFFFFE000 - (1 << 32)))
    exponent = builder.and_(bits, I32(0x7F800000))
    is_finite = builder.icmp_unsigned("!=", exponent, I32(0x7F800000))
    return builder.select(is_finite, rounded, bits)


def convert(registers: Registers, s: Statement) -> None:
    """`cvt.rounding.to.from d, a`; for a pair of halves, `cvt.rn.f16x2.f32 d, upper, lower`."""
    builder, (to, source) = registers.builder, s.parts[-2:]
    narrow = {"bf16": half.bfloat16_of_float32, "f16": half.float16_of_float32}
    widen = {"bf16": half.float32_of_bfloat16, "f16": half.float32_of_float16}
    if s.parts[1:] == ["rna", "tf32", "f32"]:
        registers.write(s.operands[0], round_tf32(builder, registers.read(s.operands[1], F32)))
    elif s.parts[1:-2] == ["rn"] and source == "f32" and to.removesuffix("x2") in narrow:
        # The first operand is the upper half.
        parts = [narrow[to.removesuffix("x2")](builder, registers.read(o, F32))
                 for o in s.operands[:0:-1]]  # fmt: skip
        whole = parts[0]
        if to.endswith("x2"):
            upper = builder.shl(builder.zext(parts[1], I32), I32(16))
            whole = builder.or_(builder.zext(parts[0], I32), upper)
        registers.write(s.operands[0], whole)
    elif to == "f32" and source in widen:
        registers.write(s.operands[0], widen[source](builder, registers.read(s.operands[1], I16)))
    else:
        registers.write(s.operands[0], _number(registers, s, to, source))


def _number(registers: Registers, s: Statement, to: str, source: str) -> Any:
    """A conversion between integers, float32 and float64."""
    builder, wanted, given = registers.builder, TYPES.get(to), TYPES.get(source)
    halves = {"bf16", "f16", "bf16x2", "f16x2", "tf32"}
    if wanted is None or given is None or {to, source} & halves:
        raise refusal(s.opcode)
    x = registers.read(s.operands[1], given)
    if source in _FLOATS and to in _FLOATS:
        if wanted == given:
            return x
        return builder.fpext(x, wanted) if wanted == F64 else builder.fptrunc(x, wanted)
    if source in _FLOATS:
        if "rzi" not in s.parts:
            raise refusal(s.opcode)
        return (builder.fptosi if _is_signed(to) else builder.fptoui)(x, wanted)
    if to in _FLOATS:
        return (builder.sitofp if _is_signed(source) else builder.uitofp)(x, wanted)
    if width(wanted) <= width(given):
        return registers.bits(x, wanted)
    return (builder.sext if _is_signed(source) else builder.zext)(x, wanted)

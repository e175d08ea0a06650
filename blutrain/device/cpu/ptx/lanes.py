"""Instructions of a whole warp: what each lane gets from what all lanes give.

The operands of all threads are in arrays with an element a thread, one an operand. Products of
halves and of TF32 are exact in float32; their sums are made in float64 and rounded once, where the
tensor cores keep a few bits more than float32 and truncate: results differ in the last bits.

Source: PTX ISA 9.0, sections 9.7.14.5.8 (mma.m16n8k16), 9.7.14.5.15 (ldmatrix), 9.7.13.14 (redux).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.device import half
from blutrain.device.cpu.arrays import DATA
from blutrain.device.cpu.ptx.parse import Statement, parse
from blutrain.device.cpu.ptx.statements import F32, F64, I16, I32, I64

_MMA = re.compile(
    r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col\.f32\.(tf32\.tf32|bf16\.bf16|f16\.f16)\.f32"
)
_LDMATRIX = re.compile(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(::cta)?\.b16")
_REDUX = re.compile(r"redux\.sync\.(add|min|max|and|or|xor)\.(s32|u32|b32)")
_LOW_13 = 0xFFFFE000 - (1 << 32)

_made: dict[Any, Any] = {}


@dataclass
class Lane:
    """One lane of a warp and what all lanes gave.

    Attributes:
        arrays: an array an operand.
        kinds: their types.
        wanted: the types of the instruction's operands.
        first: the number of the warp's first thread in the block, an i64.
        lane: an i64.
    """

    context: Any
    builder: Any
    arrays: Sequence[Any]
    kinds: Sequence[types.Array]
    wanted: Sequence[types.Type]
    first: Any
    lane: Any

    def given(self, operand: int, lane: Any) -> Any:
        """What a lane gave as an operand, as the instruction's type."""
        builder, kind = self.builder, self.kinds[operand].dtype
        data = builder.extract_value(self.arrays[operand], DATA)
        loaded = builder.load(builder.gep(data, [builder.add(self.first, lane)]))
        value = self.context.data_model_manager[kind].from_data(builder, loaded)
        return self.context.cast(builder, value, kind, self.wanted[operand])


Results = Callable[[Lane], list[Any]]


def of_warp(function: Any) -> Any:
    """A function of (an array an operand, thread) for an intrinsic of a whole warp; else None."""
    ptx = getattr(function, "ptx", None)
    if ptx is None:
        return None
    if ptx not in _made:
        text, _, result, arguments = ptx
        results = _results(parse(text)[1]) if ".sync" in text else None
        _made[ptx] = _function(function._name, result, arguments, results) if results else None
    return _made[ptx]


def _results(statements: Sequence[Statement]) -> Results | None:
    """What a lane gets from an instruction; None where it is of one thread or has no meaning."""
    if len(statements) != 1:
        return None
    s = statements[0]
    if found := _MMA.fullmatch(s.opcode):
        return _mma(int(found[1]), found[2].split(".")[0])
    if found := _LDMATRIX.fullmatch(s.opcode):
        return _ldmatrix(int(found[1]), bool(found[2]))
    if found := _REDUX.fullmatch(s.opcode):
        return _redux(found[1], found[2])
    return None


def _function(name: str, result: types.Type, wanted: Sequence[types.Type], results: Results) -> Any:
    def typed(typing_context: Any, *given: Any) -> Any:
        def codegen(context: Any, builder: Any, own: Any, values: Any) -> Any:
            thread = values[-1]
            lane = builder.and_(thread, I64(31))
            first = builder.sub(thread, lane)

            arrays, kinds = values[:-1], own.args[:-1]
            at = Lane(context, builder, arrays, kinds, wanted, first, lane)
            made = results(at)
            if isinstance(result, types.UniTuple):
                return cgutils.pack_array(builder, made)
            return made[0]

        return result(*given[:-1], types.int64), codegen

    typed.__name__ = typed.__qualname__ = f"_lanes_{name}"
    return intrinsic(typed)


def _mma(k: int, kind: str) -> Results | None:
    """D = A B + C of a 16 × k matrix in registers of all lanes and a k × 8 one.

    With g = lane / 4 and t = lane % 4, and p elements to a register (TF32: 1, halves: 2), register
    2 j + h of A holds row g + 8 h and register j of B column g, at k = 4 p j + p t and the next;
    sums are rows g and g + 8 at columns 2 t and 2 t + 1.
    """
    pack = 1 if kind == "tf32" else 2
    if k not in (4 * pack, 8 * pack):
        return None
    steps = k // (4 * pack)

    def elements(builder: Any, register: Any) -> list[Any]:
        """The elements of a register, as float64."""
        if kind == "tf32":
            reals = [builder.bitcast(builder.and_(register, I32(_LOW_13)), F32)]
        else:
            widen = half.float32_of_float16 if kind == "f16" else half.float32_of_bfloat16
            upper = builder.lshr(register, I32(16))
            reals = [widen(builder, builder.trunc(bits, I16)) for bits in (register, upper)]
        return [builder.fpext(x, F64) for x in reals]

    def results(at: Lane) -> list[Any]:
        builder = at.builder
        g, t = builder.lshr(at.lane, I64(2)), builder.and_(at.lane, I64(3))
        sums = [builder.fpext(at.given(3 * steps + e, at.lane), F64) for e in range(4)]
        for j in range(steps):
            for q in range(4):  # the lane of four that holds these elements
                row = builder.add(builder.shl(g, I64(2)), I64(q))
                a = [elements(builder, at.given(2 * j + h, row)) for h in range(2)]
                for i in range(2):
                    col = builder.add(builder.shl(t, I64(3)), I64(4 * i + q))
                    b = elements(builder, at.given(2 * steps + j, col))
                    for h in range(2):
                        for x, y in zip(a[h], b, strict=True):
                            product = builder.fmul(x, y)
                            sums[2 * h + i] = builder.fadd(sums[2 * h + i], product)
        return [builder.fptrunc(x, F32) for x in sums]

    return results


def _ldmatrix(n: int, turned: bool) -> Results:
    """Matrices of 8 rows of 16 bytes, whose addresses the lanes give; see `ptx/mma.py`."""

    def results(at: Lane) -> list[Any]:
        builder = at.builder
        g, t = builder.lshr(at.lane, I64(2)), builder.and_(at.lane, I64(3))

        def load(matrix: int, row: Any, byte: Any, kind: Any) -> Any:
            address = at.given(0, builder.add(row, I64(8 * matrix)))
            place = builder.add(builder.add(builder.sext(address, I64), builder.window()), byte)
            return builder.load(builder.inttoptr(place, kind.as_pointer()), align=1)

        out = []
        for matrix in range(n):
            if not turned:
                out.append(load(matrix, g, builder.shl(t, I64(2)), I32))
                continue
            pair = []
            for k in range(2):
                row = builder.add(builder.shl(t, I64(1)), I64(k))
                pair.append(builder.zext(load(matrix, row, builder.shl(g, I64(1)), I16), I32))
            out.append(builder.or_(pair[0], builder.shl(pair[1], I32(16))))
        return out

    return results


def _redux(name: str, kind: str) -> Results:
    """A sum, an extreme or a combination of bits over all lanes."""

    def combine(builder: Any, x: Any, y: Any) -> Any:
        if name in ("min", "max"):
            test = builder.icmp_signed if kind == "s32" else builder.icmp_unsigned
            return builder.select(test("<" if name == "min" else ">", x, y), x, y)
        return getattr(builder, {"add": "add", "and": "and_", "or": "or_", "xor": "xor"}[name])(
            x, y
        )

    def results(at: Lane) -> list[Any]:
        total = at.given(0, I64(0))
        for lane in range(1, 32):
            total = combine(at.builder, total, at.given(0, I64(lane)))
        return [total]

    return results

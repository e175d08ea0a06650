"""float32 as two TF32 numbers, on the way from shared memory to the tensor cores. sm_90.

    high = x with the last 13 bits dropped or rounded away      low = x - high, exact in float32

high + low has 21 or 22 bits of x, so three products (high low' + low high' + high high') give a
product of float32 operands to about its own precision. An infinite x gives NaN: its low part is
inf - inf.

Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing
the FP32 theoretical peak performance", 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from blutrain.cuda_kernels.ptx.instruction import instruction

_f32, _i32 = ir.FloatType(), ir.IntType(32)

ROW = 128  # bytes of a swizzled row


@cache
def load_fragments(along_k: bool, half: int, split: bool) -> Any:
    """A function that loads 16 of K of a warpgroup's 64 rows of A, as `wgmma_registers` takes them.

    load(place, turn) → 8 int32, or 16 with `split`: high parts, then low ones. A lies in shared
    memory, swizzled by 128 bytes. With g = lane / 4, q = lane % 4 of warp w: where k runs along its
    rows (32 of k each), `place` is the address of row 16 w + g, plus 4 q, and `turn` = g. Where m
    does (boxes of 32 m by 32 k), `place` is the address of the box of row 16 w, plus 128 q +
    4 (g % 4), and `turn` = (4 (w % 2) + g / 4) ^ q.

    Args:
        along_k: whether k runs along the rows of shared memory.
        half: 0 for the first 16 of the block's 32 k, 1 for the others.
        split: round to TF32 and give what is left as well; else the bits as they are.
    """
    count = 16 if split else 8
    result = types.UniTuple(types.int32, count)

    @intrinsic
    def load(typing_context, place, turn):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            place, turn = values
            high, low = [], []
            for step in (2 * half, 2 * half + 1):
                for c in range(2):
                    for h in range(2):
                        if along_k:
                            piece = builder.xor(turn, _i32(2 * step + c))
                            fixed = 1024 * h
                        else:
                            piece = builder.xor(turn, _i32((2 * h) ^ (4 * c)))
                            fixed = 1024 * step + ROW * 4 * c
                        at = builder.add(place, builder.shl(piece, _i32(4)))
                        x = _asm(builder, _f32, f"ld.shared.f32 $0, [$1 + {fixed}];", "=f,r", [at])
                        if not split:
                            high.append(builder.bitcast(x, _i32))
                            continue
                        rounded = _asm(builder, _i32, "cvt.rna.tf32.f32 $0, $1;", "=r,f", [x])
                        high.append(rounded)
                        left = builder.fsub(x, builder.bitcast(rounded, _f32))
                        low.append(builder.bitcast(left, _i32))
            return cgutils.pack_array(builder, high + low)

        return result(types.int32, types.int32), codegen

    return load


def _asm(builder: Any, result: Any, text: str, constraints: str, values: list[Any]) -> Any:
    kind = ir.FunctionType(result, [v.type for v in values])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), values)


_X = [f"x{i}" for i in range(16)]
_Y = ["y0", "y1", "y2", "y3"]
_REGISTERS = f"{{ .reg .b32 {', '.join([*_X, *_Y, 'h', 'l', 'at'])}; "


def _row(names: Sequence[str]) -> str:
    return "{" + ", ".join(names) + "}"


def _lows(values: Sequence[str]) -> str:
    """PTX for the low parts y0 to y3 of four values; the tensor cores drop the same 13 bits."""
    return "".join(
        f"and.b32 h, {x}, 0xffffe000; sub.f32 l, {x}, h; cvt.rna.tf32.f32 {y}, l; "
        for x, y in zip(values, _Y, strict=True)
    )


def _split_low_text(n: int, pitch: int) -> str:
    """All loads first: a thread waits for shared memory once, not n times."""
    text = _REGISTERS
    quads = [_X[4 * i : 4 * i + 4] for i in range(n)]
    for i, quad in enumerate(quads):
        text += f"ld.shared.v4.b32 {_row(quad)}, [$0 + {pitch * i}]; "
    for i, quad in enumerate(quads):
        text += f"{_lows(quad)}st.shared.v4.b32 [$1 + {pitch * i}], {_row(_Y)}; "
    return text + "}"


@cache
def split_low(n: int, pitch: int) -> Any:
    """A function (source, low) that writes the low parts of n times 4 float32 in shared memory.

    What is left at `source` stands for the high parts: the tensor cores drop its last 13 bits.

    Args:
        n: how many 16-byte pieces, up to 4.
        pitch: bytes from one to the next.
    """
    return instruction(
        "split_low", _split_low_text(n, pitch), "r,r,~{memory}", types.void, (types.int32,) * 2
    )

"""Products of a warp on the tensor cores: operands and sums lie in the registers of its lanes.

With g = lane / 4 and t = lane % 4, a lane holds of D = A B + C (A 16 × k, B k × 8):

| operand | m16n8k8, TF32 | m16n8k16, halves: two to a register, the lower column or row first |
|---|---|---|
| A | (g, t), (g+8, t), (g, t+4), (g+8, t+4) | (g, 2t..), (g+8, 2t..), (g, 2t+8..), (g+8, 2t+8..) |
| B | (t, g), (t+4, g) | (2t.., g), (2t+8.., g) |
| C, D | (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1) | the same |

Sums are float32. A TF32 operand is a float32 whose last 13 bits the tensor cores drop. sm_80.

Source: PTX ISA 9.0, sections 9.7.14.5 (mma.sync), 9.7.14.5.15 (ldmatrix), 9.7.9.22 (cvt) and
9.7.3.21 (ex2).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.cuda import types

from blutrain.cuda_kernels.ptx.instruction import instruction

_i32, _f32 = types.int32, types.float32


def _multiply(kind: str, n_a: int, n_b: int) -> Any:
    """(A's registers, B's, the four of C) → the four of D."""

    def row(first: int, count: int) -> str:
        return "{" + ",".join(f"${first + i}" for i in range(count)) + "}"

    a, b, c = 4, 4 + n_a, 4 + n_a + n_b
    text = f"mma.sync.aligned.{kind} {row(0, 4)},{row(a, n_a)},{row(b, n_b)},{row(c, 4)};"
    constraints = ",".join(["=f"] * 4 + ["r"] * (n_a + n_b) + ["f"] * 4)
    arguments = (_i32,) * (n_a + n_b) + (_f32,) * 4
    result = types.UniTuple(_f32, 4)
    return instruction("mma", text, constraints, result, arguments, "D = A B + C.", pure=True)


mma_tf32 = _multiply("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2)
mma_bf16 = _multiply("m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2)
mma_f16 = _multiply("m16n8k16.row.col.f32.f16.f16.f32", 4, 2)


@cache
def ldmatrix(n: int, turned: bool = False) -> Any:
    """A function (address) that loads `n` (1, 2 or 4) matrices of 8 rows of 16 bytes.

    Lane 8 i + r gives the address of row r of matrix i, a multiple of 16. Lane 4 g + t receives
    of each matrix the t-th four bytes of row g; or with `turned` the halves of rows 2t and 2t + 1
    in column g. A tuple of int32, for n = 1 an int32.
    """
    turn = ".trans" if turned else ""
    out = ",".join(f"${i}" for i in range(n))
    text = f"ldmatrix.sync.aligned.m8n8.x{n}{turn}.shared.b16 {{{out}}}, [${n}];"
    result = _i32 if n == 1 else types.UniTuple(_i32, n)
    return instruction("ldmatrix", text, "=r," * n + "r,~{memory}", result, (_i32,))


round_tf32 = instruction(
    "round_tf32",
    "cvt.rna.tf32.f32 $0, $1;",
    "=r,f",
    _i32,
    (_f32,),
    doc="(x): x rounded to TF32, to nearest, ties away from zero.",
    pure=True,
)
pack_bf16 = instruction(
    "pack_bf16",
    "cvt.rn.bf16x2.f32 $0, $2, $1;",
    "=r,f,f",
    _i32,
    (_f32, _f32),
    doc="(low, high): both rounded to bfloat16 in one register.",
    pure=True,
)
pack_f16 = instruction(
    "pack_f16",
    "cvt.rn.f16x2.f32 $0, $2, $1;",
    "=r,f,f",
    _i32,
    (_f32, _f32),
    doc="(low, high): both rounded to float16 in one register.",
    pure=True,
)
permute_bytes = instruction(
    "permute_bytes",
    "prmt.b32 $0, $1, $2, $3;",
    "=r,r,r,r",
    _i32,
    (_i32, _i32, _i32),
    doc="(a, b, selector): four of the eight bytes of (b, a), one for each digit of the selector.",
    pure=True,
)
exp2_approx = instruction(
    "exp2_approx",
    "ex2.approx.ftz.f32 $0, $1;",
    "=f,f",
    _f32,
    (_f32,),
    doc="(x): 2 to the x, within 2 units in the last place.",
    pure=True,
)

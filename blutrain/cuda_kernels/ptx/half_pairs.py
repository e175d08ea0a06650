"""The two halves of a register as float32; the way back is in `mma.py`.

Source: PTX ISA 9.0, section 9.7.9.22 (cvt).
"""

from __future__ import annotations

from numba.cuda import types

from blutrain.cuda_kernels.ptx.instruction import instruction

_i32, _f32 = types.int32, types.float32

low_of_f16 = instruction(
    "low_of_f16",
    "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }",
    "=f,r",
    _f32,
    (_i32,),
    doc="(pair): its lower float16 as float32.",
    pure=True,
)
high_of_f16 = instruction(
    "high_of_f16",
    "{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, h; }",
    "=f,r",
    _f32,
    (_i32,),
    doc="(pair): its upper float16 as float32.",
    pure=True,
)
low_of_bf16 = instruction(
    "low_of_bf16", "shl.b32 $0, $1, 16;", "=f,r", _f32, (_i32,),
    doc="(pair): its lower bfloat16 as float32.", pure=True,
)  # fmt: skip
high_of_bf16 = instruction(
    "high_of_bf16", "and.b32 $0, $1, 0xffff0000;", "=f,r", _f32, (_i32,),
    doc="(pair): its upper bfloat16 as float32.", pure=True,
)  # fmt: skip

"""Single values in registers: bits, larger ones, what a warp's lanes hold, and hints to compilers.

Source: PTX ISA 9.0, sections 9.7.3 (floating point), 9.7.1 (integers) and 9.7.13.14 (redux).
"""

from __future__ import annotations

from numba.cuda import types

from blutrain.cuda_kernels.ptx.instruction import instruction

_i32, _f32 = types.int32, types.float32

larger = instruction(
    "larger", "max.f32 $0, $1, $2;", "=f,f,f", _f32, (_f32, _f32),
    doc="(x, y): the larger one; of a number and NaN the number.", pure=True,
)  # fmt: skip
larger_magnitude = instruction(
    "larger_magnitude",
    "{ .reg .f32 a; abs.f32 a, $2; max.f32 $0, $1, a; }",
    "=f,f,f",
    _f32,
    (_f32, _f32),
    doc="(m, x): the larger of m and |x|; of a number and NaN the number.",
    pure=True,
)
bits_of = instruction(
    "bits_of", "mov.b32 $0, $1;", "=r,f", _i32, (_f32,), doc="(x): its 32 bits.", pure=True
)
float_of = instruction(
    "float_of", "mov.b32 $0, $1;", "=f,r", _f32, (_i32,), doc="(bits): as a float32.", pure=True
)
same_again = instruction(
    "same_again", "mov.b32 $0, $1;", "=r,r", _i32, (_i32,),
    doc="(x): x, of which the compiler does not know that it has not changed. What a loop computes "
    "from it is then computed in the loop, and not kept in registers around it.",
)  # fmt: skip
quotient = instruction(
    "quotient", "div.u32 $0, $1, $2;", "=r,r,r", _i32, (_i32, _i32),
    doc="(a, b): a // b of 32-bit numbers that are not negative; Numba's own is of 64 bits.",
    pure=True,
)  # fmt: skip
largest_of_warp = instruction(
    "largest_of_warp",
    "redux.sync.max.s32 $0, $1, 0xffffffff;",
    "=r,r",
    _i32,
    (_i32,),
    doc="(x): the largest int32 of the warp's 32 lanes.",
)

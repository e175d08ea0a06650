"""float32 to pairs of halves and back, largest magnitudes, and the words they travel in.

Source: PTX ISA 9.0, sections 9.7.9.22 (cvt), 9.7.3.17 (max), 9.7.13.14 (redux) and 9.7.9.8 (ld).
"""

from __future__ import annotations

from numba.cuda import types

from blutrain.cuda_kernels.ptx.instruction import instruction

_i32, _i64, _f32 = types.int32, types.int64, types.float32

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
    doc="(x): x, of which the compiler does not know that it has not changed. What is computed from "
    "it in a loop is then computed there, and not kept in a register around the loop.",
)  # fmt: skip
quotient = instruction(
    "quotient", "div.u32 $0, $1, $2;", "=r,r,r", _i32, (_i32, _i32),
    doc="(a, b): a // b of 32-bit numbers that are not negative; Numba's own is of 64 bits.", pure=True,
)  # fmt: skip
largest_of_warp = instruction(
    "largest_of_warp",
    "redux.sync.max.s32 $0, $1, 0xffffffff;",
    "=r,r",
    _i32,
    (_i32,),
    doc="(x): the largest int32 of the warp's 32 lanes.",
)
load_quad_if = instruction(
    "load_quad_if",
    "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; "
    "mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; "
    "@p ld.global.v4.f32 {$0, $1, $2, $3}, [$4]; }",
    "=&f,=&f,=&f,=&f,l,r",
    types.UniTuple(_f32, 4),
    (_i64, _i32),
    doc="(address, valid): four float32, or zeros; the address is a multiple of 16.",
)
load_words_if = instruction(
    "load_words_if",
    "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; "
    "mov.b32 $3, 0; @p ld.global.v4.b32 {$0, $1, $2, $3}, [$4]; }",
    "=&r,=&r,=&r,=&r,l,r",
    types.UniTuple(_i32, 4),
    (_i64, _i32),
    doc="(address, valid): four words, or zeros; the address is a multiple of 16.",
)
load_pair_if = instruction(
    "load_pair_if",
    "{ .reg .pred p; setp.ne.b32 p, $3, 0; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; "
    "@p ld.global.v2.f32 {$0, $1}, [$2]; }",
    "=&f,=&f,l,r",
    types.UniTuple(_f32, 2),
    (_i64, _i32),
    doc="(address, valid): two float32, or zeros; the address is a multiple of 8.",
)
load_word_if = instruction(
    "load_word_if",
    "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }",
    "=&r,l,r",
    _i32,
    (_i64, _i32),
    doc="(address, valid): a word, or zero; the address is a multiple of 4.",
)
store_word = instruction(
    "store_word", "st.global.b32 [$0], $1;", "l,r,~{memory}", types.void, (_i64, _i32),
    doc="(address, word): write a word; the address is a multiple of 4.",
)  # fmt: skip
store_shared_words = instruction(
    "store_shared_words",
    "st.shared.v4.b32 [$0], {$1, $2, $3, $4};",
    "r,r,r,r,r,~{memory}",
    types.void,
    (_i32,) * 5,
    doc="(address, four words): write them; the address is a multiple of 16.",
)
load_shared_words = instruction(
    "load_shared_words",
    "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];",
    "=r,=r,=r,=r,r,~{memory}",
    types.UniTuple(_i32, 4),
    (_i32,),
    doc="(address): four words of shared memory; the address is a multiple of 16.",
)
store_shared_word = instruction(
    "store_shared_word", "st.shared.b32 [$0], $1;", "r,r,~{memory}", types.void, (_i32, _i32),
    doc="(address, word): write a word of shared memory.",
)  # fmt: skip
load_shared_word = instruction(
    "load_shared_word", "ld.shared.b32 $0, [$1];", "=r,r,~{memory}", _i32, (_i32,),
    doc="(address): a word of shared memory.",
)  # fmt: skip
load_shared_pair = instruction(
    "load_shared_pair",
    "ld.shared.v2.f32 {$0, $1}, [$2];",
    "=f,=f,r,~{memory}",
    types.UniTuple(_f32, 2),
    (_i32,),
    doc="(address): two float32 of shared memory; the address is a multiple of 8.",
)

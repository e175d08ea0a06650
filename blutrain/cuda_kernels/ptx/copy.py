"""Copies from global to shared memory that run beside the arithmetic, and wide loads and stores.

`cp.async` starts a copy and goes on; copies are counted in groups, and a thread waits until at most
so many of its newest groups are under way. What others copied is seen after a barrier as well.
Shared addresses are 32 bits (`shared_address`), global ones 64. sm_80.

Source: PTX ISA 9.0, sections 9.7.9.25 (cp.async), 9.7.9.8 (ld) and 9.7.9.11 (st).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.cuda import types

from blutrain.cuda_kernels.ptx.instruction import instruction

_i32, _i64, _f32 = types.int32, types.int64, types.float32


@cache
def cp_async(n_bytes: int) -> Any:
    """A function (shared, source, n_read) that starts a copy of 4, 8 or 16 bytes.

    Both addresses are multiples of `n_bytes`. The first `n_read` bytes are read, the rest become
    zero: 0 for what lies outside a matrix. 16 bytes pass the L1 cache by.
    """
    cached = "cg" if n_bytes == 16 else "ca"
    text = f"cp.async.{cached}.shared.global [$0], [$1], {n_bytes}, $2;"
    return instruction("cp_async", text, "r,l,r,~{memory}", types.void, (_i32, _i64, _i32))


cp_async_commit = instruction(
    "cp_async_commit",
    "cp.async.commit_group;",
    "~{memory}",
    types.void,
    (),
    doc="(): make the copies since the last call one group.",
)


@cache
def cp_async_wait(n: int) -> Any:
    """A function () that waits until at most the `n` newest groups of the thread are under way."""
    return instruction("cp_async_wait", f"cp.async.wait_group {n};", "~{memory}", types.void, ())


load_float = instruction(
    "load_float",
    "ld.global.f32 $0, [$1];",
    "=f,l,~{memory}",
    _f32,
    (_i64,),
    doc="(address): the float32 there.",
)
store_float = instruction(
    "store_float",
    "st.global.f32 [$0], $1;",
    "l,f,~{memory}",
    types.void,
    (_i64, _f32),
    doc="(address, x): write one float32.",
)
store_pair = instruction(
    "store_pair",
    "st.global.v2.f32 [$0], {$1, $2};",
    "l,f,f,~{memory}",
    types.void,
    (_i64, _f32, _f32),
    doc="(address, x, y): write two float32; the address is a multiple of 8.",
)
load_shared_quad = instruction(
    "load_shared_quad",
    "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];",
    "=f,=f,=f,=f,r,~{memory}",
    types.UniTuple(_f32, 4),
    (_i32,),
    doc="(address): four float32 of shared memory; the address is a multiple of 16.",
)
store_shared_quad = instruction(
    "store_shared_quad",
    "st.shared.v4.f32 [$0], {$1, $2, $3, $4};",
    "r,f,f,f,f,~{memory}",
    types.void,
    (_i32, _f32, _f32, _f32, _f32),
    doc="(address, x, y, z, w): write four float32; the address is a multiple of 16.",
)
load_word_if = instruction(
    "load_word_if",
    "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }",
    "=&r,l,r",
    _i32,
    (_i64, _i32),
    doc="(address, valid): a word, or zero; the address is a multiple of 4.",
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

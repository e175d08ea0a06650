"""Matrix multiply by a warpgroup: four warps, operands in shared memory, sums in registers. sm_90a.

    D (64, N) += A (64, k) B (k, N)        k = 32 bytes of elements an instruction

A warpgroup's thread holds N / 2 sums: with g = lane / 4 and q = lane % 4 of its warp w, sum
4 j + 2 h + i is D[16 w + g + 8 h, 8 j + 2 q + i].

Operands lie in shared memory in rows of 128 bytes, swizzled as the copy engine writes them: 16-byte
piece p of row r is at place p ^ (r % 8). Either the rows run along K ("K-major": 8-row groups 1,024
bytes apart), or, for 16-bit elements alone, along M or N ("MN-major": a row is 64 elements of one
k; groups of 8 k are 1,024 bytes apart, the next 64 elements 64 k rows further on). A descriptor
names such an operand; moving on along K is an addition to it.

The multiplication runs by itself: its registers must not be touched, nor its shared memory
overwritten, before `wgmma_wait`.

Source: PTX ISA 9.0, section 9.7.15.5.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from blutrain.cuda_kernels.ptx.instruction import instruction

_f32, _i32, _i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)

# The fixed part of a descriptor: swizzle of 128 bytes, 1,024 bytes between groups of 8 rows.
# The leading offset counts where an MN-major operand is wider than 64 elements: 8,192 bytes.
K_MAJOR = (1 << 62) | ((1024 >> 4) << 32) | (1 << 16)
MN_MAJOR = (1 << 62) | ((1024 >> 4) << 32) | ((8192 >> 4) << 16)
# What takes a descriptor 32 bytes of K further: 32 bytes along a row, or 16 rows of 128 bytes.
K_MAJOR_STEP = 32 >> 4
MN_MAJOR_STEP = 16 * 128 >> 4

_SHAPES = {"tf32": (8, "tf32"), "bf16": (16, "bf16"), "f16": (16, "f16")}


@cache
def wgmma_wait(n: int) -> Any:
    """A function that waits until all but the `n` latest groups of multiplications are done."""
    text = f"wgmma.wait_group.sync.aligned {n};"
    return instruction(f"wgmma_wait_{n}", text, "~{memory}", types.void, ())


@cache
def wgmma_block(n: int, kind: str, a_major: str = "k", b_major: str = "k") -> Any:
    """A function that multiplies 128 bytes of K: four instructions, one group.

    multiply(sums, a, b, keep) → sums: `a` and `b` are descriptors (int64), `keep` is int32: 0 to
    start from zero, else to add to `sums`.

    Args:
        n: columns, a multiple of 8 up to 256.
        kind: "tf32", "bf16" or "f16".
        a_major: "k", or "mn" for 16-bit elements.
        b_major: likewise.
    """
    n_sums = n // 2
    k, name = _SHAPES[kind]
    transposed = ""
    if kind != "tf32":
        transposed = f", {int(a_major == 'mn')}, {int(b_major == 'mn')}"
    sums = ", ".join(f"${i}" for i in range(n_sums))
    a, b, keep = (f"${2 * n_sums + i}" for i in range(3))
    step_a = K_MAJOR_STEP if a_major == "k" else MN_MAJOR_STEP
    step_b = K_MAJOR_STEP if b_major == "k" else MN_MAJOR_STEP
    text = (
        "{ .reg .pred keep, always; .reg .b64 a, b; "
        f"setp.ne.b32 keep, {keep}, 0; setp.eq.b32 always, 0, 0; mov.b64 a, {a}; mov.b64 b, {b}; "
        "wgmma.fence.sync.aligned; "
    )
    for step in range(4):
        scale = "always" if step else "keep"
        if step:
            text += f"add.s64 a, a, {step_a}; add.s64 b, b, {step_b}; "
        text += f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{name}.{name} "
        text += f"{{{sums}}}, a, b, {scale}, 1, 1{transposed}; "
    text += "wgmma.commit_group.sync.aligned; }"
    constraints = ",".join(["=f"] * n_sums + [str(i) for i in range(n_sums)] + ["l", "l", "r"])
    constraints += ",~{memory}"
    held = types.UniTuple(types.float32, n_sums)

    @intrinsic
    def multiply(typing_context, sums, a, b, keep):  # Numba wants these very names
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            before = [builder.extract_value(values[0], i) for i in range(n_sums)]
            result = ir.LiteralStructType([_f32] * n_sums)
            kind = ir.FunctionType(result, [_f32] * n_sums + [_i64, _i64, _i32])
            statement = ir.InlineAsm(kind, text, constraints, side_effect=True)
            after = builder.call(statement, [*before, *values[1:]])
            return cgutils.pack_array(
                builder, [builder.extract_value(after, i) for i in range(n_sums)]
            )

        return held(held, types.int64, types.int64, types.int32), codegen

    return multiply


@cache
def zeros(n_sums: int) -> Any:
    """A function that returns `n_sums` float32 zeros, to start from."""
    held = types.UniTuple(types.float32, n_sums)

    @intrinsic
    def make(typing_context):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return cgutils.pack_array(builder, [ir.Constant(_f32, 0.0)] * n_sums)

        return held(), codegen

    return make


@cache
def add_sums(n_sums: int) -> Any:
    """A function (sums, sums) → their elementwise sum."""
    held = types.UniTuple(types.float32, n_sums)

    @intrinsic
    def add(typing_context, x, y):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, y = ([builder.extract_value(v, i) for i in range(n_sums)] for v in values)
            return cgutils.pack_array(builder, [builder.fadd(p, q) for p, q in zip(x, y)])

        return held(held, held), codegen

    return add


@cache
def wgmma_registers(n: int, n_products: int) -> Any:
    """A function that multiplies 16 of K with A in registers, TF32: one group.

    multiply(sums, a, b, b_low, keep) → sums. With one product, `a` holds the TF32 fragments of two
    steps of 8 (8 int32) and sums += a b. With three, it holds those of the high parts and then of
    the low ones (16 int32), and sums += high b_low + low b + high b: the small ones first, for the
    tensor cores truncate to the length of the sum so far. `b` and `b_low` are descriptors of
    K-major operands, `keep` as in `wgmma_block`.

    A step's fragment, with g = lane / 4 and q = lane % 4 of warp w: A[16 w + g, q], A[16 w + g + 8,
    q], A[16 w + g, q + 4], A[16 w + g + 8, q + 4].

    Args:
        n: columns, a multiple of 8 up to 256.
        n_products: 1 or 3.
    """
    n_sums = n // 2
    n_a = 8 if n_products == 1 else 16
    sums = ", ".join(f"${i}" for i in range(n_sums))
    first_a = 2 * n_sums
    b, low, keep = (f"${first_a + n_a + i}" for i in range(3))
    text = (
        "{ .reg .pred keep, always; .reg .b64 b, low, b_next, low_next; "
        f"setp.ne.b32 keep, {keep}, 0; setp.eq.b32 always, 0, 0; "
        f"mov.b64 b, {b}; mov.b64 low, {low}; wgmma.fence.sync.aligned; "
    )
    text += f"add.s64 b_next, b, {K_MAJOR_STEP}; add.s64 low_next, low, {K_MAJOR_STEP}; "
    scale = "keep"
    products = [(0, "b")] if n_products == 1 else [(0, "low"), (8, "b"), (0, "b")]
    for part, matrix in products:
        for step, operand in enumerate((matrix, f"{matrix}_next")):
            a = ", ".join(f"${first_a + part + 4 * step + i}" for i in range(4))
            text += f"wgmma.mma_async.sync.aligned.m64n{n}k8.f32.tf32.tf32 "
            text += f"{{{sums}}}, {{{a}}}, {operand}, {scale}, 1, 1; "
            scale = "always"
    text += "wgmma.commit_group.sync.aligned; }"
    constraints = ",".join(
        ["=f"] * n_sums + [str(i) for i in range(n_sums)] + ["r"] * n_a + ["l", "l", "r"]
    )
    constraints += ",~{memory}"
    held = types.UniTuple(types.float32, n_sums)
    operand = types.UniTuple(types.int32, n_a)

    @intrinsic
    def multiply(typing_context, sums, a, b, b_low, keep):  # Numba wants these very names
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            before = [builder.extract_value(values[0], i) for i in range(n_sums)]
            parts = [builder.extract_value(values[1], i) for i in range(n_a)]
            result = ir.LiteralStructType([_f32] * n_sums)
            inputs = [_f32] * n_sums + [_i32] * n_a + [_i64, _i64, _i32]
            statement = ir.InlineAsm(
                ir.FunctionType(result, inputs), text, constraints, side_effect=True
            )
            after = builder.call(statement, [*before, *parts, *values[2:]])
            return cgutils.pack_array(
                builder, [builder.extract_value(after, i) for i in range(n_sums)]
            )

        return held(held, operand, types.int64, types.int64, types.int32), codegen

    return multiply

"""Products of a warpgroup whose sums are local arrays, for kernels that compute with them. sm_90a.

The layout of the sums and of operands in shared memory is that of `wgmma.py`; operands are 16-bit.
Kernels index these arrays by constants alone (loops over constant ranges are unrolled), so that
they live in registers. The left operand may be such an array too: of int32, two elements each. A
sum's columns 2 q, 2 q + 1 are the k that an operand's register holds, so that
`pack(sums[2 e], sums[2 e + 1])` is register e of the left operand of the next product.

The multiplication runs by itself. Between it and `wgmma_wait` its arrays must not be touched; after
the wait `hold` tells the compiler that the sums have changed.

A product of operands that are each a sum of a high and a low part is made of three:
high low' + low high' + high high', the small ones first, for the tensor cores truncate to the
length of the sum so far.

Source: PTX ISA 9.0, section 9.7.15.5; Shah et al., "FlashAttention-3", 2024, for sums as operands.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from blutrain.cuda_kernels.ptx.instruction import instruction

_f32, _i32, _i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)

ROW = 128  # bytes of a swizzled row: 64 elements
STEP = 16  # of K, of one instruction
_K_MAJOR = (1 << 62) | ((1024 >> 4) << 32) | (1 << 16)


class Operand(NamedTuple):
    """A matrix in shared memory, rows of 128 bytes, swizzled by 128.

    Attributes:
        rows: of a panel, which holds 64 columns; wider matrices are several panels.
        across: whether K runs down the rows; else it runs along them.
        low: bytes from the high part to the low part; 0 when there is none.
    """

    rows: int
    across: bool
    low: int = 0

    def descriptor(self) -> int:
        """The part that does not depend on the address."""
        if not self.across:
            return _K_MAJOR
        return (1 << 62) | ((1024 >> 4) << 32) | ((self.rows * ROW >> 4) << 16)

    def step(self, i: int) -> int:
        """What the i-th 16 of K add to a descriptor."""
        if self.across:
            return i * STEP * ROW >> 4
        panel, within = divmod(i, 4)
        return (panel * self.rows * ROW + within * 32) >> 4


class _Registers:
    """A local array, indexed by constants."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.builder = builder
        self.data = context.make_array(kind)(context, builder, value=value).data

    def read(self, n: int) -> list[Any]:
        """Its first n elements."""
        return [self.builder.load(self.builder.gep(self.data, [_i32(i)])) for i in range(n)]

    def write(self, values: list[Any]) -> None:
        """Its first elements."""
        for i, x in enumerate(values):
            self.builder.store(x, self.builder.gep(self.data, [_i32(i)]))


def _products(split: bool) -> list[tuple[bool, bool]]:
    """(left part is the low one, right part is) of each product."""
    return [(False, True), (True, False), (False, False)] if split else [(False, False)]


@cache
def tile_product(
    n: int, k: int, kind: str, left: Operand | None, right: Operand, split: bool, fresh: bool
) -> Any:
    """A function that multiplies a 64 × k tile with a k × n tile: one group of instructions.

    multiply(sums, a, b): sums (n / 2,) float32 gets a b, or with `fresh` off has it added. `b` is
    an address in shared memory; so is `a`, or without `left` a local array of k / 4 int32, with
    `split` of twice as many: the high parts, then the low ones.

    Args:
        n: columns, a multiple of 8 up to 256.
        k: the length of the sums, a multiple of 16.
        kind: "bf16" or "f16".
        left: how the left operand lies in shared memory; None when it is in registers.
        right: how the right one does.
        split: whether both have low parts.
        fresh: start from zero.
    """
    n_sums, n_left = n // 2, 0 if left is not None else k // 4 * (2 if split else 1)
    first_a = n_sums if fresh else 2 * n_sums
    sums = "{" + ", ".join(f"${i}" for i in range(n_sums)) + "}"
    b_in = first_a + (n_left or 1)
    text = (
        "{ .reg .pred no, yes; .reg .b64 a, b, x, y; setp.ne.s32 no, 0, 0; setp.eq.s32 yes, 0, 0; "
    )
    text += f"mov.b64 b, ${b_in}; "
    if left is not None:
        text += f"mov.b64 a, ${first_a}; "
    text += "wgmma.fence.sync.aligned; "
    keep = "no" if fresh else "yes"
    for a_low, b_low in _products(split):
        for i in range(k // STEP):
            move = right.step(i) + (right.low >> 4 if b_low else 0)
            text += f"add.s64 y, b, {move}; "
            if left is None:
                first = first_a + 4 * i + (k // 4 if a_low else 0)
                a = "{" + ", ".join(f"${first + j}" for j in range(4)) + "}"
                turned = f"{int(right.across)}"
            else:
                text += f"add.s64 x, a, {left.step(i) + (left.low >> 4 if a_low else 0)}; "
                a, turned = "x", f"{int(left.across)}, {int(right.across)}"
            text += f"wgmma.mma_async.sync.aligned.m64n{n}k{STEP}.f32.{kind}.{kind} "
            text += f"{sums}, {a}, y, {keep}, 1, 1, {turned}; "
            keep = "yes"
    text += "wgmma.commit_group.sync.aligned; }"
    tied = [] if fresh else [str(i) for i in range(n_sums)]
    inputs = ["r"] * n_left if n_left else ["l"]
    constraints = ",".join(["=f"] * n_sums + tied + inputs + ["l", "~{memory}"])

    def descriptor(builder: Any, address: Any, operand: Operand) -> Any:
        place = builder.zext(builder.lshr(address, _i32(4)), _i64)
        return builder.or_(place, _i64(operand.descriptor()))

    @intrinsic
    def multiply(typing_context, sums, a, b):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            held = _Registers(context, builder, signature.args[0], values[0])
            before = [] if fresh else held.read(n_sums)
            if left is None:
                operand = _Registers(context, builder, signature.args[1], values[1]).read(n_left)
            else:
                operand = [descriptor(builder, values[1], left)]
            arguments = [*before, *operand, descriptor(builder, values[2], right)]
            result = ir.LiteralStructType([_f32] * n_sums)
            statement = ir.InlineAsm(
                ir.FunctionType(result, [x.type for x in arguments]), text, constraints, True
            )
            after = builder.call(statement, arguments)
            held.write([builder.extract_value(after, i) for i in range(n_sums)])
            return context.get_dummy_value()

        return types.void(sums, a if left is None else types.int32, types.int32), codegen

    return multiply


finish_first = instruction(
    "finish_first",
    "{ .reg .pred p; setp.eq.f32 p, $0, 0fFF800000; vote.sync.any.pred p, p, 0xffffffff; "
    "@!p bra done; bar.warp.sync 0xffffffff; done: }",
    "f,~{memory}",
    types.void,
    (types.float32,),
    doc="(x): have x computed before what follows, a wait above all, though nothing depends on it: "
    "the assembler moves waits ahead of arithmetic, but not across a branch. x is never -inf.",
)


@cache
def hold(n: int) -> Any:
    """A function (array) to call after a wait: n float32 sums have changed until here."""
    constraints = ",".join(["=f"] * n + [str(i) for i in range(n)] + ["~{memory}"])

    @intrinsic
    def held(typing_context, sums):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            registers = _Registers(context, builder, signature.args[0], values[0])
            result = ir.LiteralStructType([_f32] * n)
            kind = ir.FunctionType(result, [_f32] * n)
            after = builder.call(ir.InlineAsm(kind, "", constraints, True), registers.read(n))
            registers.write([builder.extract_value(after, i) for i in range(n)])
            return context.get_dummy_value()

        return types.void(sums), codegen

    return held

"""Storing a tile: a warpgroup's sums leave through shared memory and the copy engine. sm_90a.

A thread of `wgmma` holds pairs of neighbouring columns of two rows, which would make narrow stores.
So the warpgroup lays its tile into a buffer of two boxes of 128 bytes by 64 rows, swizzled by 128
bytes, and one thread hands each to the copy engine, which writes whole lines by itself while the
other box is filled or the next tile is begun. (A transposed tile fills both boxes at a time.) What
lies outside the matrix is not written.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

_f32, _i32, _i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_void = ir.VoidType()
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PTX_NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}

# Bytes of the buffer that a warpgroup's sums pass through.
BUFFER = 16384
ROWS = 64  # of a box
BOX = ROWS * 128


@cache
def store_tile(n: int, element: str, turned: bool = False, has_bias: bool = False) -> Any:
    """A function by which a warpgroup stores its 64 × n sums as a tile of a matrix.

    store(sums, map_out, row, col, batch, buffer, bias, cols, group): the tile's first element is
    (row, col) of the matrix of `map_out`, whose box is (128 bytes, 64 rows); `buffer` is the
    shared address of BUFFER bytes, a multiple of 1,024; `bias` (int64) the address of bias[col] and
    `cols` (int32) the columns left from `col` on; `group` (int32) the warpgroup's number, 0 to 14,
    for its barrier. The copies may still read the buffer when it returns.

    Args:
        n: columns of the sums, a multiple of 64.
        element: "float32", "bfloat16" or "float16": what the matrix holds.
        turned: store the transpose, n × 64 with its first element at (col, row); float32 alone.
        has_bias: add bias[column], of the matrix's element type.
    """
    held = types.UniTuple(types.float32, n // 2)
    box = 128 // _BYTES[element]
    chunk = ROWS if turned else box  # columns of the sums that are laid down at a time
    odd = not turned and n // box % 2 == 1  # the next tile begins with the box that ended this one

    @intrinsic
    def store(typing_context, sums, map_out, row, col, batch, buffer, bias, cols, group):
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            sums, map_out, row, col, batch, buffer, bias, cols, group = values
            pieces = [builder.extract_value(sums, i) for i in range(n // 2)]
            lane = _Lane(builder)
            barrier = builder.add(group, _i32(1))  # barrier 0 is syncthreads'
            for first in range(0, n, chunk):
                # One thread's copies read the buffer: they must be done before it is written.
                under_way = 0 if turned or (odd and first == 0) else 1
                text = f"{_ONE} @one cp.async.bulk.wait_group.read {under_way}; }}"
                _assembly(builder, _void, text, "r,~{memory}", [lane.thread])
                place = buffer if turned else builder.add(buffer, _i32(BOX * (first // box % 2)))
                _assembly(builder, _void, "bar.sync $0, 128;", "r,~{memory}", [barrier])
                if turned:
                    _lay_turned(builder, lane, buffer, pieces, first)
                else:
                    part = pieces[first // 2 : min(first + chunk, n) // 2]
                    if has_bias:
                        part = _with_bias(builder, lane, part, bias, cols, first, element)
                    lay = _lay_float32 if element == "float32" else _lay_halves
                    lay(builder, lane, place, part, element)
                _assembly(builder, _void, "fence.proxy.async.shared::cta;", "~{memory}", [])
                _assembly(builder, _void, "bar.sync $0, 128;", "r,~{memory}", [barrier])
                for i in range(2 if turned else 1):
                    if turned:
                        at = builder.add(row, _i32(32 * i)), builder.add(col, _i32(first))
                    else:
                        at = builder.add(col, _i32(first)), row
                    source = builder.add(place, _i32(BOX * i))
                    text = f"{_ONE} @one cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
                    text += " [$1, {$2, $3, $4}], [$5]; }"
                    operands = [lane.thread, map_out, *at, batch, source]
                    _assembly(builder, _void, text, "r,l,r,r,r,r,~{memory}", operands)
                text = f"{_ONE} @one cp.async.bulk.commit_group; }}"
                _assembly(builder, _void, text, "r,~{memory}", [lane.thread])
            return context.get_dummy_value()

        i32, i64 = types.int32, types.int64
        return types.void(held, i64, i32, i32, i32, i32, i64, i32, i32), codegen

    return store


# Opens a statement in which `one` is set in the warpgroup's first thread.
_ONE = "{ .reg .pred one; setp.eq.u32 one, $0, 0;"


class _Lane:
    """Where a thread stands in its warpgroup; g = lane / 4 and q = lane % 4 of its warp."""

    def __init__(self, builder: Any) -> None:
        x = _assembly(builder, _i32, "mov.u32 $0, %tid.x;", "=r", [])
        self.thread = builder.and_(x, _i32(127))
        self.warp = builder.lshr(self.thread, _i32(5))
        self.lane = builder.and_(x, _i32(31))
        self.g = builder.lshr(self.lane, _i32(2))
        self.q = builder.and_(self.lane, _i32(3))


def _place(builder: Any, *terms: tuple[Any, int]) -> Any:
    """The sum of value · factor over the terms."""
    total = _i32(0)
    for value, factor in terms:
        total = builder.add(total, builder.mul(value, _i32(factor)))
    return total


def _in_piece(builder: Any, place: Any, turn: Any, piece: int) -> Any:
    """The address of 16-byte piece `piece` of a swizzled row: its place is piece ^ row % 8."""
    return builder.add(place, builder.shl(builder.xor(turn, _i32(piece)), _i32(4)))


def _lay_float32(builder: Any, lane: _Lane, buffer: Any, sums: list[Any], element: str) -> None:
    """Rows of 32 columns: pairs, 8 bytes a thread."""
    odd = builder.and_(lane.q, _i32(1))
    place = _place(builder, (buffer, 1), (lane.warp, 16 * 128), (lane.g, 128), (odd, 8))
    turn = builder.xor(builder.lshr(lane.q, _i32(1)), lane.g)
    for j in range(len(sums) // 4):
        at = _in_piece(builder, place, turn, 2 * (j % 4))
        for half in range(2):
            pair = sums[4 * j + 2 * half : 4 * j + 2 * half + 2]
            text = f"st.shared.v2.f32 [$0 + {BOX * (j // 4) + 1024 * half}], {{$1, $2}};"
            _assembly(builder, _void, text, "r,f,f,~{memory}", [at, *pair])


def _lay_halves(builder: Any, lane: _Lane, buffer: Any, sums: list[Any], element: str) -> None:
    """Rows of 64 columns: stmatrix turns 16 × 16 sums of a warp into 16-byte pieces of rows."""
    row = builder.and_(lane.lane, _i32(15))
    place = _place(builder, (buffer, 1), (lane.warp, 16 * 128), (row, 128))
    turn = builder.xor(builder.lshr(lane.lane, _i32(4)), builder.and_(lane.lane, _i32(7)))
    convert = f"cvt.rn.{_PTX_NAMES[element]}x2.f32"  # its first operand is the upper half
    packed = " ".join(f"{convert} v{i}, ${2 + 2 * i}, ${1 + 2 * i};" for i in range(4))
    for j in range(0, len(sums) // 4, 2):
        at = _in_piece(builder, place, turn, j % 8)
        text = f"{{ .reg .b32 v0, v1, v2, v3; {packed} stmatrix.sync.aligned.m8n8.x4.shared.b16 "
        text += f"[$0 + {BOX * (j // 8)}], {{v0, v1, v2, v3}}; }}"
        group = sums[4 * j : 4 * j + 8]
        _assembly(builder, _void, text, "r" + ",f" * 8 + ",~{memory}", [at, *group])


def _lay_turned(builder: Any, lane: _Lane, buffer: Any, sums: list[Any], first: int) -> None:
    """The sums' columns as rows of 32, one box for the sums' rows below 32, one for the others."""
    upper, odd = builder.lshr(lane.warp, _i32(1)), builder.and_(lane.warp, _i32(1))
    low = builder.and_(lane.g, _i32(3))
    place = _place(builder, (buffer, 1), (upper, BOX), (lane.q, 256), (low, 4))
    piece = builder.add(builder.shl(odd, _i32(2)), builder.lshr(lane.g, _i32(2)))
    turn = builder.xor(piece, builder.shl(lane.q, _i32(1)))
    for i in range(2):
        for half in range(2):
            at = _in_piece(builder, place, turn, (2 * half) ^ i)
            for column in range(0, ROWS, 8):
                value = sums[4 * ((first + column) // 8) + 2 * half + i]
                text = f"st.shared.f32 [$0 + {128 * (column + i)}], $1;"
                _assembly(builder, _void, text, "r,f,~{memory}", [at, value])


def _with_bias(
    builder: Any, lane: _Lane, sums: list[Any], bias: Any, cols: Any, first: int, element: str
) -> list[Any]:
    """The sums plus their columns' bias; columns outside the matrix read none."""
    size, out = _BYTES[element], list(sums)
    column = builder.shl(lane.q, _i32(1))
    left = builder.sub(cols, column)
    at = builder.add(bias, builder.zext(builder.mul(column, _i32(size)), _i64))
    for j in range(len(sums) // 4):
        for i in range(2):
            c = first + 8 * j + i
            valid = builder.zext(builder.icmp_signed(">", left, _i32(c)), _i32)
            value = _load_if(builder, builder.add(at, _i64(size * c)), valid, element)
            for half in range(2):
                k = 4 * j + 2 * half + i
                out[k] = builder.fadd(out[k], value)
    return out


def _load_if(builder: Any, place: Any, valid: Any, element: str) -> Any:
    """One element as float32, zero where `valid` is."""
    head = "{ .reg .pred p; .reg .b16 h; setp.ne.b32 p, $2, 0; mov.f32 $0, 0f00000000; "
    if element == "float32":
        text = head + "@p ld.global.f32 $0, [$1]; }"
    else:
        kind = _PTX_NAMES[element]
        text = head + f"mov.b16 h, 0; @p ld.global.b16 h, [$1]; cvt.f32.{kind} $0, h; }}"
    return _assembly(builder, _f32, text, "=&f,l,r", [place, valid])


def _assembly(builder: Any, result: Any, text: str, constraints: str, values: list[Any]) -> Any:
    kind = ir.FunctionType(result, [v.type for v in values])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), values)

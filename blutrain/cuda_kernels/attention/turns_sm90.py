"""In which order the blocks of attention's sm_90 kernels go over their work.

A block takes turns until none is left: each is one head's block of 128 or 256 resident rows, and
the tiles of the stream that these rows meet. Causal blocks are of different lengths. So turns come
in pairs, a block of rows from the end and the one as far from the start, which together are as long
as any other pair; where there are too few pairs for all multiprocessors they are single.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, int32

from blutrain.cuda_kernels.ptx.scalar import quotient
from blutrain.cuda_kernels.ptx.scaled_halves import TILE


@cuda.jit(device=True, forceinline=True)
def _blocks_of(n_rows, rows):
    """Blocks of `rows` rows, 128 or 256."""
    shift = int32(7) if rows == int32(128) else int32(8)
    return int32((n_rows + rows - int32(1)) >> shift)


@cuda.jit(device=True, forceinline=True)
def _pairs_of(n_blocks, n_parts):
    return int32((n_blocks + n_parts - int32(1)) >> (n_parts - int32(1)))


@cuda.jit(device=True, forceinline=True)
def turns_of(n_matrices, n_rows, n_parts, rows):
    """How many turns there are, n_parts (1 or 2) in a row for one block."""
    return int32(n_matrices * _pairs_of(_blocks_of(n_rows, rows), n_parts) * n_parts)


@cuda.jit(device=True, forceinline=True)
def _block_at(turn, n_rows, n_parts, rows):
    """(matrix, first resident row) of a turn, the row -1 where the second of a pair is missing."""
    n_blocks = _blocks_of(n_rows, rows)
    n_pairs = _pairs_of(n_blocks, n_parts)
    pair = int32(turn >> (n_parts - int32(1)))
    matrix = quotient(pair, n_pairs)
    first = int32(pair - matrix * n_pairs)
    last = int32(n_blocks - int32(1) - first)
    block = last
    if int32(turn & (n_parts - int32(1))) != int32(0):
        block = first if first != last else int32(-1)
    return matrix, int32(block * rows)


@cuda.jit(device=True, forceinline=True)
def next_turn(turn, n_parts):
    """The turn of this block after `turn`: the other of the pair, or a pair further on."""
    following = int32(turn + int32(1))
    if int32(following & (n_parts - int32(1))) != int32(0):
        return following
    return int32(following + (int32(cuda.gridDim.x) - int32(1)) * n_parts)


@cuda.jit(device=True, forceinline=True)
def turn_from(turn, n_rows, n_parts, rows):
    """The first turn from `turn` on that has a block: (turn, matrix, first resident row)."""
    matrix, row0 = _block_at(turn, n_rows, n_parts, rows)
    if row0 < int32(0):  # the turn after a missing one is there
        turn = next_turn(turn, n_parts)
        matrix, row0 = _block_at(turn, n_rows, n_parts, rows)
    return int32(turn), matrix, row0


@cache
def stream_of(over_queries: bool, rows: int) -> Any:
    """A device function: which tiles of the stream a turn's resident rows meet.

    tiles(row0, n_stream, offset, causal) → (first, end): query i sees the keys up to i + offset;
    the stream are keys, or with `over_queries` queries.
    """

    @cuda.jit(device=True, forceinline=True)
    def tiles(row0, n_stream, offset, causal):
        first = int32(0)
        end = n_stream
        if causal:
            if over_queries:
                first = int32(max(int32(row0 - offset), int32(0)) >> int32(6))
            else:
                end = min(end, int32(row0 + int32(rows) + offset))
        return first, int32((end + int32(TILE - 1)) >> int32(6))

    return tiles


@cache
def stage_after(n: int) -> Any:
    """A device function (stage, parity) → those after: the stages go round, n of them."""

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        if stage == int32(n - 1):
            return int32(0), int32(parity ^ int32(1))
        return int32(stage + int32(1)), int32(parity)

    return after

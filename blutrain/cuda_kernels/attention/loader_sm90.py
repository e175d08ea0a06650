"""The warpgroup that feeds attention's sm_90 kernels; what it makes is in `operands_sm90.py`."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.attention.operands_sm90 import (
    BLOCK_ROWS,
    BUFFERS,
    LOG2_E,
    LOWEST_EXPONENT,
    TILE,
    Shared,
    arrive_as_warp,
    block_at,
    load_tile,
    next_turn,
    turns_of,
    write_tile,
)
from blutrain.cuda_kernels.ptx.address import global_address
from blutrain.cuda_kernels.ptx.barrier import mbarrier_wait
from blutrain.cuda_kernels.ptx.half_pairs import (
    bits_of,
    larger_magnitude,
    largest_of_warp,
    load_word_if,
    float_of,
    store_shared_word,
)

OUTSIDE = 1e30  # the log-sum-exp of a row that does not exist: its probabilities are zero


@cuda.jit(device=True, forceinline=True)
def place_of(x):  # x: (B, H, T, D)
    """(address, batch, head and row steps in bytes) of a tensor."""
    steps = x.strides
    return global_address(x), int64(steps[0]), int64(steps[1]), int64(steps[2])


@cuda.jit(device=True, forceinline=True)
def matrix_start(tensor, matrix, n_heads):
    """The address of a head's first row; `tensor` as `place_of` makes it."""
    batch = int64(matrix // n_heads)
    head = int64(matrix % n_heads)
    return tensor[0] + batch * tensor[1] + head * tensor[2]


@cache
def stream_of(over_queries: bool) -> Any:
    """A device function: which tiles of the stream a block of resident rows meets.

    range(row0, n_stream, offset, causal) → (first, end): query i sees the keys up to i + offset;
    the stream are keys, or with `over_queries` queries.
    """

    @cuda.jit(device=True, forceinline=True)
    def tiles(row0, n_stream, offset, causal):
        first = int32(0)
        end = n_stream
        if causal:
            if over_queries:
                first = max(row0 - offset, int32(0)) // int32(TILE)
            else:
                end = min(end, row0 + int32(BLOCK_ROWS) + offset)
        return first, (end + int32(TILE - 1)) // int32(TILE)

    return tiles


@cache
def loader(shared: Shared) -> Any:
    """A device function that the loading warpgroup runs: every tile of every turn of the block.

    run(base, resident_0, resident_1, stream_0, stream_1, vector_0, vector_1, sizes, n_parts): the
    tensors are tuples as `matrix_start` takes them; the vectors are the addresses of (B, H, stream
    rows) float32, log-sum-exps and deltas; sizes = (matrices, heads, resident rows, stream rows,
    columns, offset, causal).
    """
    form, n_resident, stages, vectors = shared
    load, write = load_tile(form), write_tile(form)
    n_registers, kind = (16, float32) if form.element == "float32" else (8, int32)
    tile_bytes = form.tile_bytes
    tiles_of = stream_of(vectors)
    at_stream, at_vector = shared.stream, shared.vector
    at_exponents, at_stream_exponents = shared.resident_exponents, shared.stream_exponents
    at_magnitudes, at_slots = shared.vector_magnitudes, shared.magnitudes
    at_full = shared.barriers
    at_empty = at_full + shared.resident_empty
    at_stream_full = at_full + shared.stream_full
    at_stream_empty = at_full + shared.stream_empty

    @cuda.jit(device=True, forceinline=True)
    def write_resident(x, base, buffer, tensor, half, slot):
        place = (buffer * int32(n_resident) + int32(tensor)) * int32(2) + int32(half)
        slots = base + int32(at_slots) + slot * int32(32)
        target = base + place * int32(tile_bytes)
        exponent = write(x, target, slots, int32(LOWEST_EXPONENT))
        if cuda.threadIdx.x == 0:
            store_shared_word(base + int32(at_exponents) + place * int32(4), exponent)

    @cuda.jit(device=True, forceinline=True)
    def write_stream(x, base, stage, tensor, slot, running):
        place = stage * int32(2) + int32(tensor)
        slots = base + int32(at_slots) + slot * int32(32)
        exponent = write(x, base + int32(at_stream) + place * int32(tile_bytes), slots, running)
        if cuda.threadIdx.x == 0:
            store_shared_word(base + int32(at_stream_exponents) + place * int32(4), exponent)
        arrive_as_warp(base + int32(at_stream_full) + place * int32(8))
        return exponent

    @cuda.jit(device=True, forceinline=True)
    def load_vectors(start_0, start_1, tile, n_rows):
        """One element of either vector, of row t % 64 of the tile."""
        t = int32(cuda.threadIdx.x)
        row = tile * int32(TILE) + (t & int32(TILE - 1))
        valid = int32(row < n_rows and t < int32(2 * TILE))
        start = start_0 if t < int32(TILE) else start_1
        x = float_of(load_word_if(start + int64(row) * int64(4), valid))
        if t < int32(TILE):
            x = x * float32(LOG2_E) if valid != int32(0) else float32(OUTSIDE)
        return x

    @cuda.jit(device=True, forceinline=True)
    def write_vectors(x, base, stage):
        t = int32(cuda.threadIdx.x)
        at = base + int32(at_vector) + stage * int32(2 * TILE * 4) + t * int32(4)
        if t < int32(2 * TILE):
            store_shared_word(at, bits_of(x))
        largest = largest_of_warp(bits_of(larger_magnitude(float32(0), x)))
        warp = t >> int32(5)
        if warp >> int32(1) == int32(1) and t & int32(31) == int32(0):
            place = stage * int32(2) + warp - int32(2)
            store_shared_word(base + int32(at_magnitudes) + place * int32(4), largest)

    @cuda.jit(device=True, forceinline=True)
    def run(base, resident_0, resident_1, stream_0, stream_1, vector_0, vector_1, sizes, n_parts):
        n_matrices, n_heads, n_rows, n_stream, n_columns, offset, causal = sizes
        xa = cuda.local.array(n_registers, kind)
        xb = cuda.local.array(n_registers, kind)
        xv = float32(0)
        n_blocks = (n_rows + int32(BLOCK_ROWS - 1)) // int32(BLOCK_ROWS)
        n_turns = turns_of(n_matrices, n_blocks, n_parts)
        turn = int32(cuda.blockIdx.x) * n_parts
        buffer, buffer_parity = int32(0), int32(1)
        stage, parity = int32(0), int32(1)
        slot = int32(0)  # alternates: the last tile's magnitudes may still be read
        pitch_0, pitch_1 = stream_0[3], stream_1[3]
        while turn < n_turns:
            matrix, block = block_at(turn, n_blocks, n_parts)
            if block >= int32(0):
                row0 = block * int32(BLOCK_ROWS)
                pitch = resident_0[3]
                source = matrix_start(resident_0, matrix, n_heads) + int64(row0) * pitch
                left = n_rows - row0
                tile, end = tiles_of(row0, n_stream, offset, causal)
                next_0 = matrix_start(stream_0, matrix, n_heads)
                next_0 += int64(tile * int32(TILE)) * pitch_0
                next_1 = matrix_start(stream_1, matrix, n_heads)
                next_1 += int64(tile * int32(TILE)) * pitch_1
                lse = vector_0 + int64(matrix) * int64(n_stream) * int64(4)
                delta = vector_1 + int64(matrix) * int64(n_stream) * int64(4)

                # Resident rows, and the stream's first tiles.
                load(xa, source, pitch, left, n_columns)
                load(xb, source + int64(TILE) * pitch, pitch, left - int32(TILE), n_columns)
                empty = base + int32(at_empty) + buffer * int32(16)
                mbarrier_wait(empty, buffer_parity)
                mbarrier_wait(empty + int32(8), buffer_parity)
                write_resident(xa, base, buffer, 0, 0, int32(0))
                if n_resident == 2:
                    pitch = resident_1[3]
                    source = matrix_start(resident_1, matrix, n_heads) + int64(row0) * pitch
                    load(xa, source, pitch, left, n_columns)
                    write_resident(xb, base, buffer, 0, 1, int32(1))
                    load(xb, source + int64(TILE) * pitch, pitch, left - int32(TILE), n_columns)
                    write_resident(xa, base, buffer, 1, 0, int32(2))
                    load(xa, next_0, pitch_0, n_stream - tile * int32(TILE), n_columns)
                    write_resident(xb, base, buffer, 1, 1, int32(3))
                else:
                    load(xa, next_0, pitch_0, n_stream - tile * int32(TILE), n_columns)
                    write_resident(xb, base, buffer, 0, 1, int32(1))
                load(xb, next_1, pitch_1, n_stream - tile * int32(TILE), n_columns)
                if vectors:
                    xv = load_vectors(lse, delta, tile, n_stream)
                full = base + int32(at_full) + buffer * int32(16)
                arrive_as_warp(full)
                arrive_as_warp(full + int32(8))
                buffer += int32(1)
                if buffer == int32(BUFFERS):
                    buffer = int32(0)
                    buffer_parity ^= int32(1)

                # The stream.
                running_0 = int32(LOWEST_EXPONENT)
                running_1 = int32(LOWEST_EXPONENT)
                while tile < end:
                    following = tile + int32(1)
                    rows_left = n_stream - following * int32(TILE)
                    empty = base + int32(at_stream_empty) + stage * int32(16)
                    mbarrier_wait(empty, parity)
                    if vectors:
                        write_vectors(xv, base, stage)
                        if following < end:
                            xv = load_vectors(lse, delta, following, n_stream)
                    running_0 = write_stream(xa, base, stage, 0, slot, running_0)
                    next_0 += int64(TILE) * pitch_0
                    if following < end:
                        load(xa, next_0, pitch_0, rows_left, n_columns)
                    mbarrier_wait(empty + int32(8), parity)
                    running_1 = write_stream(xb, base, stage, 1, slot + int32(1), running_1)
                    next_1 += int64(TILE) * pitch_1
                    if following < end:
                        load(xb, next_1, pitch_1, rows_left, n_columns)
                    slot ^= int32(2)
                    stage += int32(1)
                    if stage == int32(stages):
                        stage = int32(0)
                        parity ^= int32(1)
                    tile = following
            turn = next_turn(turn, n_parts)

    return run

"""The warpgroups that feed attention's sm_90 kernels.

Two warpgroups, one for each tensor of the stream; of the resident tensors each takes one half of
the rows. The copy engine brings the tiles. Halves it writes where the tensor cores read them, and
one thread is enough to ask for them. float32 arrives in slots, as many tiles ahead as there are
slots, and 128 threads turn a tile into its scaled parts (`operands_sm90.py`).

A slot is two boxes of 64 rows by 32 columns, swizzled like the operands: 16-byte piece p of row r
is at place p ^ (r % 8). A warp's lanes take eight rows of four pieces at a time, which is free of
bank conflicts on both sides.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32, int64

from blutrain.cuda_kernels.attention.operands_sm90 import LOG2_E, SLOTS, Shared
from blutrain.cuda_kernels.attention.turns_sm90 import (
    next_turn,
    stage_after,
    stream_of,
    turn_from,
    turns_of,
)
from blutrain.cuda_kernels.common import FULL_MASK
from blutrain.cuda_kernels.ptx.barrier import (
    mbarrier_expect,
    mbarrier_wait,
    warpgroup_barrier,
)
from blutrain.cuda_kernels.ptx.copy import (
    load_word_if,
    store_shared_word,
)
from blutrain.cuda_kernels.ptx.scalar import (
    bits_of,
    float_of,
    larger_magnitude,
    largest_of_warp,
    quotient,
    same_again,
)
from blutrain.cuda_kernels.ptx.scaled_halves import (
    LOWEST_EXPONENT,
    PART,
    TILE,
    arrive_as_warp,
    exponent_of,
    factor_of,
    largest_of_warpgroup,
    read_tile,
    write_tile,
)
from blutrain.cuda_kernels.ptx.tma import tensor_map_acquire, tma_load_4d

OUTSIDE = 1e30  # the log-sum-exp of a row that does not exist: its probabilities are zero


@cuda.jit(device=True, forceinline=True)
def _load_vectors(start_0, start_1, tile, n_rows):
    """One element of either vector, of row t % 64 of the tile."""
    t = int32(cuda.threadIdx.x)
    row = tile * int32(TILE) + (t & int32(TILE - 1))
    valid = int32(row < n_rows)
    start = start_0 if t < int32(TILE) else start_1
    x = float_of(load_word_if(start + int64(row) * int64(4), valid))
    if t < int32(TILE):
        x = x * float32(LOG2_E) if valid != int32(0) else float32(OUTSIDE)
    return x


@cuda.jit(device=True, forceinline=True)
def _write_vectors(x, target, magnitudes):
    """Write them, and the second one's largest magnitude of each half."""
    t = int32(cuda.threadIdx.x)
    store_shared_word(target + t * int32(4), bits_of(x))
    largest = largest_of_warp(bits_of(larger_magnitude(float32(0), x)))
    if t >= int32(TILE) and t & int32(31) == int32(0):
        store_shared_word(magnitudes + ((t >> int32(5)) & int32(1)) * int32(4), largest)


@cache
def loader(shared: Shared) -> Any:
    """A device function that the loading warpgroups run: every tile of every turn of the block.

    run(base, maps, vector_0, vector_1, sizes, n_parts): maps are the tensor maps of the resident
    tensors, twice the same if there is one, and of the stream's; vectors the addresses of (B, H,
    stream rows) float32, log-sum-exps and deltas; sizes = (matrices, heads, resident rows, stream
    rows, offset, causal).
    """
    form, groups, n_resident, buffers, stages, vectors = shared
    rows = TILE * groups
    converted, scaled, tile_bytes = form.converted, form.scaled, form.tile_bytes
    write = write_tile(form.kind, form.split)
    tiles_of = stream_of(vectors, rows)
    next_stage, next_buffer = stage_after(stages), stage_after(buffers)
    next_slot = stage_after(SLOTS)
    at_stream, at_vector, at_raw = shared.stream, shared.vector, shared.raw_tiles
    at_exponents, at_stream_exponents = shared.resident_exponents, shared.stream_exponents
    at_magnitudes, at_largest = shared.vector_magnitudes, shared.magnitudes
    at_full, at_empty = shared.resident_full, shared.resident_empty
    at_stream_full, at_stream_empty = shared.stream_full, shared.stream_empty
    at_raw_full = shared.raw_full

    # A cursor is (turn, matrix, first resident row, item, tile, end): item counts the resident
    # tensors, then tile the stream's tiles.
    @cuda.jit(device=True, forceinline=True)
    def start(turn, sizes, n_parts):
        _, _, n_rows, n_stream, offset, causal = sizes
        turn, matrix, row0 = turn_from(turn, n_rows, n_parts, int32(rows))
        tile, end = tiles_of(row0, n_stream, offset, causal)
        return turn, matrix, row0, int32(0), tile, end

    @cuda.jit(device=True, forceinline=True)
    def after(cursor, sizes, n_parts):
        turn, matrix, row0, item, tile, end = cursor
        if item < int32(n_resident):
            item = int32(item + int32(1))
        else:
            tile = int32(tile + int32(1))
        if item == int32(n_resident) and tile >= end:
            return start(next_turn(turn, n_parts), sizes, n_parts)
        return turn, matrix, row0, item, tile, end

    @cuda.jit(device=True, forceinline=True)
    def source(cursor, maps, group):
        """(map, first row) of the tile at a cursor."""
        _, _, row0, item, tile, _ = cursor
        if item < int32(n_resident):
            the_map = maps[0] if item == int32(0) else maps[1]
            return the_map, int32(row0 + group * int32(TILE))
        return (maps[2] if group == int32(0) else maps[3]), int32(tile * int32(TILE))

    @cuda.jit(device=True, forceinline=True)
    def ask(cursor, maps, group, n_heads, raw, raw_full, slot):
        """Let the copy engine bring the float32 tile at a cursor into a slot."""
        the_map, row = source(cursor, maps, group)
        batch = quotient(cursor[1], n_heads)
        head = int32(cursor[1] - batch * n_heads)
        signal = raw_full + slot * int32(8)
        at = raw + slot * int32(2 * PART)
        mbarrier_expect(signal, int32(2 * PART))
        tma_load_4d(at, the_map, int32(0), row, head, batch, signal)
        tma_load_4d(at + int32(PART), the_map, int32(32), row, head, batch, signal)

    @cuda.jit(device=True, forceinline=True)
    def run(base, maps, vector_0, vector_1, sizes, n_parts):
        n_matrices, n_heads, n_rows, n_stream, _, _ = sizes
        t = int32(cuda.threadIdx.x)
        # The shuffle tells the compiler that it is the same for a whole warp.
        group = int32(cuda.shfl_sync(FULL_MASK, int32(t >> int32(7)), 0))
        leader = t & int32(127) == int32(0)
        if not converted:
            if not (vectors and group == int32(0)) and t & int32(127) >= int32(32):
                return  # one thread asks, one warp goes over the tiles with it
        if leader:
            for i in range(4):
                tensor_map_acquire(maps[i])
        n_turns = turns_of(n_matrices, n_rows, n_parts, int32(rows))
        now = start(int32(cuda.blockIdx.x * n_parts), sizes, n_parts)
        buffer, buffer_parity = int32(0), int32(1)
        stage, parity = int32(0), int32(1)
        slot, slot_parity = int32(0), int32(0)
        running = int32(LOWEST_EXPONENT)
        side = int32(0)  # alternates: the last tile's magnitudes may still be read
        x = cuda.local.array(32, float32)
        xv = float32(0)
        raw = base + int32(at_raw) + group * int32(SLOTS * 2 * PART)
        raw_full = base + int32(at_raw_full) + group * int32(SLOTS * 8)
        if converted:
            if leader and now[0] < n_turns:
                ask(now, maps, group, n_heads, raw, raw_full, int32(0))
                second = after(now, sizes, n_parts)
                if second[0] < n_turns:
                    ask(second, maps, group, n_heads, raw, raw_full, int32(1))
        while now[0] < n_turns:
            base = same_again(base)
            group = same_again(group)
            raw = base + int32(at_raw) + group * int32(SLOTS * 2 * PART)
            raw_full = base + int32(at_raw_full) + group * int32(SLOTS * 8)
            item = now[3]
            resident = item < int32(n_resident)
            # Where the tile goes, and whom it has to wait for.
            place = stage * int32(2) + group
            target = base + int32(at_stream) + place * int32(tile_bytes)
            full = base + int32(at_stream_full) + place * int32(8)
            empty = base + int32(at_stream_empty) + place * int32(8)
            exponent_at = base + int32(at_stream_exponents) + place * int32(4)
            free = parity
            if resident:
                place = (buffer * int32(n_resident) + item) * int32(2) + group
                target = base + place * int32(tile_bytes)
                exponent_at = base + int32(at_exponents) + place * int32(4)
                place = buffer * int32(2) + group
                full = base + int32(at_full) + place * int32(8)
                empty = base + int32(at_empty) + place * int32(8)
                free = buffer_parity
                running = int32(LOWEST_EXPONENT)
            if converted:
                mbarrier_wait(raw_full + slot * int32(8), slot_parity)
                read_tile(x, raw + slot * int32(2 * PART))
                factor = float32(1)
                if scaled:
                    slots = base + int32(at_largest) + (group * int32(2) + side) * int32(16)
                    largest = largest_of_warpgroup(x, slots, group)
                    side = int32(side ^ int32(1))
                    running = max(exponent_of(largest), running)
                    factor = factor_of(largest, running)
                else:
                    warpgroup_barrier(group + int32(1))
                mbarrier_wait(empty, free)
                write(x, target, factor)
                if scaled and leader:
                    store_shared_word(exponent_at, running)
            if vectors and group == int32(0) and not resident:
                if not converted:
                    mbarrier_wait(empty, free)
                target_v = base + int32(at_vector) + stage * int32(2 * TILE * 4)
                _write_vectors(xv, target_v, base + int32(at_magnitudes) + stage * int32(8))
            if converted:
                if not resident or item == int32(n_resident - 1):
                    arrive_as_warp(full)
            else:
                if vectors and group == int32(0) and not resident:
                    arrive_as_warp(full)
                if leader:
                    if not resident or item == int32(0):
                        mbarrier_wait(empty, free)
                        n_tiles = int32(n_resident) if resident else int32(1)
                        mbarrier_expect(full, n_tiles * int32(PART))
                    the_map, row = source(now, maps, group)
                    batch = quotient(now[1], n_heads)
                    head = int32(now[1] - batch * n_heads)
                    tma_load_4d(target, the_map, int32(0), row, head, batch, full)
            following = after(now, sizes, n_parts)
            if converted:
                # All have read the slot: let the tile after the next one come.
                if leader and following[0] < n_turns:
                    ahead = after(following, sizes, n_parts)
                    if ahead[0] < n_turns:
                        ask(ahead, maps, group, n_heads, raw, raw_full, slot)
                slot, slot_parity = next_slot(slot, slot_parity)
            if vectors and group == int32(0):
                if following[0] < n_turns and following[3] == int32(n_resident):
                    of_matrix = int64(following[1]) * int64(n_stream) * int64(4)
                    xv = _load_vectors(
                        vector_0 + of_matrix, vector_1 + of_matrix, following[4], n_stream
                    )
            # On to the next tile.
            if not resident:
                stage, parity = next_stage(stage, parity)
            else:
                running = int32(LOWEST_EXPONENT)
            if item == int32(n_resident - 1):
                buffer, buffer_parity = next_buffer(buffer, buffer_parity)
            now = following

    return run


@cache
def asker(shared: Shared) -> Any:
    """A device function for one warpgroup in the place of `loader`, where halves need no more.

    run(base, maps, sizes, n_parts): as of `loader`. One resident tensor, no vectors.
    """
    tile_bytes, groups = shared.form.tile_bytes, shared.groups
    rows = TILE * groups
    tiles_of = stream_of(False, rows)
    next_stage, next_buffer = stage_after(shared.stages), stage_after(shared.buffers)
    at_stream, at_full, at_empty = shared.stream, shared.resident_full, shared.resident_empty
    at_stream_full, at_stream_empty = shared.stream_full, shared.stream_empty

    @cuda.jit(device=True, forceinline=True)
    def run(base, maps, sizes, n_parts):
        n_matrices, n_heads, n_rows, n_stream, offset, causal = sizes
        if int32(cuda.threadIdx.x) & int32(127) != int32(0):
            return  # one thread of the warpgroup asks for everything
        for i in range(1, 4):
            tensor_map_acquire(maps[i])
        n_turns = turns_of(n_matrices, n_rows, n_parts, int32(rows))
        buffer, buffer_parity = int32(0), int32(1)
        stage, parity = int32(0), int32(1)
        turn = int32(cuda.blockIdx.x * n_parts)
        while turn < n_turns:
            turn, matrix, row0 = turn_from(turn, n_rows, n_parts, int32(rows))
            if turn >= n_turns:
                break
            batch = quotient(matrix, n_heads)
            head = int32(matrix - batch * n_heads)
            for group in range(groups):
                place = int32(buffer * int32(groups) + int32(group))
                mbarrier_wait(base + int32(at_empty) + place * int32(8), buffer_parity)
                full = base + int32(at_full) + place * int32(8)
                mbarrier_expect(full, int32(PART))
                row = int32(row0 + int32(group * TILE))
                target = base + place * int32(tile_bytes)
                tma_load_4d(target, maps[1], int32(0), row, head, batch, full)
            buffer, buffer_parity = next_buffer(buffer, buffer_parity)
            tile, end = tiles_of(row0, n_stream, offset, causal)
            while tile < end:
                for i in range(2):
                    place = int32(stage * int32(2) + int32(i))
                    mbarrier_wait(base + int32(at_stream_empty) + place * int32(8), parity)
                    full = base + int32(at_stream_full) + place * int32(8)
                    mbarrier_expect(full, int32(PART))
                    row = int32(tile * int32(TILE))
                    target = base + int32(at_stream) + place * int32(tile_bytes)
                    the_map = maps[2] if i == 0 else maps[3]
                    tma_load_4d(target, the_map, int32(0), row, head, batch, full)
                stage, parity = next_stage(stage, parity)
                tile = int32(tile + int32(1))
            turn = next_turn(turn, n_parts)

    return run

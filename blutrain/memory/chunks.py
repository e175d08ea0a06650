"""Dividing and merging the chunks of a pool."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from blutrain.memory.block import CACHED, FREE, GONE, HOLE, Chunk, Pool, Segment


def chunks_of(segment: Segment) -> Iterator[Chunk]:
    """The chunks of a segment, in the order of their addresses."""
    chunk: Chunk | None = segment.first
    while chunk is not None:
        following = chunk.next
        yield chunk
        chunk = following


def best_fit(pool: Pool, size: int) -> Chunk | None:
    """Take the smallest free chunk of at least `size` bytes out of the free ones."""
    at = bisect_left(pool.free, (size, 0))
    if at == len(pool.free):
        return None
    _, pointer = pool.free.pop(at)
    return pool.chunks.pop(pointer)


def split(chunk: Chunk, size: int) -> Chunk:
    """Cut a chunk down to `size` bytes; the new chunk behind it has the rest and its state."""
    behind = Chunk(chunk.pointer + size, chunk.size - size, chunk.segment)
    behind.state = chunk.state
    behind.previous, behind.next = chunk, chunk.next
    if chunk.next is not None:
        chunk.next.previous = behind
    chunk.next = behind
    chunk.size = size
    return behind


def divide(pool: Pool, chunk: Chunk, size: int) -> None:
    """Cut a chunk down to `size` bytes and put the rest among the free ones."""
    if chunk.size > size:
        add_free(pool, split(chunk, size))


def empty_bins(pool: Pool) -> None:
    """Merge every cached chunk with its neighbours that are not live, into the free ones."""
    for cached in pool.bins.values():
        while cached:
            chunk = cached.pop()
            if chunk.state == CACHED:
                add_free(pool, merge(pool, chunk))
    pool.bins.clear()


def _idle(chunk: Chunk | None) -> bool:
    return chunk is not None and (chunk.state == CACHED or chunk.state == FREE)


def merge(pool: Pool, chunk: Chunk) -> Chunk:
    """The chunk that remains when `chunk` has absorbed all its neighbours that are not in use.

    An absorbed chunk that is still in a bin is GONE, by which `empty_bins` knows it.
    """
    while _idle(chunk.previous):
        assert chunk.previous is not None
        chunk = chunk.previous
    if chunk.state == FREE:
        remove_free(pool, chunk)
    while _idle(chunk.next):
        absorbed = chunk.next
        assert absorbed is not None
        if absorbed.state == FREE:
            remove_free(pool, absorbed)
        absorb_next(chunk)
    return chunk


def absorb_next(chunk: Chunk) -> None:
    """Let a chunk take over the one behind it."""
    absorbed = chunk.next
    assert absorbed is not None
    absorbed.state = GONE
    chunk.size += absorbed.size
    chunk.next = absorbed.next
    if absorbed.next is not None:
        absorbed.next.previous = chunk


def merge_hole(hole: Chunk) -> None:
    """Join a hole with the holes beside it, and note it in its segment."""
    holes = hole.segment.holes
    if hole.previous is not None and hole.previous.state == HOLE:
        hole = hole.previous
        absorb_next(hole)
    if hole.next is not None and hole.next.state == HOLE:
        del holes[hole.next.pointer]
        absorb_next(hole)
    holes[hole.pointer] = hole


def add_free(pool: Pool, chunk: Chunk) -> None:
    """Put a chunk among the free ones."""
    chunk.state = FREE
    insort(pool.free, (chunk.size, chunk.pointer))
    pool.chunks[chunk.pointer] = chunk


def remove_free(pool: Pool, chunk: Chunk) -> None:
    """Take a chunk out of the free ones."""
    del pool.free[bisect_left(pool.free, (chunk.size, chunk.pointer))]
    del pool.chunks[chunk.pointer]

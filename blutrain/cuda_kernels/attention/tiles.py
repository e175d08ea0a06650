"""How attention's kernels cut their work.

A thread owns rows (queries, or keys in the backward pass for dk and dv) and walks over the other
side in chunks that its block holds in shared memory. What fits is bounded by 48 KiB of shared
memory a block and by registers: a thread keeps rows x columns sums, 64 to 128 floats.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import float32

from blutrain.autograd.registry import variant

HEADS = (32, 64, 128)  # head sizes are padded with zeros to one of these


class Tile(NamedTuple):
    """The cut of one kernel.

    Attributes:
        head: the padded head size.
        columns: how many of the result's columns a block computes; for the rest of the head there
            are more blocks, which repeat the scores.
        threads: threads a block.
        rows: rows a thread.
        chunk: how much of the other side is in shared memory at a time; a multiple of 4,
            in the forward kernel of 8.
    """

    head: int
    columns: int
    threads: int
    rows: int
    chunk: int

    @property
    def block_rows(self) -> int:
        """Rows a block."""
        return self.threads * self.rows


class Tiles(NamedTuple):
    """The cuts of the three kernels."""

    forward: Tile
    dq: Tile
    dkv: Tile


def padded_head(size: int) -> int:
    """The head size that the kernels are made for."""
    return next(head for head in HEADS if size <= head)


@variant("attention_tiles", name="portable")
@cache
def portable_tiles(problem: tuple[int, Any]) -> Tiles:
    """Cuts that fit every GPU.

    Args:
        problem: the padded head size and the accumulator's type, numba's float32 or float64.
    """
    head, real = problem
    if real is float32:
        return {
            32: Tiles(Tile(32, 32, 64, 1, 32), Tile(32, 32, 64, 1, 16), Tile(32, 32, 64, 1, 16)),
            64: Tiles(Tile(64, 64, 64, 1, 32), Tile(64, 64, 64, 1, 8), Tile(64, 64, 64, 1, 8)),
            128: Tiles(Tile(128, 64, 64, 1, 8), Tile(128, 64, 32, 1, 8), Tile(128, 64, 32, 1, 4)),
        }[head]
    return {
        32: Tiles(Tile(32, 32, 32, 1, 16), Tile(32, 32, 32, 1, 8), Tile(32, 32, 32, 1, 8)),
        64: Tiles(Tile(64, 32, 32, 1, 16), Tile(64, 32, 32, 1, 4), Tile(64, 32, 32, 1, 4)),
        128: Tiles(Tile(128, 32, 16, 1, 8), Tile(128, 32, 8, 1, 4), Tile(128, 32, 8, 1, 4)),
    }[head]


@variant(
    "attention_tiles", name="processor", target="cpu", when=lambda problem: problem[1] is float32
)
@cache
def processor_tiles(problem: tuple[int, Any]) -> Tiles:
    """Longer chunks, for the wide vectors of a processor, which has no bound on shared memory.

    Args:
        problem: as in `portable_tiles`.
    """
    head = problem[0]
    rows, columns = (2, 32) if head == 32 else (1, 64)
    tile = Tile(head, columns, 64 // rows, rows, 32)
    return Tiles(tile, tile, tile)

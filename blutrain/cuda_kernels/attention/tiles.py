"""How attention's kernels cut their work.

A thread owns one row (a query, or a key in the backward pass for dk and dv) and walks over the
other side in chunks that its block holds in shared memory. Two things bound what fits: 48 KiB of
shared memory a block, and registers: a thread keeps up to 128 running sums.
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
        threads: threads, and so rows, a block.
        chunk: how much of the other side is in shared memory at a time; a multiple of 4, in the
            forward kernel of 8.
        only_on_cpu: whether it needs more static shared memory than a GPU's assembler gives.
    """

    head: int
    columns: int
    threads: int
    chunk: int
    only_on_cpu: bool = False


class Tiles(NamedTuple):
    """The cuts of the three kernels."""

    forward: Tile
    dq: Tile
    dkv: Tile


class Problem(NamedTuple):
    """What the cuts depend on.

    Attributes:
        head: the padded head size.
        real: numba's float32 or float64, the type of the sums.
        half: whether the tensors hold halves.
    """

    head: int
    real: Any
    half: bool


def padded_head(size: int) -> int:
    """The head size that the kernels are made for."""
    return next(head for head in HEADS if size <= head)


@variant("attention_tiles", name="portable")
@cache
def portable_tiles(problem: Problem) -> Tiles:
    """Cuts that fit every GPU."""
    if problem.real is float32:
        return {
            32: Tiles(Tile(32, 32, 64, 32), Tile(32, 32, 64, 16), Tile(32, 32, 64, 16)),
            64: Tiles(Tile(64, 64, 64, 32), Tile(64, 64, 64, 8), Tile(64, 64, 64, 8)),
            128: Tiles(Tile(128, 64, 64, 8), Tile(128, 64, 32, 8), Tile(128, 64, 32, 4)),
        }[problem.head]
    return {
        32: Tiles(Tile(32, 32, 32, 16), Tile(32, 32, 32, 8), Tile(32, 32, 32, 8)),
        64: Tiles(Tile(64, 32, 32, 16), Tile(64, 32, 32, 4), Tile(64, 32, 32, 4)),
        128: Tiles(Tile(128, 32, 16, 8), Tile(128, 32, 8, 4), Tile(128, 32, 8, 4)),
    }[problem.head]


def _common(problem: Problem) -> bool:
    return problem.real is float32 and not problem.half and problem.head < 128


@variant("attention_tiles", name="processor", target="cpu", when=_common)
@cache
def processor_tiles(problem: Problem) -> Tiles:
    """Longer chunks backward, for a processor's vectors; its shared memory has no such bound."""
    tile = Tile(problem.head, problem.head, 64, 32, only_on_cpu=True)
    return Tiles(portable_tiles(problem).forward, tile, tile)

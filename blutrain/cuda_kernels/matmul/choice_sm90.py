"""How an sm_90 matrix product is cut into tiles and dealt out, by an estimate of the time it takes.

The estimate counts cycles of an SM: the tensor cores', at the part of their full rate that long
products reached on an H200, the stores of finished tiles, and the handing over of sums where
several blocks share a tile. `benchmarks/notes/matmul.md` has the measurements behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from blutrain.cuda_kernels.common import blocks_for
from blutrain.cuda_kernels.matmul.tiles_sm90 import ROW, Cut

# Tiles that are compiled, by kernel and number of products. The stages are as many as shared memory
# holds.
DIRECT_CUTS = (Cut(192, 3, 3), Cut(256, 4), Cut(192, 4), Cut(128, 5))
FLOAT_CUTS = {
    1: (Cut(192, 3, 3), Cut(256, 4), Cut(192, 4), Cut(128, 5)),
    3: (Cut(192, 3), Cut(128, 4)),
}
# What the choice of a cut weighs, in cycles of an SM.
MULTIPLIES = {2: 2048, 4: 1024}  # a cycle, by the operands' size in bytes
# Of the tensor cores, seen in long products, by the number of products and the columns of a tile.
EFFICIENCY = {1: {256: 0.8, 192: 0.77, 128: 0.73}, 3: {192: 0.88, 128: 0.81}}
TILE_COST = 1000  # until a tile's first step
STORE_BYTES = 20  # of a finished tile, a cycle
SHARING_COST = 3000  # to hand sums over and wait for them
SHARING_BYTES = 40  # of the sums, a cycle
UNEVEN = 1.04  # the price of runs of unequal phase
MIN_STEPS = 4  # of a block's share of the shared tiles
MAX_PARTS = 12  # of a tile


class Choice(NamedTuple):
    """How the tiles are dealt out.

    Attributes:
        cut: the tile.
        grid: blocks.
        n_shared: tiles, the first ones, that several blocks share.
    """

    cut: Cut
    grid: int
    n_shared: int


def best_choice(
    n_rows: int,
    n_cols: int,
    n_inner: int,
    n_batch: int,
    size: int,
    n_products: int,
    cuts: tuple[Cut, ...],
    n_multiprocessors: int,
) -> Choice:
    """The cut, and the way to deal out its tiles, of the least estimated time.

    Few tiles leave SMs idle: each is then shared by the same number of blocks. Those that read the
    same rows of A or B are at the same k then; runs of unequal phase would read every row from
    device memory again (0.6 times the speed, for halves), but three products are slow enough for
    them, and so share the tiles of their last two rounds too.
    """
    tile_k = ROW // size
    n_steps = blocks_for(n_inner, tile_k)

    def choices() -> Iterator[tuple[float, Choice]]:
        for cut in cuts:
            rate = MULTIPLIES[size] * EFFICIENCY[n_products][cut.n]
            step = cut.m * cut.n * tile_k * n_products / rate
            n_tiles = blocks_for(n_rows, cut.m) * blocks_for(n_cols, cut.n) * n_batch
            store = TILE_COST + cut.m * cut.n * size / STORE_BYTES
            tile = n_steps * step + store
            rounds = blocks_for(n_tiles, n_multiprocessors)
            yield rounds * tile, Choice(cut, min(n_tiles, n_multiprocessors), 0)
            n_shared, whole_rounds = n_tiles, 0
            if n_tiles > n_multiprocessors:
                n_shared = n_tiles % n_multiprocessors + n_multiprocessors
                whole_rounds = rounds - 2
            grids = {n_shared * i for i in range(2, n_multiprocessors // n_shared + 1)}
            if n_products == 3:
                grids.add(n_multiprocessors)
            for grid in sorted(grids):
                steps, parts = blocks_for(n_shared * n_steps, grid), -(-grid // n_shared)
                if steps < MIN_STEPS or parts > MAX_PARTS:
                    continue
                handing = SHARING_COST + parts * cut.m * cut.n * 4 / SHARING_BYTES
                stores = store * blocks_for(n_shared, grid)
                total = whole_rounds * tile + steps * step + stores + handing
                if grid % n_shared:
                    total *= UNEVEN
                yield total, Choice(cut, grid, n_shared)

    return min(choices())[1]

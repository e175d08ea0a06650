"""The portable kernels of attention: every dtype, every device; the definition."""

from __future__ import annotations

from typing import Any

from numba import float32, float64

from blutrain import dtypes
from blutrain.autograd.registry import choose, variant
from blutrain.cuda_kernels.attention.backward import dkv_kernel, dq_kernel
from blutrain.cuda_kernels.attention.forward import forward_kernel
from blutrain.cuda_kernels.attention.problem import Backward, Forward
from blutrain.cuda_kernels.attention.tiles import Problem, Tile, Tiles, padded_head
from blutrain.cuda_kernels.common import blocks_for
from blutrain.device import launch
from blutrain.device.array import Array
from blutrain.tensor import Tensor, empty


@variant("attention_forward", name="portable")
def forward_portable(p: Forward) -> None:
    """Launch the forward kernel."""
    real, tiles = _kernels_for(p.q)
    launch(
        forward_kernel(tiles.forward, real),
        _n_blocks(p.q, tiles.forward),
        tiles.forward.threads,
        *strided(p.q, p.k, p.v, p.y),
        p.lse,
        p.q.dtype.compute.type(p.scale),
        p.causal,
    )


@variant("attention_backward", name="portable")
def backward_portable(p: Backward) -> None:
    """Launch the kernel for dq and delta, then the one for dk and dv."""
    real, tiles = _kernels_for(p.q)
    delta = empty(p.lse.shape, p.lse.dtype)
    scale = p.q.dtype.compute.type(p.scale)
    launch(
        dq_kernel(tiles.dq, real),
        _n_blocks(p.q, tiles.dq),
        tiles.dq.threads,
        *strided(p.q, p.k, p.v, p.y, p.dy),
        p.lse,
        delta,
        *strided(p.dq),
        scale,
        p.causal,
    )
    if not p.only_dq:
        launch(
            dkv_kernel(tiles.dkv, real),
            _n_blocks(p.k, tiles.dkv),
            tiles.dkv.threads,
            *strided(p.q, p.k, p.v, p.dy),
            p.lse,
            delta,
            *strided(p.dk, p.dv),
            scale,
            p.causal,
        )


def _kernels_for(q: Tensor) -> tuple[Any, Tiles]:
    """The accumulator's type and the cuts of the kernels."""
    real = float64 if q.dtype is dtypes.float64 else float32
    problem = Problem(padded_head(q.shape[3]), real, q.dtype.is_half)
    return real, choose("attention_tiles", problem)(problem)


def _n_blocks(t: Tensor, tile: Tile) -> int:
    """Blocks that cover the rows of `t`, for all heads and all parts of the columns."""
    n_batches, n_heads, n_rows = t.shape[:3]
    return n_batches * n_heads * blocks_for(n_rows, tile.threads) * (tile.head // tile.columns)


def strided(*tensors: Tensor) -> list[Array]:
    """As the kernels take them, dense or not, so that there is one compilation a dtype."""
    arrays = [t.array() for t in tensors]
    for a in arrays:
        a.layout = "A"
    return arrays

"""Attention on the tensor cores of sm_90: which problems, which form of numbers, how many blocks.

The copy engine wants addresses and steps that are multiples of 16 bytes; D is a multiple of 8, up
to 64. Anything else, and float32 in ieee precision, goes to the portable kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import types

from blutrain import dtypes
from blutrain.autograd.registry import variant
from blutrain.cuda_kernels.attention.dkv_sm90 import dkv_kernel_sm90
from blutrain.cuda_kernels.attention.dq_sm90 import dq_kernel_sm90
from blutrain.cuda_kernels.attention.forward_sm90 import forward_kernel_sm90
from blutrain.cuda_kernels.attention.operands_sm90 import HEAD, Form
from blutrain.cuda_kernels.attention.portable import strided
from blutrain.cuda_kernels.attention.problem import Backward, Forward
from blutrain.cuda_kernels.common import blocks_for, sm90_multiprocessors
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.ptx.scaled_halves import TILE
from blutrain.device import launch
from blutrain.device.half import HalfArray
from blutrain.precision import matmul_precision
from blutrain.tensor import Tensor, empty

FORMS = {
    "tf32x3": Form("float32", "f16", True),
    "tf32": Form("float32", "f16", False),
    "bf16": Form("float32", "bf16", False),
    "bfloat16": Form("bfloat16", "bf16", False),
    "float16": Form("float16", "f16", False),
}

BOX_BYTES = 128  # of a row of a box that the copy engine brings


def _form_name(q: Tensor) -> str:
    """How a tensor's numbers are multiplied in the precision in force."""
    return matmul_precision() if q.dtype is dtypes.float32 else q.dtype.name


def _readable(t: Tensor) -> bool:
    """Whether rows can be loaded 16 bytes at a time."""
    size = t.dtype.itemsize
    aligned = t.pointer % 16 == 0 and all(s >= 0 and s * size % 16 == 0 for s in t.strides[:3])
    return aligned and (t.strides[3] == 1 or t.shape[3] == 1)


def _applies(p: Forward | Backward) -> bool:
    """Whether these kernels can do it."""
    if not sm90_multiprocessors() or _form_name(p.q) not in FORMS or p.scale <= 0:
        return False
    size = p.q.shape[3]
    return size % 8 == 0 and size <= HEAD and all(map(_readable, (p.q, p.k, p.v)))


def _grid(kernel: Any, t: Tensor) -> tuple[int, int]:
    """(blocks, row blocks that a block takes at a time) for the resident rows of `t`."""
    n_matrices, n_blocks = t.shape[0] * t.shape[1], blocks_for(t.shape[2], kernel.rows)
    n_multiprocessors = sm90_multiprocessors()
    pairs = n_matrices * blocks_for(n_blocks, 2)
    n_parts = 2 if pairs >= n_multiprocessors else 1
    return min(n_multiprocessors, n_matrices * blocks_for(n_blocks, n_parts)), n_parts


def _map(t: Tensor) -> int:
    """The address of a tensor map for tiles of a (B, H, T, D) tensor, D the fastest."""
    from blutrain.device.cuda.tensor_map import tensor_map

    size = t.dtype.itemsize
    n_batches, n_heads, n_rows, n_columns = t.shape
    strides = tuple(s * size for s in (t.strides[2], t.strides[1], t.strides[0]))
    extents = (n_columns, n_rows, n_heads, n_batches)
    return tensor_map(t.pointer, t.dtype.name, extents, strides, (BOX_BYTES // size, TILE))


@variant("attention_forward", name="sm90", target="cuda", when=_applies)
def forward_sm90(p: Forward) -> None:
    """Launch the forward kernel."""
    kernel = forward_kernel_sm90(FORMS[_form_name(p.q)])
    grid, n_parts = _grid(kernel, p.q)
    (y,) = strided(p.y)
    launch(
        kernel, grid, kernel.threads, _map(p.q), _map(p.k), _map(p.v), y, p.lse, p.k.shape[2],
        np.float32(p.scale), p.causal, n_parts, shared=kernel.shared,
    )  # fmt: skip


@variant("attention_backward", name="sm90", target="cuda", when=_applies)
def backward_sm90(p: Backward) -> None:
    """Launch the kernel for dq and delta, then the one for dk and dv."""
    form = FORMS[_form_name(p.q)]
    delta = empty(p.lse.shape, p.lse.dtype)
    scale = np.float32(p.scale)
    dense_dy = p.dy if _readable(p.dy) else dense(p.dy)
    y, dy, dq, dk, dv = strided(p.y, dense_dy, p.dq, p.dk, p.dv)
    map_q, map_k, map_v, map_dy = (_map(t) for t in (p.q, p.k, p.v, dense_dy))
    kernel = dq_kernel_sm90(form)
    grid, n_parts = _grid(kernel, p.q)
    launch(
        kernel, grid, kernel.threads, map_q, map_dy, map_k, map_v, y, dy, p.lse, delta, dq,
        p.k.shape[2], scale, p.causal, n_parts, shared=kernel.shared,
    )  # fmt: skip
    if not p.only_dq:
        kernel = dkv_kernel_sm90(form)
        grid, n_parts = _grid(kernel, p.k)
        launch(
            kernel, grid, kernel.threads, map_k, map_v, map_q, map_dy, p.lse, delta, dk, dv,
            p.q.shape[2], scale, p.causal, n_parts, shared=kernel.shared,
        )  # fmt: skip


def kernels() -> Iterator[tuple[Any, tuple[types.Type, ...]]]:
    """Every kernel with the types of its arguments, to be compiled without a GPU."""
    vector = types.Array(types.float32, 3, "C")
    scalars = (types.int64, types.float32, types.boolean, types.int64)
    for form in FORMS.values():
        half = form.element != "float32"
        x = HalfArray(form.element, 4, "A") if half else types.Array(types.float32, 4, "A")
        maps = (types.int64,) * 4
        yield forward_kernel_sm90(form), (*maps[:3], x, vector, *scalars)
        yield dq_kernel_sm90(form), (*maps, x, x, vector, vector, x, *scalars)
        yield dkv_kernel_sm90(form), (*maps, vector, vector, x, x, *scalars)

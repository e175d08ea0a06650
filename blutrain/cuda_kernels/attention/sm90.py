"""Attention on the tensor cores of sm_90: which problems, which form of numbers, how many blocks.

The kernels load 16 bytes at a time, so heads lie at multiples of 16 bytes and D is a multiple of 8,
up to 64. Anything else, and float32 in ieee precision, goes to the portable kernels.
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
from blutrain.cuda_kernels.attention.operands_sm90 import BLOCK_ROWS, HEAD, THREADS, Form
from blutrain.cuda_kernels.attention.portable import strided
from blutrain.cuda_kernels.attention.problem import Backward, Forward
from blutrain.cuda_kernels.common import blocks_for, sm90_multiprocessors
from blutrain.cuda_kernels.elementwise.copy import dense
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


def form_of(q: Tensor) -> Form | None:
    """How a tensor's numbers are multiplied in the precision in force; None if not by these."""
    return FORMS.get(matmul_precision() if q.dtype is dtypes.float32 else q.dtype.name)


def _readable(t: Tensor) -> bool:
    """Whether rows can be loaded 16 bytes at a time."""
    size = t.dtype.itemsize
    aligned = t.pointer % 16 == 0 and all(s >= 0 and s * size % 16 == 0 for s in t.strides[:3])
    return aligned and (t.strides[3] == 1 or t.shape[3] == 1)


def _applies(p: Forward | Backward) -> bool:
    """Whether these kernels can do it."""
    if not sm90_multiprocessors() or form_of(p.q) is None or p.scale <= 0:
        return False
    size = p.q.shape[3]
    return size % 8 == 0 and size <= HEAD and all(map(_readable, (p.q, p.k, p.v)))


def _grid(t: Tensor) -> tuple[int, int]:
    """(blocks, row blocks that a block takes at a time) for the resident rows of `t`."""
    n_matrices, n_blocks = t.shape[0] * t.shape[1], blocks_for(t.shape[2], BLOCK_ROWS)
    n_multiprocessors = sm90_multiprocessors()
    pairs = n_matrices * blocks_for(n_blocks, 2)
    n_parts = 2 if pairs >= n_multiprocessors else 1
    return min(n_multiprocessors, n_matrices * blocks_for(n_blocks, n_parts)), n_parts


@variant("attention_forward", name="sm90", target="cuda", when=_applies)
def forward_sm90(p: Forward) -> None:
    """Launch the forward kernel."""
    kernel = forward_kernel_sm90(form_of(p.q))
    grid, n_parts = _grid(p.q)
    arrays = strided(p.q, p.k, p.v, p.y)
    scale = np.float32(p.scale)
    launch(kernel, grid, THREADS, *arrays, p.lse, scale, p.causal, n_parts, shared=kernel.shared)


@variant("attention_backward", name="sm90", target="cuda", when=_applies)
def backward_sm90(p: Backward) -> None:
    """Launch the kernel for dq and delta, then the one for dk and dv."""
    form = form_of(p.q)
    delta = empty(p.lse.shape, p.lse.dtype)
    scale = np.float32(p.scale)
    dy = p.dy if _readable(p.dy) else dense(p.dy)
    q, k, v, y, dy, dq, dk, dv = strided(p.q, p.k, p.v, p.y, dy, p.dq, p.dk, p.dv)
    kernel = dq_kernel_sm90(form)
    grid, n_parts = _grid(p.q)
    launch(
        kernel, grid, THREADS, q, k, v, y, dy, p.lse, delta, dq, scale, p.causal, n_parts,
        shared=kernel.shared,
    )  # fmt: skip
    if not p.only_dq:
        kernel = dkv_kernel_sm90(form)
        grid, n_parts = _grid(p.k)
        launch(
            kernel, grid, THREADS, q, k, v, dy, p.lse, delta, dk, dv, scale, p.causal, n_parts,
            shared=kernel.shared,
        )  # fmt: skip


def kernels() -> Iterator[tuple[Any, tuple[types.Type, ...]]]:
    """Every kernel with the types of its arguments, to be compiled without a GPU."""
    vector = types.Array(types.float32, 3, "C")
    scalars = (types.float32, types.boolean, types.int64)
    for form in FORMS.values():
        half = form.element != "float32"
        x = HalfArray(form.element, 4, "A") if half else types.Array(types.float32, 4, "A")
        yield forward_kernel_sm90(form), (x, x, x, x, vector, *scalars)
        yield dq_kernel_sm90(form), (x, x, x, x, x, vector, vector, x, *scalars)
        yield dkv_kernel_sm90(form), (x, x, x, x, vector, vector, x, x, *scalars)

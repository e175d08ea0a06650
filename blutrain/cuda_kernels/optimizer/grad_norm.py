r"""The Euclidean norm of many tensors taken as one vector, and scaling them all.

    norm = sqrt(Σ_k Σ_i x_ki²)

Each block sums the squares of one chunk (`tensor_table`), then one block sums the blocks' results:
two launches, in an order that depends on the sizes alone. The norm stays on the device, so that
nothing waits for it: a coefficient for clipping is made from it there,

    coefficient = min(1, max_norm / (norm + 1e-6))

(PyTorch's formula; nan and inf survive it), and an optimizer's step takes it as its `grad_scale`.

Bytes for n elements of size s: n s; scaling 2 n s. FLOPs: 2 n.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cuda, float32, float64

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, register
from blutrain.cuda_kernels.common import BLOCK, N_WARPS, block_sum
from blutrain.cuda_kernels.optimizer.tensor_table import (
    CHUNK,
    Rows,
    check_lists,
    run_over,
    tensor_table,
)
from blutrain.cuda_kernels.validate import check_floating
from blutrain.device import launch
from blutrain.device.pointer import array_at
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty, zeros


@functools.cache
def _norm_kernels(real: Any) -> tuple[Any, Any]:
    """The two kernels; shared memory needs the computing type `real`."""

    @cuda.jit
    def sum_of_squares_kernel(
        table,  # (n_tensors, 2): address, size
        chunks,  # (n_chunks, 2): tensor, first element
        like,  # any array of the tensors' dtype
        partial,  # (all chunks of all dtypes,)
        first_partial,
    ):
        """One block a chunk."""
        shared = cuda.shared.array(N_WARPS, real)
        tensor = chunks[cuda.blockIdx.x, 0]
        begin = chunks[cuda.blockIdx.x, 1]
        size = min(table[tensor, 1] - begin, CHUNK)
        x = array_at(table[tensor, 0], begin, size, like)
        total = real(0.0)
        for i in range(cuda.threadIdx.x, size, BLOCK):
            value = x[i]
            total += value * value
        total = block_sum(total, shared)
        if cuda.threadIdx.x == 0:
            partial[first_partial + cuda.blockIdx.x] = total

    @cuda.jit
    def norm_kernel(
        partial,  # (n,)
        norm,  # (1,)
    ):
        """One block: the root of the sum."""
        shared = cuda.shared.array(N_WARPS, real)
        total = real(0.0)
        for i in range(cuda.threadIdx.x, partial.size, BLOCK):
            total += partial[i]
        total = block_sum(total, shared)
        if cuda.threadIdx.x == 0:
            norm[0] = math.sqrt(total)

    return sum_of_squares_kernel, norm_kernel


@cuda.jit
def clip_coefficient_kernel(
    norm,  # (1,)
    coefficient,  # (1,)
    max_norm,
):
    """One thread."""
    one = type(max_norm)(1.0)
    ratio = max_norm / (norm[0] + type(max_norm)(1e-6))
    coefficient[0] = one if ratio > one else ratio  # in this order nan stays nan


@cuda.jit
def scale_kernel(
    table,  # (n_tensors, 2): address, size
    chunks,  # (n_chunks, 2): tensor, first element
    like,  # any array of the tensors' dtype
    factor,  # (1,)
):
    """One block a chunk: x *= factor."""
    tensor = chunks[cuda.blockIdx.x, 0]
    begin = chunks[cuda.blockIdx.x, 1]
    size = min(table[tensor, 1] - begin, CHUNK)
    x = array_at(table[tensor, 0], begin, size, like)
    for i in range(cuda.threadIdx.x, size, BLOCK):
        x[i] = x[i] * factor[0]


def clip_coefficient(norm: Tensor, max_norm: float) -> Tensor:
    """min(1, max_norm / (norm + 1e-6)) on the device, from a norm on the device.

    Example:
        >>> import blutrain as bt
        >>> from blutrain.cuda_kernels.optimizer.grad_norm import clip_coefficient
        >>> round(clip_coefficient(bt.tensor(4.0), 1.0).item(), 4)
        0.25
    """
    check_floating("clip_coefficient", "norm", norm)
    out = empty((), norm.dtype)
    maximum = norm.dtype.compute.type(max_norm)
    launch(clip_coefficient_kernel, 1, 1, norm.array(1), out.array(1), maximum)
    return out


def scale_tensors(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply every tensor in place by a factor that is on the device, in one launch a dtype."""

    def run(rows: Rows, places: list[int]) -> None:
        where = tensor_table(rows)
        like = rows[0][0]
        arrays = where.table, where.chunks, like.array(like.size), factor.array(1)
        launch(scale_kernel, where.n_chunks, BLOCK, *arrays)

    check_lists("scale_tensors", {"tensors": tensors})
    run_over([tensors], [0], run)


def reference(tensors: Sequence[np.ndarray]) -> np.ndarray:
    """NumPy, float64."""
    return np.asarray(np.sqrt(sum(((x**2).sum() for x in tensors), 0.0)))


def samples(rng: np.random.Generator) -> list[Sample]:
    """Nothing, one element, several shapes, more than a chunk."""

    def sample(*shapes: tuple[int, ...]) -> Sample:
        return Sample(inputs=([np.asarray(rng.normal(size=s)) for s in shapes],))

    return [
        sample((0,)),
        sample((1,)),
        sample((3, 5), (), (0, 2), (257,)),
        sample((CHUNK + 1,), (7,), (1 + int(rng.integers(0, 3 * CHUNK)),)),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    x = np.zeros((4, 6), np.float32)
    return [
        Invalid(([],), ShapeError, "grad_norm: tensors must hold at least one"),
        Invalid(([x.astype(np.int32)],), DTypeError, "grad_norm: tensors[0] must have a floating"),
    ]


def grad_norm(tensors: Sequence[Tensor | None]) -> Tensor:
    """The Euclidean norm of all tensors taken as one vector, on the device.

    Args:
        tensors: floating, of any shapes and dtypes; None counts as nothing.

    Returns:
        A scalar: float64 where all are float64, else float32.

    Raises:
        ShapeError: there is no tensor.
        DTypeError: one is not floating.

    Example:
        >>> import blutrain as bt
        >>> bt.grad_norm([bt.tensor([3.0, 0.0]), bt.tensor([[4.0]])]).item()
        5.0
    """
    given = [t for t in tensors if t is not None]
    if not given:
        raise ShapeError(message("grad_norm", "tensors must hold at least one", "none"))
    wide = all(t.dtype is dtypes.float64 for t in given)
    dtype = dtypes.float64 if wide else dtypes.float32
    squares, root = _norm_kernels(float64 if wide else float32)
    check_lists("grad_norm", {"tensors": given})
    groups: list[Rows] = []
    run_over([given], [], lambda rows, places: groups.append(rows))
    tables = [tensor_table(rows) for rows in groups]
    if not groups:
        return zeros((), dtype)
    partial, norm = empty((sum(t.n_chunks for t in tables),), dtype), empty((), dtype)
    first = 0
    for rows, where in zip(groups, tables, strict=True):
        like = rows[0][0].array(rows[0][0].size)
        launch(squares, where.n_chunks, BLOCK, where.table, where.chunks, like, partial, first)
        first += where.n_chunks
    launch(root, 1, BLOCK, partial, norm.array(1))
    return norm


register(
    Op(
        name="grad_norm",
        forward=lambda ctx, *tensors: grad_norm(tensors),
        backward=None,
        reference=reference,
        samples=samples,
        errors=errors,
        call=grad_norm,
        differentiable=False,
    )
)

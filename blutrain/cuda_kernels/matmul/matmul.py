r"""Matrix product, with NumPy's rules for batches and vectors.

Forward, for every matrix of the batch:

    y = a b          y_mn = Σ_k a_mk b_kn

Backward. y_mn depends on row m of a and column n of b, so with dy = dL/dy

    da_mk = Σ_n dy_mn b_kn, so da = dy bᵀ          db_kn = Σ_m a_mk dy_mn, so db = aᵀ dy

summed over the batch dimensions along which an operand was broadcast. Where b is one matrix and a
has a batch, the batch is more rows: one product in place of many, and db is summed inside it.

Shapes: a (..., M, K), b (..., K, N), y (..., M, N); a vector is a row on the left and a column on
the right, and its dimension is missing from y. Saved for backward: a and b as they are, no copies.
For each matrix 2 M N K FLOPs forward, 4 M N K backward; M K + K N + M N elements of compulsory
traffic.

The portable kernel is in `gemm.py`; on tensor cores those of `sm90.py` stand in for it, on the cpu
target NumPy's BLAS, for training's speed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blutrain.autograd.registry import Invalid, Op, Sample, apply, choose, register, variant
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.elementwise.copy import dense

# These register variants, each of which is tried before those that came earlier.
from blutrain.cuda_kernels.matmul import gemm_pipelined, sm90  # noqa: F401

# isort: split
from blutrain.cuda_kernels.matmul import few_rows  # noqa: F401
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.cuda_kernels.reduction.sum import sum_to_shape
from blutrain.cuda_kernels.validate import check_dtype, check_floating
from blutrain.device.stream import here
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Shape, Tensor, empty


def multiply(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> None:
    """Write op(a) op(b) + bias into `out` by the variant that fits; arguments as in `Problem`."""
    problem = Problem(a, b, out, bias, transpose_a, transpose_b)
    choose("matmul", problem)(problem)


def _blas_may(p: Problem) -> bool:
    """BLAS has no halves, and a graph can do again only what was launched."""
    return not p.out.dtype.is_half and here.capture is None


@variant("matmul", name="blas", target="cpu", when=_blas_may)
def blas(p: Problem) -> None:
    """NumPy's BLAS on the very memory."""
    a, b, out, bias, transpose_a, transpose_b = p
    if out.size == 0:
        return
    result = out.host()
    # inf and nan are results like others, as in the kernel: NumPy need not warn of them.
    with np.errstate(invalid="ignore", over="ignore"):
        np.matmul(_for_blas(a, transpose_a), _for_blas(b, transpose_b), out=result)
        if bias is not None:
            result += bias.host()


def _for_blas(t: Tensor, transpose: bool) -> np.ndarray[Any, Any]:
    """The matrices of `t` in a layout that BLAS takes: rows or columns dense.

    NumPy multiplies any other layout with three plain loops, so that is copied first.
    """
    x = t.host()
    row, col = t.strides[-2:]
    n_rows, n_cols = t.shape[-2:]
    if not ((col == 1 and row >= n_cols) or (row == 1 and col >= n_rows)):
        x = np.ascontiguousarray(x)
    return x.swapaxes(-1, -2) if transpose else x


def as_matrices(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors as matrices of one row or column, and a batch on one matrix as rows of one matrix."""
    if a.ndim == 1:
        a = reshaped(a, (1, *a.shape))
    if b.ndim == 1:
        b = reshaped(b, (*b.shape, 1))
    if b.ndim == 2 and a.ndim > 2:
        a = reshaped(a, (math.prod(a.shape[:-1]), a.shape[-1]))
    return a, b


def reshaped(t: Tensor, shape: Shape) -> Tensor:
    """The same elements in another shape, off the tape: a view where one exists."""
    if t.is_contiguous:
        return Tensor(t.storage, shape, None, t.offset, t.dtype)
    view = t.detach().as_shape(shape)
    return dense(t).detach().view(shape) if view is None else view


def matmul_forward(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """Launch the product and save the operands."""
    ctx.save(a, b)
    y = empty(_result_shape(a.shape, b.shape), a.dtype)
    a2, b2 = as_matrices(a, b)
    batch = _broadcast(a2.shape[:-2], b2.shape[:-2])
    multiply(a2, b2, reshaped(y, (*batch, a2.shape[-2], b2.shape[-1])))
    return y


def matmul_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """da = dy bᵀ and db = aᵀ dy, summed over broadcast dimensions."""
    a, b = ctx.saved
    a2, b2 = as_matrices(a, b)
    batch = _broadcast(a2.shape[:-2], b2.shape[:-2])
    dy2 = reshaped(dy, (*batch, a2.shape[-2], b2.shape[-1]))
    da = db = None
    if ctx.needs[0]:
        da2 = empty((*batch, *a2.shape[-2:]), a.dtype)
        multiply(dy2, b2, da2, transpose_b=True)
        da = reshaped(sum_to_shape(da2, a2.shape), a.shape)
    if ctx.needs[1]:
        db2 = empty((*batch, *b2.shape[-2:]), b.dtype)
        multiply(a2, dy2, db2, transpose_a=True)
        db = reshaped(sum_to_shape(db2, b2.shape), b.shape)
    return da, db


def _broadcast(a: Shape, b: Shape) -> Shape:
    """The batch that two batches broadcast to."""
    if a == b:
        return a
    return np.broadcast_shapes(a, b)


def _result_shape(a: Shape, b: Shape) -> Shape:
    """The shape of a b.

    Raises:
        ShapeError: the operands do not fit.
    """
    if not a or not b:
        name, shape = ("b", b) if a else ("a", a)
        do = "multiply by a scalar with *"
        raise ShapeError(message("matmul", f"{name} must have at least 1 dimension", shape, do))
    rows = b[-2] if len(b) > 1 else b[0]
    if a[-1] != rows:
        wrong = "the last extent of a must equal the second to last of b"
        raise ShapeError(message("matmul", wrong, f"{a} and {b}", "transpose one of them"))
    try:
        batch = _broadcast(a[:-2], b[:-2])
    except ValueError:
        wrong = "the batches of a and b must broadcast"
        raise ShapeError(message("matmul", wrong, f"{a[:-2]} and {b[:-2]}")) from None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """NumPy, float64."""
    y: np.ndarray = np.matmul(a, b)
    return y


def samples(rng: np.random.Generator) -> list[Sample]:
    """Edges of the tiles, vectors, batches broadcast either way, empty extents."""

    def sample(a: tuple[int, ...], b: tuple[int, ...], name: str = "") -> Sample:
        return Sample((rng.standard_normal(a), rng.standard_normal(b)), name=name)

    m, k, n = (int(i) for i in rng.integers(2, 90, 3))
    return [
        sample((m, k), (k, n)),
        sample((1, 1), (1, 1)),
        sample((130, 17), (17, 67), "more than one tile"),
        sample((3, 5), (5,), "matrix by vector"),
        sample((5,), (5, 3), "vector by matrix"),
        sample((7,), (7,), "vectors"),
        sample((2, 3, 4, 5), (5, 6), "a batch of rows"),
        sample((4, 5), (3, 5, 6), "one matrix by a batch"),
        sample((2, 1, 4, 5), (3, 5, 6), "both broadcast"),
        sample((2, 3, 2, 1, 2, 3), (1, 3, 1, 2, 3, 2), "a batch that cannot be merged"),
        sample((2, 4, 5), (2, 5, 3), "a batch"),
        sample((3, 0), (0, 4), "an empty sum"),
        sample((0, 3), (3, 4), "no rows"),
        sample((2, 2048), (2048, 3), "a long sum, in chunks"),
        sample((64, 65, 3), (64, 3, 66), "enough for large tiles"),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    return [
        Invalid(
            (a, a), ShapeError, "matmul: the last extent of a must equal the second to last of b"
        ),
        Invalid(
            (np.zeros((2, 2, 3), np.float32), np.zeros((3, 3, 4), np.float32)),
            ShapeError,
            "matmul: the batches of a and b must broadcast, got (2,) and (3,)",
        ),
        Invalid((a[0, 0], b), ShapeError, "matmul: a must have at least 1 dimension"),
        Invalid((a, b.astype(np.float64)), DTypeError, "matmul: b must have dtype bt.float32"),
        Invalid((a.astype(np.int32), b), DTypeError, "matmul: a must have a floating dtype"),
        Invalid((a, [1.0]), DTypeError, "matmul: b must be a tensor"),
    ]


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product, broadcast over leading dimensions.

    Args:
        a: (..., M, K) or (K,), floating.
        b: (..., K, N) or (K,), dtype of a.

    Returns:
        (..., M, N), without M where a is a vector and without N where b is one.

    Raises:
        ShapeError: the inner extents differ, or the batches do not broadcast.
        DTypeError: an operand is not floating, or they differ in dtype.

    Example:
        >>> import blutrain as bt
        >>> bt.matmul(bt.tensor([[1.0, 2.0], [3.0, 4.0]]), bt.tensor([1.0, -1.0])).numpy().tolist()
        [-1.0, -1.0]
    """
    check_floating("matmul", "a", a)
    check_floating("matmul", "b", b)
    check_dtype("matmul", "b", b, a.dtype)
    _result_shape(a.shape, b.shape)
    result: Tensor = apply("matmul", a, b)
    return result


MATMUL = register(
    Op(
        name="matmul",
        forward=matmul_forward,
        backward=matmul_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=matmul,
        launchers=("matmul",),
    )
)

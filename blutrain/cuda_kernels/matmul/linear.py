r"""A layer's affine map: every row of x times the weight, plus the bias.

Forward:  y = x Wᵀ + b            y_ro = Σ_i x_ri W_oi + b_o

Backward. Row r of y depends on row r of x, and every row on W and b, so with dy = dL/dy

    dx_ri = Σ_o dy_ro W_oi, so dx = dy W
    dW_oi = Σ_r dy_ro x_ri, so dW = dyᵀ x
    db_o  = Σ_r dy_ro

The bias is added while a tile of y is still in registers, so it costs no traffic of its own. db is
summed in stages of fixed order: chunks of 32 rows, then chunks of those sums.

Shapes: x (..., I), W (O, I), b (O,), y (..., O); R rows in all. Saved for backward: x and W as they
are. FLOPs: 2 R I O forward, 4 R I O backward. Compulsory traffic: R I + I O + R O elements forward,
twice that and R O for db backward.

Source: the layout of W is PyTorch's, so that both operands' rows are dense along the sum.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, uint32

from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.matmul.matmul import multiply, reshaped
from blutrain.cuda_kernels.validate import check_dtype, check_floating, check_shape
from blutrain.device import launch
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty, zeros

# Rows that one thread adds up: enough work a thread, few enough that a GPU has many blocks.
ROWS = 32
# Rows between two barriers: that many loads are under way at a time.
GROUP = 8


@cuda.jit
def linear_backward_db_kernel(
    dy,  # (n_rows, n_cols)
    total,  # (n_chunks, n_cols), one row for every ROWS rows of dy
):
    """One thread a column and chunk: db = Σ dy over the chunk's rows.

    Neighbouring threads read neighbouring columns. Nothing is shared: the barriers keep the block's
    warps on the same rows, and on the processor they put the rows outside and the columns inside,
    where a vector holds neighbouring ones.
    """
    n_rows, n_cols = dy.shape
    n_chunks = total.shape[0]
    chunk = uint32(cuda.blockIdx.x % n_chunks)
    col0 = uint32(cuda.blockIdx.x // n_chunks * BLOCK)
    col = col0 + cuda.threadIdx.x
    row0 = chunk * ROWS
    db = float32(0.0)
    if row0 + ROWS <= n_rows:
        for row in range(row0, row0 + ROWS, GROUP):
            if col < n_cols:
                for r in range(GROUP):
                    db += dy[uint32(row + r), col]
            cuda.syncthreads()
    else:
        for row in range(row0, n_rows):
            if col < n_cols:
                db += dy[uint32(row), col]
            cuda.syncthreads()
    if col < n_cols:
        total[chunk, col] = db


def linear_forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Launch the product with the bias in its epilogue; save x and the weight."""
    ctx.save(x, weight)
    n_out, n_in = weight.shape
    n_rows = math.prod(x.shape[:-1])
    y = empty((*x.shape[:-1], n_out), x.dtype)
    rows = Tensor(y.storage, (n_rows, n_out), None, 0, y.dtype)
    multiply(reshaped(x, (n_rows, n_in)), weight, rows, bias, transpose_b=True)
    return y


def linear_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx = dy W, dW = dyᵀ x, db = column sums of dy."""
    x, weight = ctx.saved
    n_out, n_in = weight.shape
    n_rows = math.prod(x.shape[:-1])
    dy = reshaped(dy, (n_rows, n_out))
    dx = dw = db = None
    if ctx.needs[0]:
        dx = empty(x.shape, x.dtype)
        multiply(dy, weight, Tensor(dx.storage, (n_rows, n_in), None, 0, dx.dtype))
    if ctx.needs[1]:
        dw = empty(weight.shape, weight.dtype)
        multiply(dy, reshaped(x, (n_rows, n_in)), dw, transpose_a=True)
    if ctx.needs[2]:
        db = _column_sum(dy)
    return dx, dw, db


def _column_sum(dy: Tensor) -> Tensor:
    """(n_rows, n_cols) → (n_cols,): sums of ROWS rows, then sums of those, until one is left."""
    rows = dense(dy)
    n_rows, n_cols = dy.shape
    if not dy.size:
        return zeros((n_cols,), dy.dtype)
    while True:
        n_chunks = blocks_for(n_rows, ROWS)
        total = empty((n_chunks, n_cols), dy.dtype if n_chunks == 1 else dy.dtype.compute)
        launch(linear_backward_db_kernel, blocks_for(n_cols) * n_chunks, BLOCK, rows, total)
        if n_chunks == 1:
            return reshaped(total, (n_cols,))
        rows, n_rows = total, n_chunks


def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """NumPy, float64."""
    y: np.ndarray = x @ weight.T
    return y if bias is None else y + bias


def samples(rng: np.random.Generator) -> list[Sample]:
    """Edges of the tiles and of the chunks of rows, with and without a bias, empty extents."""

    def sample(x: tuple[int, ...], n_out: int, bias: bool = True, name: str = "") -> Sample:
        weight = rng.standard_normal((n_out, x[-1]))
        vector = rng.standard_normal(n_out) if bias else None
        return Sample((rng.standard_normal(x), weight, vector), name=name)

    r, i, o = (int(v) for v in rng.integers(2, 70, 3))
    return [
        sample((r, i), o),
        sample((1, 1), 1),
        sample((7,), 3, name="one row, a vector"),
        sample((2, 5, 4), 6, bias=False, name="no bias"),
        sample((65, 9), 130, name="more than one tile"),
        sample((97, 3), 257, name="more than one block of columns, chunks of rows"),
        sample((0, 4), 3, name="no rows"),
        sample((3, 0), 2, name="an empty sum"),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    x, w, b = np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32), np.zeros(4, np.float32)
    return [
        Invalid((x, w.T, b), ShapeError, "linear: weight must have shape (out, 3), got (3, 4)"),
        Invalid((x, w[0], b), ShapeError, "linear: weight must have shape (out, 3), got (3,)"),
        Invalid((x, w, b[:3]), ShapeError, "linear: bias must have shape (4,), got (3,)"),
        Invalid((x[0, 0], w, b), ShapeError, "linear: x must have at least 1 dimension"),
        Invalid(
            (x, w.astype(np.float64), b), DTypeError, "linear: weight must have dtype bt.float32"
        ),
        Invalid((x.astype(np.int64), w, b), DTypeError, "linear: x must have a floating dtype"),
    ]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias.

    Args:
        x: (..., I), floating.
        weight: (O, I), dtype of x.
        bias: (O,), dtype of x, or None for none.

    Returns:
        (..., O), dtype of x.

    Raises:
        ShapeError: the last extents of x and weight differ, or bias does not fit weight.
        DTypeError: x is not floating, or weight or bias has another dtype.

    Example:
        >>> import blutrain as bt
        >>> x, weight = bt.tensor([[1.0, 2.0]]), bt.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 1.0]])
        >>> bt.linear(x, weight, bt.tensor([0.5, 0.0, 0.0])).numpy().tolist()
        [[11.5, 17.0, 2.0]]
    """
    check_floating("linear", "x", x)
    check_floating("linear", "weight", weight)
    if x.ndim == 0:
        raise ShapeError(message("linear", "x must have at least 1 dimension", x.shape))
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        do = "pass a weight of one row an output"
        wrong = f"weight must have shape (out, {x.shape[-1]})"
        raise ShapeError(message("linear", wrong, weight.shape, do))
    check_dtype("linear", "weight", weight, x.dtype)
    if bias is not None:
        check_floating("linear", "bias", bias)
        check_shape("linear", "bias", bias, weight.shape[:1])
        check_dtype("linear", "bias", bias, x.dtype)
    result: Tensor = apply("linear", x, weight, bias)
    return result


LINEAR = register(
    Op(
        name="linear",
        forward=linear_forward,
        backward=linear_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=linear,
        launchers=("matmul",),
    )
)

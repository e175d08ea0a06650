r"""Attention of a sequence to itself, straight from the projection that makes q, k and v.

    qkv (B, T, 3 C), C = H D:  q = columns 0..C, k = C..2C, v = 2C..3C, each H heads of D

The kernels are those of `attention.py`, and so are the mathematics: q, k and v are views of `qkv`,
y is written with its heads side by side, (B, T, C), and the gradients go to their places in one
tensor like `qkv`. So nothing is split, transposed or put together again in memory.

FLOPs: forward 4 B T² C, backward 14 B T² C, half of it when causal. Bytes: qkv, y, dy and dqkv
once, keys and values again for every block of queries. Saved for backward: qkv, y, and B H T more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blutrain.autograd.registry import Invalid, Op, Sample, apply, choose, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.attention.attention import reference as attention_reference
from blutrain.cuda_kernels.attention.problem import Backward, Forward
from blutrain.cuda_kernels.attention.tiles import HEADS
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.validate import check_floating
from blutrain.errors import ShapeError, message
from blutrain.tensor import Tensor, empty


def self_attention_forward(
    ctx: Context, qkv: Tensor, n_heads: int, causal: bool, scale: float
) -> Tensor:
    """Launch the forward kernel; save what the scores are computed from again."""
    qkv = dense(qkv)
    b, t, c3 = qkv.shape
    y = empty((b, t, c3 // 3), qkv.dtype)
    lse = empty((b, n_heads, t), qkv.dtype.compute)
    if y.size:
        q, k, v = _heads(qkv, n_heads, 3)
        (y_heads,) = _heads(y, n_heads, 1)
        problem = Forward(q, k, v, y_heads, lse, scale, causal)
        choose("attention_forward", problem)(problem)
    ctx.save(qkv, y, lse)
    ctx.n_heads, ctx.causal, ctx.scale = n_heads, causal, scale
    return y


def self_attention_backward(ctx: Context, dy: Tensor) -> tuple[Tensor]:
    """Launch the kernels for the three gradients, which are parts of one tensor."""
    qkv, y, lse = ctx.saved
    n_heads = ctx.n_heads
    dqkv = empty(qkv.shape, qkv.dtype)
    if qkv.size:
        q, k, v = _heads(qkv, n_heads, 3)
        dq, dk, dv = _heads(dqkv, n_heads, 3)
        (y_heads,), (dy_heads,) = _heads(y, n_heads, 1), _heads(dense(dy), n_heads, 1)
        problem = Backward(
            q, k, v, y_heads, lse, ctx.scale, ctx.causal, dy_heads, dq, dk, dv, only_dq=False
        )
        choose("attention_backward", problem)(problem)
    return (dqkv,)


def _heads(x: Tensor, n_heads: int, n_parts: int) -> list[Tensor]:
    """The parts of the columns of a dense (B, T, parts C), each seen as (B, H, T, D)."""
    b, t, width = x.shape
    c = width // n_parts
    d = c // n_heads
    strides = (t * width, d, width, 1)
    return [
        Tensor(x.storage, (b, n_heads, t, d), strides, x.offset + part * c, x.dtype)
        for part in range(n_parts)
    ]


def reference(
    qkv: np.ndarray, n_heads: int, causal: bool = True, scale: float | None = None
) -> np.ndarray:
    """NumPy, float64, by way of `attention`'s."""
    b, t, c3 = qkv.shape
    if not qkv.size:
        return np.zeros((b, t, c3 // 3))
    parts = qkv.reshape(b, t, 3, n_heads, c3 // 3 // n_heads).transpose(2, 0, 3, 1, 4)
    y = attention_reference(parts[0], parts[1], parts[2], causal, scale)
    joined: np.ndarray = y.transpose(0, 2, 1, 3).reshape(b, t, c3 // 3)
    return joined


def samples(rng: np.random.Generator) -> list[Sample]:
    """One and more heads, more than one block, empty extents."""

    def sample(b: int, t: int, n_heads: int, d: int, name: str = "", **params: Any) -> Sample:
        qkv = rng.standard_normal((b, t, 3 * n_heads * d))
        return Sample((qkv,), {"n_heads": n_heads, **params}, None, name)

    t = int(rng.integers(2, 40))
    return [
        sample(2, t, 2, 8),
        sample(1, 1, 1, 1, name="one position"),
        sample(1, 70, 2, 8, name="more than one block"),
        sample(1, 9, 3, 4, causal=False, scale=0.3),
        sample(0, 3, 2, 4, name="empty batch"),
        sample(1, 0, 2, 4, name="no positions"),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    qkv = np.zeros((1, 2, 12), np.float32)
    wide = np.zeros((1, 1, 3 * 200), np.float32)
    return [
        Invalid(
            (qkv[0],), ShapeError, "self_attention: qkv must have shape (B, T, 3 C)",
            params={"n_heads": 2},
        ),
        Invalid(
            (qkv,), ShapeError, "self_attention: qkv must have 3 n_heads D columns",
            params={"n_heads": 3},
        ),
        Invalid(
            (wide,), ShapeError, "self_attention: the head size must be at most 128",
            params={"n_heads": 1},
        ),
    ]  # fmt: skip


def self_attention(
    qkv: Tensor, n_heads: int, causal: bool = True, scale: float | None = None
) -> Tensor:
    """Attention of each position to the sequence (causal: to itself and what is before).

    Args:
        qkv: (B, T, 3 C), floating: queries, keys and values side by side, the heads within each.
        n_heads: heads; C is a multiple of it, D = C / n_heads at most 128.
        causal: whether a position sees no later one.
        scale: factor on the scores; 1/√D when None.

    Returns:
        (B, T, C), dense, dtype of qkv.

    Raises:
        ShapeError: the shape does not fit, or D is above 128.
        DTypeError: qkv is not floating.

    Example:
        >>> import blutrain as bt
        >>> qkv = bt.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]])  # all scores are 0
        >>> bt.self_attention(qkv, n_heads=1).numpy().ravel().tolist()
        [1.0, 2.0]
    """
    check_floating("self_attention", "qkv", qkv)
    if qkv.ndim != 3:
        raise ShapeError(message("self_attention", "qkv must have shape (B, T, 3 C)", qkv.shape))
    width = qkv.shape[2]
    if n_heads < 1 or width % (3 * n_heads):
        wrong = "qkv must have 3 n_heads D columns"
        raise ShapeError(message("self_attention", wrong, f"{width} with {n_heads} heads"))
    size = width // (3 * n_heads)
    if size > HEADS[-1]:
        wrong = f"the head size must be at most {HEADS[-1]}"
        raise ShapeError(message("self_attention", wrong, size, "use more, smaller heads"))
    factor = (size**-0.5 if size else 1.0) if scale is None else float(scale)
    result: Tensor = apply(
        "self_attention", qkv, n_heads=n_heads, causal=bool(causal), scale=factor
    )
    return result


SELF_ATTENTION = register(
    Op(
        name="self_attention",
        forward=self_attention_forward,
        backward=self_attention_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=self_attention,
        launchers=("attention_forward", "attention_backward", "attention_tiles"),
    )
)

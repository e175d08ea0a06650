r"""Scaled dot-product attention, without a matrix of scores in memory.

Forward, for every head (and its batch), with c = scale, 1/√D unless given:

    s_ij = c Σ_d q_id k_jd           p_ij = exp(s_ij) / Σ_j' exp(s_ij')        y_id = Σ_j p_ij v_jd

j runs over all keys, or with `causal` over j ≤ i + Tk - Tq: the last query sees every key. Keys
come in chunks. A row keeps the largest score so far m, l = Σ_j exp(s_ij - m) and
o = Σ_j exp(s_ij - m) v_j; where a chunk brings a larger m', the sums so far are multiplied by
exp(m - m'). In the end y = o / l, and lse_i = m + log l is saved: with it
p_ij = exp(s_ij - lse_i) can be had again from one score.

Backward. With dy = dL/dy and dp_ij = dL/dp_ij = Σ_d dy_id v_jd,

    dv_jd = Σ_i p_ij dy_id
    ds_ij = p_ij (dp_ij - Σ_j' p_ij' dp_ij') = p_ij (dp_ij - delta_i),      delta_i = Σ_d dy_id y_id
    dq_id = c Σ_j ds_ij k_jd         dk_jd = c Σ_i ds_ij q_id

(the sum over j' is delta_i because Σ_j' p_ij' Σ_d dy_id v_j'd = Σ_d dy_id y_id). One kernel gives
each thread queries and sums dq over the keys, one gives each thread keys and sums dk and dv over
the queries; both compute the scores again. No atomics: the same inputs give the same bits.

Shapes: q, y (B, H, Tq, D); k, v (B, H, Tk, D); any strides, so that q, k and v may be views of one
projection. Saved for backward: q, k, v, y and lse, 1/D of the size of y.
FLOPs: forward 4 B H Tq Tk D, backward 14 B H Tq Tk D (scores and dp are computed twice), half of it
when causal. Bytes: q, k, v, y once each, and k and v again for every block of queries.

Source: Dao, "FlashAttention-2", 2023, algorithms 1 and 2; Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, choose, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.attention import portable, sm90  # noqa: F401  they register variants
from blutrain.cuda_kernels.attention.problem import Backward, Forward
from blutrain.cuda_kernels.attention.tiles import HEADS
from blutrain.cuda_kernels.validate import check_dtype, check_floating, check_shape
from blutrain.dtypes import DType
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty, zeros


def attention_forward(
    ctx: Context, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
) -> Tensor:
    """Launch the forward kernel; save what the scores are computed from again."""
    y = _laid_out_as(q)
    lse = empty(q.shape[:3], q.dtype.compute)
    if y.size:
        problem = Forward(q, k, v, y, lse, scale, causal)
        choose("attention_forward", problem)(problem)
    ctx.save(q, k, v, y, lse)
    ctx.causal, ctx.scale = causal, scale
    return y


def attention_backward(
    ctx: Context, dy: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Launch the kernels for dq and delta, and for dk and dv."""
    q, k, v, y, lse = ctx.saved
    dq, dk, dv = _laid_out_as(q), _laid_out_as(k), _laid_out_as(v)
    if not q.size:
        return dq, zeros(k.shape, k.dtype), zeros(v.shape, v.dtype)
    only_dq = not (ctx.needs[1] or ctx.needs[2])
    problem = Backward(
        q, k, v, y, lse, ctx.scale, ctx.causal, dy=dy, dq=dq, dk=dk, dv=dv, only_dq=only_dq
    )
    choose("attention_backward", problem)(problem)
    return dq, dk, dv


def _laid_out_as(t: Tensor) -> Tensor:
    """A new tensor like `t`, its heads inside its positions in memory where those of `t` are.

    For a view of a packed projection that is (B, T, H, D): merging the heads is then a view too.
    """
    n_heads, n_rows, size = t.shape[1:]
    out = empty(t.shape, t.dtype)
    if t.strides[1] >= t.strides[2]:
        return out
    strides = (n_rows * n_heads * size, size, n_heads * size, 1)
    return Tensor(out.storage, t.shape, strides, 0, t.dtype)


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = True,
    scale: float | None = None,
) -> np.ndarray:
    """NumPy, float64, with the whole matrix of scores."""
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        n_queries, n_keys = scores.shape[-2:]
        seen = np.tril(np.ones((n_queries, n_keys), bool), n_keys - n_queries)
        scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y: np.ndarray = p / p.sum(-1, keepdims=True) @ v
    return y


def samples(rng: np.random.Generator) -> list[Sample]:
    """Edges of blocks and chunks, each padded head size, lengths that differ, empty extents."""

    def sample(
        b: int,
        h: int,
        tq: int,
        d: int,
        tk: int | None = None,
        name: str = "",
        dtypes: tuple[DType, ...] | None = None,
        **params: Any,
    ) -> Sample:
        kv = (b, h, tq if tk is None else tk, d)
        shapes = ((b, h, tq, d), kv, kv)
        arrays = tuple(rng.standard_normal(s) for s in shapes)
        return Sample(arrays, params, dtypes, name)

    t, d = int(rng.integers(2, 60)), int(rng.integers(2, 32))
    return [
        sample(2, 2, t, d),
        sample(1, 1, 1, 1, name="one position"),
        sample(1, 2, 70, 8, name="more than one block"),
        sample(1, 1, 33, 16, causal=False),
        sample(1, 1, 5, 4, tk=9, causal=False, scale=0.3, name="more keys than queries"),
        sample(1, 1, 5, 4, tk=70, name="causal, more keys than queries"),
        sample(1, 1, 9, 4, tk=3, causal=False, name="fewer keys than queries"),
        sample(1, 1, 9, 40, name="padded to 64", dtypes=(dtypes.float32, dtypes.float64)),
        sample(1, 1, 9, 100, name="padded to 128, in parts", dtypes=(dtypes.float32,)),
        sample(0, 2, 3, 4, name="empty batch"),
        sample(1, 1, 0, 4, tk=3, name="no queries"),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    q = np.zeros((1, 2, 3, 4), np.float32)
    wide = np.zeros((1, 1, 1, 200), np.float32)
    return [
        Invalid(
            (q[0], q, q), ShapeError, "attention: q must have shape (B, H, T, D), got (2, 3, 4)"
        ),
        Invalid((q, q[:, :1], q), ShapeError, "attention: k must have shape (1, 2, Tk, 4)"),
        Invalid((q, q, q[:, :, :2]), ShapeError, "attention: v must have shape (1, 2, 3, 4)"),
        Invalid((q, q[:, :, :2], q[:, :, :2]), ShapeError, "attention: k must be as long as q"),
        Invalid((q, q[:, :, :0], q[:, :, :0]), ShapeError, "attention: k must have a position"),
        Invalid((wide, wide, wide), ShapeError, "attention: the head size must be at most 128"),
        Invalid(
            (q, q.astype(np.float64), q), DTypeError, "attention: k must have dtype bt.float32"
        ),
        Invalid((q.astype(np.int32), q, q), DTypeError, "attention: q must have a floating dtype"),
    ]


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = True, scale: float | None = None
) -> Tensor:
    """softmax(scale q kᵀ) v for every head, without the matrix of scores.

    Args:
        q: (B, H, Tq, D), floating, any strides; D up to 128.
        k: (B, H, Tk, D), dtype of q.
        v: (B, H, Tk, D), dtype of q.
        causal: whether query i sees only the keys up to i + Tk - Tq.
        scale: factor on the scores; 1/√D when None.

    Returns:
        (B, H, Tq, D), dtype of q; in memory its dimensions lie in the order that q's lie in.

    Raises:
        ShapeError: the shapes do not fit, D is above 128, there is no key, or `causal` with fewer
            keys than queries.
        DTypeError: q is not floating, or k or v has another dtype.

    Example:
        >>> import blutrain as bt
        >>> q = k = bt.zeros((1, 1, 2, 1))
        >>> v = bt.tensor([[[[1.0], [3.0]]]])
        >>> bt.attention(q, k, v).numpy().ravel().tolist()  # the second query sees both
        [1.0, 2.0]
    """
    check_floating("attention", "q", q)
    if q.ndim != 4:
        raise ShapeError(message("attention", "q must have shape (B, H, T, D)", q.shape))
    check_floating("attention", "k", k)
    check_floating("attention", "v", v)
    n_batches, n_heads, n_queries, size = q.shape
    if k.ndim != 4 or k.shape[:2] != q.shape[:2] or k.shape[3] != size:
        wrong = f"k must have shape ({n_batches}, {n_heads}, Tk, {size})"
        raise ShapeError(message("attention", wrong, k.shape))
    check_shape("attention", "v", v, k.shape)
    check_dtype("attention", "k", k, q.dtype)
    check_dtype("attention", "v", v, q.dtype)
    if size > HEADS[-1]:
        wrong = f"the head size must be at most {HEADS[-1]}"
        raise ShapeError(message("attention", wrong, size, "use more, smaller heads"))
    n_keys = k.shape[2]
    if n_keys == 0:
        raise ShapeError(message("attention", "k must have a position", k.shape))
    if causal and n_keys < n_queries:
        wrong = "k must be as long as q or longer when causal"
        raise ShapeError(message("attention", wrong, k.shape, "pass causal=False"))
    factor = (size**-0.5 if size else 1.0) if scale is None else float(scale)
    result: Tensor = apply("attention", q, k, v, causal=bool(causal), scale=factor)
    return result


ATTENTION = register(
    Op(
        name="attention",
        forward=attention_forward,
        backward=attention_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=attention,
        launchers=("attention_forward", "attention_backward", "attention_tiles"),
    )
)

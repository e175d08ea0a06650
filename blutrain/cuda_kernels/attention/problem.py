"""Attention's forward and backward pass, as every variant of the kernels is asked for them."""

from __future__ import annotations

from typing import NamedTuple

from blutrain.tensor import Tensor


class Forward(NamedTuple):
    """y = softmax(scale q kᵀ) v and the scores' log-sum-exps.

    Attributes:
        q: (B, H, Tq, D), any strides, as all of them.
        k: (B, H, Tk, D).
        v: (B, H, Tk, D).
        y: (B, H, Tq, D), written.
        lse: (B, H, Tq), written, of the dtype that q is computed in.
        scale: factor on the scores.
        causal: whether query i sees only the keys up to i + Tk - Tq.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    y: Tensor
    lse: Tensor
    scale: float
    causal: bool


class Backward(NamedTuple):
    """The gradients of q, k and v.

    Attributes:
        q, k, v, y, lse, scale, causal: as of `Forward`.
        dy: (B, H, Tq, D), any strides.
        dq: (B, H, Tq, D), written.
        dk: (B, H, Tk, D), written unless only dq is wanted.
        dv: (B, H, Tk, D), likewise.
        only_dq: whether k and v need no gradient.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    y: Tensor
    lse: Tensor
    scale: float
    causal: bool
    dy: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    only_dq: bool

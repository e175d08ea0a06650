"""Printing tensors as NumPy prints arrays."""

from __future__ import annotations

import numpy as np

from blutrain.dtypes import bool_, float32, int64
from blutrain.tensor import Tensor

_UNSAID = (float32, int64, bool_)


def as_text(t: Tensor) -> str:
    """`tensor([[1., 2.]])`, with the dtype where it is not the usual one of its kind.

    Example:
        >>> import blutrain as bt
        >>> bt.tensor([[1.0, -2.5]], requires_grad=True)
        tensor([[ 1. , -2.5]], requires_grad=True)
        >>> bt.zeros(2, dtype="int8")
        tensor([0, 0], dtype=int8)
    """
    values = t.detach().numpy()
    body = np.array2string(values, separator=", ", prefix="tensor(")
    if not t.size and t.shape != (0,):
        body += f", shape={t.shape}"
    if t.dtype not in _UNSAID or not t.size:
        body += f", dtype={t.dtype.name}"
    if t.requires_grad:
        body += ", requires_grad=True" if t.node is None else f", from={t.node.name}"
    return f"tensor({body})"

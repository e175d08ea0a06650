"""One matrix product, as every variant of the kernel is asked for it."""

from __future__ import annotations

from typing import NamedTuple

from blutrain.tensor import Tensor


class Problem(NamedTuple):
    """out = op(a) op(b) + bias.

    Attributes:
        a: (..., M, K), or (..., K, M) with transpose_a; any strides.
        b: (..., K, N), or (..., N, K) with transpose_b; any strides.
        out: (..., M, N), any strides; the batches of a and b are broadcast to its batch.
        bias: (N,), added to every row.
        transpose_a: read a with its last two dimensions swapped.
        transpose_b: likewise b.
    """

    a: Tensor
    b: Tensor
    out: Tensor
    bias: Tensor | None = None
    transpose_a: bool = False
    transpose_b: bool = False

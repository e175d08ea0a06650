"""Normalisation over the last axis: LayerNorm, RMSNorm."""

from __future__ import annotations

from typing import Any

from blutrain import dtypes, ops
from blutrain.nn.module import Module
from blutrain.nn.parameter import Parameter
from blutrain.tensor import Tensor


class LayerNorm(Module):
    """Rows shifted to mean 0 and scaled to variance 1, then scaled and shifted by what is learned.

    Args:
        n: the last extent.
        eps: added to the variance.
        bias: whether the learned shift is learned, or stays zero.
        dtype: of the parameters.

    Example:
        >>> import blutrain as bt
        >>> LayerNorm(4)(bt.ones((2, 4))).tolist()[0]
        [0.0, 0.0, 0.0, 0.0]
    """

    def __init__(
        self, n: int, eps: float = 1e-5, bias: bool = True, dtype: Any = dtypes.float32
    ) -> None:
        self.weight = Parameter(ops.ones((n,), dtype))
        shift = ops.zeros((n,), dtype)
        if bias:
            self.bias: Tensor = Parameter(shift)
        else:
            self.register_buffer("bias", shift)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # (..., n) → (..., n)
        """Normalise the rows."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def extra(self) -> str:
        """Size, for `repr`."""
        return f"{self.weight.shape[0]}"


class RMSNorm(Module):
    """Rows scaled to a root mean square of 1, then scaled by what is learned.

    Args:
        n: the last extent.
        eps: added to the mean square.
        dtype: of the parameters.

    Example:
        >>> import blutrain as bt
        >>> RMSNorm(2, eps=0.0)(bt.full((1, 2), 3.0)).tolist()
        [[1.0, 1.0]]
    """

    def __init__(self, n: int, eps: float = 1e-6, dtype: Any = dtypes.float32) -> None:
        self.weight = Parameter(ops.ones((n,), dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # (..., n) → (..., n)
        """Normalise the rows."""
        return ops.rms_norm(x, self.weight, self.eps)

    def extra(self) -> str:
        """Size, for `repr`."""
        return f"{self.weight.shape[0]}"

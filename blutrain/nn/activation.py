"""Layers without parameters: GELU, ReLU, SiLU, Sigmoid, Tanh, Dropout."""

from __future__ import annotations

from blutrain import ops
from blutrain.errors import ShapeError, message
from blutrain.nn.module import Module
from blutrain.tensor import Tensor


class GELU(Module):
    """x Φ(x), by the error function or, as GPT-2 does, by tanh.

    Args:
        approximate: "none" or "tanh".
    """

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return ops.gelu(x, approximate=self.approximate)

    def extra(self) -> str:
        """The form, for `repr`."""
        return f"approximate={self.approximate!r}"


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return ops.relu(x)


class SiLU(Module):
    """x · sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return ops.silu(x)


class Sigmoid(Module):
    """1 / (1 + e⁻ˣ)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return ops.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return ops.tanh(x)


class Dropout(Module):
    """In training, zeroes elements with probability p and scales the rest by 1/(1-p).

    Args:
        p: the probability, in [0, 1).

    Raises:
        ShapeError: p is out of range.

    Example:
        >>> import blutrain as bt
        >>> Dropout(0.5).eval()(bt.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise ShapeError(message("Dropout", "p must be in [0, 1)", p))
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements, in training."""
        if self.p == 0 or not self.training:
            return x
        return ops.dropout(x, self.p)

    def extra(self) -> str:
        """The probability, for `repr`."""
        return f"{self.p}"

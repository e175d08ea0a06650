"""Layers that look up or multiply: Linear, Embedding."""

from __future__ import annotations

from typing import Any

from blutrain import dtypes, ops
from blutrain.nn import init
from blutrain.nn.module import Module
from blutrain.nn.parameter import Parameter
from blutrain.tensor import Tensor


class Linear(Module):
    """y = x Wᵀ + b.

    Args:
        n_in: inputs, the last extent of x.
        n_out: outputs.
        bias: whether there is a b.
        weight_init: the first weights; uniform within 1/√n_in when left out.
        dtype: of the parameters.

    Example:
        >>> import blutrain as bt
        >>> Linear(3, 5)(bt.ones((2, 3))).shape
        (2, 5)
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        bias: bool = True,
        weight_init: init.Initialiser | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        kind = dtypes.as_dtype(dtype)
        chosen = weight_init or init.fan_in_uniform()
        self.weight = Parameter(chosen((n_out, n_in), kind))
        # A given initialiser is for weights; biases then start at zero, as in GPT-2.
        bias_init = init.zeros() if weight_init else init.uniform(n_in**-0.5)
        self.bias = Parameter(bias_init((n_out,), kind)) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # (..., n_in) → (..., n_out)
        """Apply the layer."""
        return ops.linear(x, self.weight, self.bias)

    def extra(self) -> str:
        """Sizes, for `repr`."""
        n_out, n_in = self.weight.shape
        return f"{n_in}, {n_out}" + ("" if self.bias is not None else ", bias=False")


class Embedding(Module):
    """A table of vectors, one a token.

    Args:
        n_tokens: rows.
        n_embd: size of a vector.
        weight_init: the first vectors; standard normal when left out.
        dtype: of the table.

    Example:
        >>> import blutrain as bt
        >>> Embedding(10, 4)(bt.tensor([[1, 2, 3]])).shape
        (1, 3, 4)
    """

    def __init__(
        self,
        n_tokens: int,
        n_embd: int,
        weight_init: init.Initialiser | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        chosen = weight_init or init.normal()
        self.weight = Parameter(chosen((n_tokens, n_embd), dtypes.as_dtype(dtype)))

    def forward(self, indices: Tensor) -> Tensor:  # (...) integers → (..., n_embd)
        """The vectors of these tokens."""
        return ops.embedding(indices, self.weight)

    def extra(self) -> str:
        """Sizes, for `repr`."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"

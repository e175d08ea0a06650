"""The two halves of a transformer block: MultiHeadAttention, MLP."""

from __future__ import annotations

from typing import Any

from blutrain import dtypes, ops
from blutrain.errors import ShapeError, message
from blutrain.nn import init
from blutrain.nn.activation import GELU, Dropout
from blutrain.nn.linear import Linear
from blutrain.nn.module import Module
from blutrain.tensor import Tensor


class MultiHeadAttention(Module):
    """Self-attention: every position looks at the others (causal: at earlier ones) through H heads.

    One linear layer makes queries, keys and values, which attention reads where they are. Dropout
    is on the output: the fused kernel has no matrix of weights to drop from.

    Args:
        n_embd: channels, C.
        n_head: heads, H; C must be a multiple of it.
        bias: whether the linear layers have one.
        causal: whether a position sees earlier positions only.
        dropout: probability on the output.
        weight_init, out_init: first weights of the two linear layers.
        dtype: of the parameters.

    Raises:
        ShapeError: C is not a multiple of H.

    Example:
        >>> import blutrain as bt
        >>> MultiHeadAttention(8, 2)(bt.ones((1, 5, 8))).shape
        (1, 5, 8)
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        bias: bool = True,
        causal: bool = True,
        dropout: float = 0.0,
        weight_init: init.Initialiser | None = None,
        out_init: init.Initialiser | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        if n_head < 1 or n_embd % n_head:
            want = "n_embd must be a multiple of n_head"
            raise ShapeError(message("MultiHeadAttention", want, (n_embd, n_head)))
        self.qkv = Linear(n_embd, 3 * n_embd, bias, weight_init, dtype)
        self.proj = Linear(n_embd, n_embd, bias, out_init or weight_init, dtype)
        self.dropout = Dropout(dropout)
        self.n_head = n_head
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) → (B, T, C)
        """Attend."""
        heads = ops.self_attention(self.qkv(x), self.n_head, self.causal)  # (B, T, C)
        out: Tensor = self.dropout(self.proj(heads))
        return out

    def extra(self) -> str:
        """Heads, for `repr`."""
        return f"n_head={self.n_head}, causal={self.causal}"


class MLP(Module):
    """Two linear layers with GELU (tanh form) between them.

    Args:
        n_embd: channels, C.
        n_hidden: channels between; 4 C when left out.
        bias: whether the linear layers have one.
        dropout: probability on the output.
        weight_init, out_init: first weights of the two linear layers.
        dtype: of the parameters.

    Example:
        >>> import blutrain as bt
        >>> MLP(8)(bt.ones((1, 5, 8))).shape
        (1, 5, 8)
    """

    def __init__(
        self,
        n_embd: int,
        n_hidden: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        weight_init: init.Initialiser | None = None,
        out_init: init.Initialiser | None = None,
        dtype: Any = dtypes.float32,
    ) -> None:
        hidden = 4 * n_embd if n_hidden is None else n_hidden
        self.fc = Linear(n_embd, hidden, bias, weight_init, dtype)
        self.gelu = GELU("tanh")
        self.proj = Linear(hidden, n_embd, bias, out_init or weight_init, dtype)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (..., C) → (..., C)
        """Apply it to every position."""
        out: Tensor = self.dropout(self.proj(self.gelu(self.fc(x))))
        return out

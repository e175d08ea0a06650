"""The peer: GPT-2 in PyTorch, as its users write it, with blutrain's parameter names.

The names are the same so that weights and gradients can be compared by name; nothing else of
blutrain is in here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from blutrain.models import GPT2, GPT2Config


class Attention(nn.Module):
    """Causal self-attention through PyTorch's own fused call."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.n_head = c.n_head
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.proj = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, C) to (B, T, C)."""
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.qkv(x).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.fc = nn.Linear(c.n_embd, 4 * c.n_embd)
        self.proj = nn.Linear(4 * c.n_embd, c.n_embd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, C) to (B, T, C)."""
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.n_embd)
        self.attn = Attention(c)
        self.ln_2 = nn.LayerNorm(c.n_embd)
        self.mlp = MLP(c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, C) to (B, T, C)."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class TorchGPT2(nn.Module):
    """GPT-2 with tied embeddings."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.block_size, c.n_embd)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def like(model: GPT2, device: str) -> TorchGPT2:
    """The peer with the same sizes and the very same weights.

    Args:
        model: blutrain's; without dropout and with biases.
        device: where PyTorch is to keep it, "cpu" or "cuda".
    """
    peer = TorchGPT2(model.config)
    state = {name: torch.from_numpy(t.numpy()) for name, t in model.state_dict().items()}
    peer.load_state_dict(state, strict=True)
    peer.to(device)
    return peer


def decay_groups(peer: TorchGPT2, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups as GPT-2's training has them: matrices decay, vectors do not."""
    matrices = [p for p in peer.parameters() if p.ndim >= 2]
    vectors = [p for p in peer.parameters() if p.ndim < 2]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def to_torch(tokens: np.ndarray[Any, Any], device: str) -> torch.Tensor:
    """A batch of tokens on the peer's device."""
    return torch.from_numpy(tokens).to(device)

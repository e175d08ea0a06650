"""GPT-2 (Radford et al., 2019): a decoder-only transformer with tied embeddings.

    x = wte[tokens] + wpe[0..T-1]                     (B, T, C)
    for each block:  x = x + attention(ln_1(x));  x = x + mlp(ln_2(x))
    logits = ln_f(x) · wteᵀ                           (B, T, V)

The output layer is the token table itself, so the table learns from both ends. Weights start
normal with standard deviation 0.02; the two projections that add to the residual stream are scaled
by 1/√(2 n_layer), so that its variance does not grow with depth; biases start at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blutrain import dtypes, ops
from blutrain.autograd import no_grad
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.nn import (
    MLP,
    Dropout,
    Embedding,
    LayerNorm,
    Module,
    ModuleList,
    MultiHeadAttention,
    init,
)
from blutrain.tensor import Tensor, from_numpy

_INIT_STD = 0.02


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a GPT-2.

    Attributes:
        vocab_size: tokens, V. 50304 is GPT-2's 50257 padded to a multiple of 128.
        block_size: the longest context, T.
        n_layer: blocks.
        n_head: heads.
        n_embd: channels, C; a multiple of n_head.
        dropout: probability on embeddings and on what is added to the residual stream.
        bias: whether linear layers and layer norms have biases.

    Raises:
        ShapeError: a size is not positive, or n_embd is not a multiple of n_head.
    """

    vocab_size: int = 50304
    block_size: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise ShapeError(
                    message("GPT2Config", f"{name} must be at least 1", getattr(self, name))
                )
        if self.n_embd % self.n_head:
            want = "n_embd must be a multiple of n_head"
            raise ShapeError(message("GPT2Config", want, (self.n_embd, self.n_head)))


# tiny is nanoGPT's example for a CPU, mini its example for one small GPU; the rest are OpenAI's.
PRESETS: dict[str, GPT2Config] = {
    "tiny": GPT2Config(vocab_size=256, block_size=64, n_layer=4, n_head=4, n_embd=128),
    "mini": GPT2Config(vocab_size=256, block_size=256, n_layer=6, n_head=6, n_embd=384),
    "small": GPT2Config(n_layer=12, n_head=12, n_embd=768),
    "medium": GPT2Config(n_layer=24, n_head=16, n_embd=1024),
    "large": GPT2Config(n_layer=36, n_head=20, n_embd=1280),
    "xl": GPT2Config(n_layer=48, n_head=25, n_embd=1600),
}


class Block(Module):
    """One layer: attention, then MLP, each normalised before and added to what came in."""

    def __init__(self, config: GPT2Config, dtype: Any) -> None:
        C = config.n_embd
        inner = init.normal(_INIT_STD)
        outer = init.normal(_INIT_STD / math.sqrt(2 * config.n_layer))
        self.ln_1 = LayerNorm(C, bias=config.bias, dtype=dtype)
        self.attn = MultiHeadAttention(
            C, config.n_head, config.bias, True, config.dropout, inner, outer, dtype
        )
        self.ln_2 = LayerNorm(C, bias=config.bias, dtype=dtype)
        self.mlp = MLP(C, 4 * C, config.bias, config.dropout, inner, outer, dtype)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) → (B, T, C)
        """Apply the layer."""
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT2(Module):
    """The model.

    Args:
        config: its sizes.
        dtype: of the parameters.

    Example:
        >>> import blutrain as bt
        >>> bt.manual_seed(0)
        >>> model = GPT2(GPT2Config(vocab_size=32, block_size=8, n_layer=1, n_head=2, n_embd=8))
        >>> model(bt.tensor([[1, 2, 3]])).shape
        (1, 3, 32)
    """

    def __init__(self, config: GPT2Config, dtype: Any = dtypes.float32) -> None:
        weights = init.normal(_INIT_STD)
        self.config = config
        self.wte = Embedding(config.vocab_size, config.n_embd, weights, dtype)
        self.wpe = Embedding(config.block_size, config.n_embd, weights, dtype)
        self.dropout = Dropout(config.dropout)
        self.blocks = ModuleList(Block(config, dtype) for _ in range(config.n_layer))
        self.ln_f = LayerNorm(config.n_embd, bias=config.bias, dtype=dtype)

    @classmethod
    def preset(cls, name: str, dtype: Any = dtypes.float32, **changes: Any) -> GPT2:
        """A model of a known size: tiny, mini, small (124M), medium, large or xl.

        Args:
            name: of the preset.
            dtype: of the parameters.
            changes: fields of `GPT2Config` that are to be otherwise.

        Raises:
            ShapeError: there is no such preset.
        """
        if name not in PRESETS:
            raise ShapeError(message("GPT2.preset", f"name must be one of {list(PRESETS)}", name))
        return cls(replace(PRESETS[name], **changes), dtype)

    def features(self, tokens: Tensor) -> Tensor:  # (B, T) integers → (B, T, C)
        """What the output layer reads.

        Raises:
            ShapeError: `tokens` is not (B, T) with T up to the context.
            DTypeError: `tokens` are not integers.
        """
        longest = self.config.block_size
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= longest:
            want = f"tokens must be (B, T) with T in 1..{longest}"
            raise ShapeError(message("GPT2", want, tokens.shape, "cut the context"))
        if tokens.dtype.kind not in "iu":
            raise DTypeError(message("GPT2", "tokens must be integers", tokens.dtype))
        T = tokens.shape[1]
        x = self.dropout(self.wte(tokens) + self.wpe.weight[:T])
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.ln_f(x)
        return out

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T) integers → (B, T, V)
        """The logits of the token after each position."""
        return ops.linear(self.features(tokens), self.wte.weight)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:  # both (B, T) → ()
        """The mean cross-entropy, in nats a token, of `targets` (-100: not counted)."""
        logits: Tensor = self(tokens)
        V = self.config.vocab_size
        # Nobody else sees these logits, so their gradient may take their place: (B T, V) floats.
        return ops.cross_entropy(logits.reshape(-1, V), targets.reshape(-1), reuse_logits=True)

    def generate(
        self,
        prompt: Sequence[int],
        n_new: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        n_choices: int | None = None,
    ) -> list[int]:
        """Continue a prompt, one sampled token at a time.

        Args:
            prompt: at least one token.
            n_new: tokens to add.
            temperature: below 1 prefers the likely; 0 takes the likeliest.
            top_k: sample among this many likeliest tokens only.
            seed: of a random generator of its own; training's is not touched.
            n_choices: tokens that exist, where the vocabulary is padded.

        Returns:
            The prompt and the new tokens.

        Raises:
            ShapeError: the prompt is empty or a setting is out of range.
        """
        if not prompt or n_new < 0 or temperature < 0 or (top_k is not None and top_k < 1):
            want = (
                "the prompt must not be empty, n_new and temperature not negative, top_k positive"
            )
            got = (len(prompt), n_new, temperature, top_k)
            raise ShapeError(message("generate", want, got))
        random = np.random.Generator(np.random.Philox(seed))
        tokens = list(prompt)
        training = self.training
        self.eval()
        try:
            with no_grad():
                for _ in range(n_new):
                    context = np.array([tokens[-self.config.block_size :]], dtype=np.int64)
                    last = self.features(from_numpy(context))[:, -1]  # (1, C)
                    logits = ops.linear(last, self.wte.weight).numpy()[0, :n_choices]
                    tokens.append(_sample(logits, temperature, top_k, random))
        finally:
            self.train(training)
        return tokens

    def flops_per_token(self, block_size: int | None = None) -> float:
        """Floating-point operations a token of a training step, forward and backward.

        6 a weight that multiplies (position embeddings do not), and 12 n_layer C T for the products
        of queries, keys and values, counted without the causal mask as is the custom (Chowdhery et
        al., PaLM, 2022, appendix B).

        Args:
            block_size: T; the config's when left out.
        """
        c = self.config
        weights = self.n_parameters() - self.wpe.weight.size
        return 6.0 * weights + 12.0 * c.n_layer * c.n_embd * (block_size or c.block_size)


def _sample(
    logits: np.ndarray[Any, Any], temperature: float, top_k: int | None, random: np.random.Generator
) -> int:
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / temperature
    if top_k is not None and top_k < len(scaled):
        least = np.partition(scaled, -top_k)[-top_k]
        scaled = np.where(scaled < least, -np.inf, scaled)
    p = np.exp(scaled - scaled.max())
    # By the inverse of the distribution: one uniform number a token, whatever NumPy's version.
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"))

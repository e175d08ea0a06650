# %% [markdown]
# # A GPT from its parts
# **How does a stack of matrix products come to know which character follows?**
#
# We write attention as one naive kernel, check it, and see what the fused one saves. Then
# embedding, MLP, block and head go together into a GPT, which learns from Python's own manual and
# writes some.

# %%
import math
from collections.abc import Callable
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np
from lesson import save, seconds
from numba import cuda

import blutrain as bt
from blutrain import nn, optim
from blutrain.device import TARGET, launch

bt.manual_seed(1)

# %% [markdown]
# ## Attention
# Every position $t$ of a text asks a question (a *query* $q_t$), and every position before it
# offers an answer $v_s$ under a title (a *key* $k_s$). The answers are mixed, in proportion to how
# well title and question agree:
#
# $$ y_t = \sum_{s \le t} p_{ts} v_s, \qquad p_{ts} = \frac{e^{a_{ts}}}{\sum_{r \le t} e^{a_{tr}}},
# \qquad a_{ts} = \frac{q_t \cdot k_s}{\sqrt D} $$
#
# $s \le t$ makes it *causal*: nobody looks at what is still to be guessed. To keep $e^{a}$ finite,
# the largest $a_{ts}$ is taken off first; it cancels in the fraction. The naive kernel gives each
# query to one thread, which goes over the keys three times: for the largest score, for the sum, for
# the mixture.

# %%
BLOCK = 64


@cuda.jit
def attention_kernel(
    q,  # (B*H, T, D)
    k,  # (B*H, T, D)
    v,  # (B*H, T, D)
    y,  # (B*H, T, D)
    scale,
):
    i = cuda.grid(1)
    if i >= q.shape[0] * q.shape[1]:
        return
    head, t = i // q.shape[1], i % q.shape[1]
    # The largest score.
    largest = -type(scale)(math.inf)
    for s in range(t + 1):
        score = type(scale)(0)
        for d in range(q.shape[2]):
            score += q[head, t, d] * k[head, s, d]
        largest = max(largest, score * scale)
    # The mixture, unnormalised, and the sum of its weights.
    total = type(scale)(0)
    for d in range(q.shape[2]):
        y[head, t, d] = type(scale)(0)
    for s in range(t + 1):
        score = type(scale)(0)
        for d in range(q.shape[2]):
            score += q[head, t, d] * k[head, s, d]
        weight = math.exp(score * scale - largest)
        total += weight
        for d in range(q.shape[2]):
            y[head, t, d] += weight * v[head, s, d]
    # Normalise.
    for d in range(q.shape[2]):
        y[head, t, d] /= total


def naive_attention(q: bt.Tensor, k: bt.Tensor, v: bt.Tensor) -> bt.Tensor:
    """(B, H, T, D) each, contiguous."""
    B, H, T, D = q.shape
    y = bt.empty((B * H, T, D), q.dtype)
    flat = [x.reshape((B * H, T, D)) for x in (q, k, v)]
    launch(attention_kernel, (B * H * T + BLOCK - 1) // BLOCK, BLOCK, *flat, y, np.float32(D**-0.5))
    return y.reshape((B, H, T, D))


def composed_attention(q: bt.Tensor, k: bt.Tensor, v: bt.Tensor) -> bt.Tensor:
    """The formula, operation by operation: the whole T x T table of scores is made."""
    T, D = q.shape[-2:]
    allowed = bt.from_numpy(np.tril(np.ones((T, T), bool)))
    scores = bt.matmul(q, k.transpose(-2, -1)) * D**-0.5
    return bt.matmul(bt.softmax(bt.where(allowed, scores, -math.inf)), v)


def random_qkv(T: int) -> list[bt.Tensor]:
    return [bt.randn((2, 4, T, 32)) for _ in range(3)]


q, k, v = random_qkv(100)
expected = composed_attention(q, k, v).numpy()
for name, function in (("naive kernel", naive_attention), ("bt.attention", bt.attention)):
    error = np.abs(function(q, k, v).numpy() - expected).max()
    print(f"{name}: largest difference from the formula {error:.1e}")
    assert error < 1e-5

# %% [markdown]
# `bt.attention` reads the keys once, in tiles that a whole block shares, and keeps a *running*
# maximum: when a larger score turns up, what was mixed so far is scaled by $e^{m_{old} - m_{new}}$
# (FlashAttention, arXiv 2205.14135). No $T \times T$ table exists, in either direction of training.
# What that saves, measured:


# %%
def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that was allocated at once during a call, beyond what was before."""
    bt.memory.reset_peak_memory_stats()
    before = bt.memory.memory_allocated()
    kept = call()
    del kept
    return int(bt.memory.max_memory_allocated() - before)


lengths = [64, 128, 256, 512]
ways = {
    "naive kernel": naive_attention,
    "formula": composed_attention,
    "bt.attention": bt.attention,
}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for name, function in ways.items():
    samples = [random_qkv(T) for T in lengths]
    times = [seconds(lambda f=function, s=s: f(*s)) * 1e3 for s in samples]
    sizes = [peak_bytes(lambda f=function, s=s: f(*s)) / 2**20 for s in samples]
    left.semilogy(lengths, times, marker="o", label=name)
    right.semilogy(lengths, sizes, marker="o", label=name)
    print(f"{name:13} T = 512: {times[-1]:8.2f} ms, {sizes[-1]:6.2f} MiB")
left.set(xlabel="T", xticks=lengths, title=f"ms, measured here ({TARGET})")
right.set(xlabel="T", xticks=lengths, title="MiB beyond the inputs")
left.legend()
save(figure, "03_attention")

# %% [markdown]
# ## The parts
# - **Embedding**: a row of a table for each character, plus a row of another for each position.
# - **Block**: $x \leftarrow x + \mathrm{Attention}(\mathrm{LN}(x))$: positions talk; then $x
#   \leftarrow x + \mathrm{MLP}(\mathrm{LN}(x))$: each thinks by itself. The sums leave a straight
#   way for the gradient from the loss to the first layer.
# - **Head**: the scores of all characters. It is the embedding table again, the other way round
#   ("tied"): to say a character is to be near its row.


# %%
class Attention(nn.Module):
    def __init__(self, C: int, n_heads: int) -> None:
        self.n_heads = n_heads
        self.qkv = nn.Linear(C, 3 * C)
        self.out = nn.Linear(C, C)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        B, T, C = x.shape
        heads = self.qkv(x).reshape((B, T, 3, self.n_heads, C // self.n_heads))
        q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))  # (B, H, T, D)
        y = bt.attention(q, k, v, causal=True)
        return self.out(y.transpose(1, 2).reshape((B, T, C)))


class MLP(nn.Module):
    def __init__(self, C: int) -> None:
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        return self.down(bt.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, C: int, n_heads: int) -> None:
        self.norm_1, self.norm_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention, self.mlp = Attention(C, n_heads), MLP(C)

    def forward(self, x: bt.Tensor) -> bt.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class TinyGPT(nn.Module):
    def __init__(self, V: int, T: int, C: int, n_layers: int, n_heads: int) -> None:
        small = nn.init.normal(0.02)  # tied, the table also makes the scores: they start near zero
        self.tokens, self.positions = nn.Embedding(V, C, small), nn.Embedding(T, C, small)
        self.blocks = nn.ModuleList([Block(C, n_heads) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(C)

    def forward(self, characters: bt.Tensor) -> bt.Tensor:
        """(B, T) characters to (B, T, V) scores of the next."""
        x = self.tokens(characters) + self.positions(bt.arange(characters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return bt.linear(self.norm(x), self.tokens.weight)


# %% [markdown]
# ## Training
# The text is the manual that comes with Python. The loss is the mean surprise $-\ln p(\text{next
# character})$. Who knows only how frequent each character is pays the text's unigram entropy: that
# is the mark to beat.

# %%
text = "".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
code = {c: i for i, c in enumerate(alphabet)}
data = np.array([code[c] for c in text], np.int64)
frequency = np.bincount(data) / data.size
entropy = -float((frequency * np.log(frequency)).sum())

T, BATCH, STEPS = 64, 16, 80
model = TinyGPT(len(alphabet), T, C=64, n_layers=2, n_heads=4)
optimizer = optim.AdamW(model.parameters(), lr=3e-3)
print(f"{sum(p.size for p in model.parameters()):,} parameters, {data.size:,} characters")

rng = np.random.default_rng(0)
losses = []
for _ in range(STEPS):
    starts = rng.integers(0, data.size - T - 1, BATCH)
    window = np.stack([data[s : s + T + 1] for s in starts])
    inputs, targets = bt.from_numpy(window[:, :-1].copy()), bt.from_numpy(window[:, 1:].reshape(-1))
    logits = model(inputs)
    loss = bt.cross_entropy(logits.reshape((BATCH * T, len(alphabet))), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

print(f"loss {losses[0]:.3f} -> {np.mean(losses[-5:]):.3f}; unigram entropy {entropy:.3f}")
assert np.mean(losses[-5:]) < entropy

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(losses, label="loss")
axes.axhline(entropy, linestyle="--", color="grey", label="unigram entropy")
axes.set(xlabel="step", ylabel="nats a character")
axes.legend()
save(figure, "03_loss")

# %% [markdown]
# ## Writing
# Sampling is the model's own guess, fed back. Eighty steps teach spelling at best; `make train`
# goes on from here.


# %%
def write(prompt: str, n: int) -> str:
    characters = [code[c] for c in prompt]
    with bt.no_grad():
        for _ in range(n):
            recent = bt.from_numpy(np.array([characters[-T:]]))
            scores = model(recent).numpy()[0, -1].astype(np.float64) / 0.8  # below 1: bolder
            p = np.exp(scores - scores.max())
            characters.append(int(rng.choice(len(alphabet), p=p / p.sum())))
    return "".join(alphabet[c] for c in characters)


print(write("The ", 60))

# %% [markdown]
# `blutrain/models/gpt2.py` is these parts with GPT-2's sizes and initialisation,
# `examples/train_gpt2.py` the loop with evaluation, schedules and checkpoints.

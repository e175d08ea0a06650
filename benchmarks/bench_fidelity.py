"""Does blutrain train like PyTorch? The same small GPT-2, weights and batches, in fp32.

Compared are the gradient of every parameter at the first step and the losses of the first twenty
steps, on one device. `--save` writes the result; the exit status says whether the limits hold:

    usage: python benchmarks/bench_fidelity.py [--save]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from report import Row, finish
from torch_gpt2 import decay_groups, like, to_torch

import blutrain as bt
from blutrain import optim
from blutrain.autograd.registry import portable_only
from blutrain.data import ByteTokenizer, standard_library
from blutrain.device import TARGET
from blutrain.models import GPT2, GPT2Config

Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

CONFIG = GPT2Config(vocab_size=256, block_size=64, n_layer=4, n_head=4, n_embd=128)
BATCH_SIZE, STEPS = 12, 20
LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 0.1, 1.0
FIRST_LOSS, LAST_LOSS, GRADIENT = 1e-5, 1e-4, 1e-4  # relative limits


def batches() -> list[Batch]:
    """Windows of the standard library's text, the same ones for both."""
    text = "".join(d.text for d in standard_library()[:40])
    data = np.asarray(ByteTokenizer().encode(text), np.int64)
    T = CONFIG.block_size
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(data) - T - 1, (STEPS, BATCH_SIZE))
    windows = [np.stack([data[s : s + T + 1] for s in row]) for row in starts]
    return [(w[:, :-1].copy(), w[:, 1:].copy()) for w in windows]


def train_ours(
    model: GPT2, data: list[Batch]
) -> tuple[list[float], dict[str, np.ndarray[Any, Any]]]:
    """Losses, and the first step's gradients before clipping."""
    optimizer = optim.AdamW(optim.decay_groups(model, WEIGHT_DECAY), lr=LEARNING_RATE, betas=BETAS)
    losses: list[float] = []
    gradients: dict[str, np.ndarray[Any, Any]] = {}
    for tokens, targets in data:
        loss = model.loss(bt.from_numpy(tokens), bt.from_numpy(targets))
        model.zero_grad()
        loss.backward()
        if not gradients:
            gradients = {
                n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None
            }
        optim.clip_grad_norm(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def train_theirs(
    peer: Any, data: list[Batch], device: str
) -> tuple[list[float], dict[str, np.ndarray[Any, Any]]]:
    """The same, by PyTorch."""
    optimizer = torch.optim.AdamW(decay_groups(peer, WEIGHT_DECAY), lr=LEARNING_RATE, betas=BETAS)
    losses: list[float] = []
    gradients: dict[str, np.ndarray[Any, Any]] = {}
    for tokens, targets in data:
        loss = peer.loss(to_torch(tokens, device), to_torch(targets, device))
        optimizer.zero_grad()
        loss.backward()
        if not gradients:
            # Copies: clipping scales PyTorch's gradients in place.
            gradients = {n: p.grad.cpu().numpy().copy() for n, p in peer.named_parameters()}
        torch.nn.utils.clip_grad_norm_(peer.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def compare(portable: bool) -> tuple[list[Row], bool]:
    """Train both from one state, with tuned variants or with the portable kernels alone."""
    bt.manual_seed(0)
    model = GPT2(CONFIG)
    device = "cuda" if TARGET == "cuda" else "cpu"
    peer = like(model, device)
    data = batches()
    with portable_only() if portable else nullcontext():
        ours, our_gradients = train_ours(model, data)
    theirs, their_gradients = train_theirs(peer, data, device)
    assert our_gradients.keys() == their_gradients.keys()

    relative = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]
    off = {
        name: float(np.linalg.norm(our_gradients[name] - g) / np.linalg.norm(g))
        for name, g in their_gradients.items()
    }
    worst = max(off, key=lambda name: off[name])
    kernels = "portable kernels" if portable else "default kernels"
    print(f"{kernels}:")
    for step, (a, b, r) in enumerate(zip(ours, theirs, relative, strict=True), 1):
        print(f"  step {step:2}  blutrain {a:.7f}  PyTorch {b:.7f}  relative difference {r:.1e}")
    print(f"  gradients at step 1: {len(off)} parameters, worst {worst} with {off[worst]:.1e}")

    def row(metric: str, value: float) -> Row:
        return Row(f"GPT-2 4x128, {kernels}", metric, "relative", "lower", value, None, None)

    rows = [
        row("loss_difference_step_1", relative[0]),
        row("loss_difference_step_20", relative[-1]),
        row("loss_difference_largest", max(relative)),
        row("gradient_difference_largest", off[worst]),
    ]
    holds = relative[0] <= FIRST_LOSS and max(relative) <= LAST_LOSS and off[worst] <= GRADIENT
    return rows, holds


def main() -> int:
    """Compare, print, save; 0 when every limit holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    save = parser.parse_args().save
    torch.set_float32_matmul_precision("highest")
    rows, verdicts = [], []
    for portable in (False, True):
        found, holds = compare(portable)
        rows += found
        verdicts.append(holds)
    notes = {"limits": {"step_1": FIRST_LOSS, "step_20": LAST_LOSS, "gradient": GRADIENT}}
    finish("fidelity", rows, save, notes)
    print("every limit holds" if all(verdicts) else "a limit does not hold")
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

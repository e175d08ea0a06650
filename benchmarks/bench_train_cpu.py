"""Training speed without a GPU: nanoGPT's CPU example beside PyTorch on the same cores.

4 layers, 4 heads, 128 wide, context 64, batch 12, no dropout, 65 characters; AdamW and clipping as
nanoGPT has them. The two take turns; medians are compared.

    usage: BLUTRAIN_DEVICE=cpu python benchmarks/bench_train_cpu.py [--save] [--rounds 15]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from report import Row, alternate, cores, finish, median
from torch_gpt2 import decay_groups, like, to_torch

import blutrain as bt
from blutrain import optim
from blutrain.device import TARGET, synchronize
from blutrain.models import GPT2, GPT2Config

Array = np.ndarray[Any, Any]

CONFIG = GPT2Config(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128)
BATCH_SIZE, STEPS_A_ROUND = 12, 10
LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.99), 0.1, 1.0


def tokens_per_second(step: Callable[[], None]) -> float:
    """Run a round of steps."""
    start = time.perf_counter()
    for _ in range(STEPS_A_ROUND):
        step()
    synchronize()
    elapsed = time.perf_counter() - start
    return STEPS_A_ROUND * BATCH_SIZE * CONFIG.block_size / elapsed


def our_step(model: GPT2, tokens: Array, targets: Array) -> Callable[[], None]:
    """One training step of blutrain, batch upload and loss read-out included."""
    groups = optim.decay_groups(model, WEIGHT_DECAY)
    optimizer = optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS)

    def step() -> None:
        loss = model.loss(bt.from_numpy(tokens), bt.from_numpy(targets))
        model.zero_grad()
        loss.backward()
        optim.clip_grad_norm(model.parameters(), CLIP)
        optimizer.step()
        loss.item()

    return step


def their_step(model: GPT2, tokens: Array, targets: Array) -> Callable[[], None]:
    """The same step of PyTorch, with its fused AdamW."""
    peer = like(model, "cpu")
    groups = decay_groups(peer, WEIGHT_DECAY)
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=True)

    def step() -> None:
        loss = peer.loss(to_torch(tokens, "cpu"), to_torch(targets, "cpu"))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), CLIP)
        optimizer.step()
        loss.item()

    return step


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each, in turn")
    arguments = parser.parse_args()
    if TARGET != "cpu":
        print("this benchmark is for the cpu target: set BLUTRAIN_DEVICE=cpu", file=sys.stderr)
        return 2
    torch.set_num_threads(cores())
    bt.manual_seed(0)
    model = GPT2(CONFIG)
    rng = np.random.default_rng(0)
    window = rng.integers(0, CONFIG.vocab_size, (BATCH_SIZE, CONFIG.block_size + 1))
    tokens, targets = window[:, :-1].copy(), window[:, 1:].copy()
    steps = [their_step(model, tokens, targets), our_step(model, tokens, targets)]
    theirs, ours = alternate(
        [partial(tokens_per_second, step) for step in steps], repeats=arguments.rounds
    )
    case = f"GPT-2 4x128, T {CONFIG.block_size}, B {BATCH_SIZE}, {cores()} cores"
    peer = f"PyTorch {torch.__version__} eager"
    row = Row(case, "tokens_per_second", "tokens/s", "higher", median(ours), peer, median(theirs))
    notes = {
        "rounds": arguments.rounds,
        "steps_a_round": STEPS_A_ROUND,
        "ours": ours,
        "theirs": theirs,
    }
    finish("train_cpu", [row], arguments.save, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())

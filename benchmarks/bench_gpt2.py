"""GPT-2 124M on a GPU beside PyTorch eager: tokens a second and memory, the same batches.

fp32 in both (ours in its default precision, tf32x3 where tensor cores are used), AdamW, clipping by
norm, one optimizer step a batch, T = 1024. Each of the two runs with nothing of the other on the
device, then the other way round; medians of all steps.

    usage: BLUTRAIN_DEVICE=cuda python benchmarks/bench_gpt2.py [--save] [--quick] [--batch 4,16]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from report import Row, finish, median
from torch_gpt2 import TorchGPT2, decay_groups, to_torch

import blutrain as bt
from blutrain import optim
from blutrain.device import TARGET, synchronize
from blutrain.models import GPT2, PRESETS

Array = np.ndarray[Any, Any]

CONFIG = PRESETS["small"]
LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 6e-4, (0.9, 0.95), 0.1, 1.0
WARM_UP = 3
GIB = 2.0**30


@dataclass
class Run:
    """What one of the two did.

    Attributes:
        seconds: of each timed step.
        allocated: the most bytes allocated at once.
        reserved: the most bytes taken from the driver.
        losses: of all steps, those of the warm-up included.
    """

    seconds: list[float] = field(default_factory=list)
    allocated: int = 0
    reserved: int = 0
    losses: list[float] = field(default_factory=list)

    def add(self, other: Run) -> None:
        """Take another run's figures in."""
        self.seconds += other.seconds
        self.allocated = max(self.allocated, other.allocated)
        self.reserved = max(self.reserved, other.reserved)
        self.losses = self.losses or other.losses


def batch(batch_size: int) -> tuple[Array, Array]:
    """One batch of GPT-2's tokens, the same for both."""
    shape = (batch_size, CONFIG.block_size + 1)
    window = np.random.default_rng(0).integers(0, 50257, shape)
    return window[:, :-1].copy(), window[:, 1:].copy()


def timed(step: Callable[[], float], steps: int, wait: Callable[[], None]) -> Run:
    """Warm up, then time each step from an idle device to an idle device."""
    run = Run()
    for number in range(WARM_UP + steps):
        wait()
        start = time.perf_counter()
        loss = step()
        wait()
        if number >= WARM_UP:
            run.seconds.append(time.perf_counter() - start)
        run.losses.append(loss)
    return run


def run_ours(batch_size: int, steps: int) -> Run:
    """blutrain's steps."""
    bt.manual_seed(0)
    model = GPT2(CONFIG)
    groups = optim.decay_groups(model, WEIGHT_DECAY)
    optimizer = optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS)
    tokens, targets = (bt.from_numpy(a) for a in batch(batch_size))

    def step() -> float:
        loss = model.loss(tokens, targets)
        loss.backward()
        optim.clip_grad_norm(model.parameters(), CLIP)
        optimizer.step()
        model.zero_grad()
        return float(loss.item())

    bt.memory.empty_cache()
    bt.memory.reset_peak_memory_stats()
    run = timed(step, steps, synchronize)
    run.allocated = bt.memory.max_memory_allocated()
    run.reserved = bt.memory.max_memory_reserved()
    return run


def run_theirs(batch_size: int, steps: int) -> Run:
    """PyTorch's steps, with its fused AdamW and scaled_dot_product_attention."""
    torch.manual_seed(0)
    peer = TorchGPT2(CONFIG).to("cuda")
    groups = decay_groups(peer, WEIGHT_DECAY)
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=True)
    tokens, targets = (to_torch(a, "cuda") for a in batch(batch_size))

    def step() -> float:
        loss = peer.loss(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = timed(step, steps, torch.cuda.synchronize)
    run.allocated = torch.cuda.max_memory_allocated()
    run.reserved = torch.cuda.max_memory_reserved()
    return run


def free_everything() -> None:
    """Leave the device to the next run."""
    gc.collect()
    bt.memory.empty_cache()
    torch.cuda.empty_cache()


def rows_for(batch_size: int, steps: int, turns: int) -> list[Row]:
    """Both, in turn, at one batch size."""
    ours, theirs = Run(), Run()
    for _ in range(turns):
        for total, run in ((theirs, run_theirs), (ours, run_ours)):
            total.add(run(batch_size, steps))
            free_everything()
    case = f"GPT-2 124M fp32, T {CONFIG.block_size}, B {batch_size}"
    peer = f"PyTorch {torch.__version__} eager"
    tokens = batch_size * CONFIG.block_size
    speed = [tokens / median(r.seconds) for r in (ours, theirs)]
    print(f"{case}: losses ours {ours.losses[:3]}, theirs {theirs.losses[:3]} (own first weights)")
    return [
        Row(case, "tokens_per_second", "tokens/s", "higher", speed[0], peer, speed[1]),
        Row(
            case,
            "peak_allocated",
            "GiB",
            "lower",
            ours.allocated / GIB,
            peer,
            theirs.allocated / GIB,
        ),
        Row(
            case, "peak_reserved", "GiB", "lower", ours.reserved / GIB, peer, theirs.reserved / GIB
        ),
    ]


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="batch 4, few steps")
    parser.add_argument("--batch", default="4,16", help="batch sizes, with commas between")
    arguments = parser.parse_args()
    if TARGET != "cuda":
        print("this benchmark needs a GPU (BLUTRAIN_DEVICE=cuda)", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("highest")
    sizes = [4] if arguments.quick else [int(b) for b in arguments.batch.split(",")]
    steps, turns = (3, 1) if arguments.quick else (8, 2)
    rows = [row for size in sizes for row in rows_for(size, steps, turns)]
    finish("gpt2", rows, arguments.save, {"steps": steps, "turns": turns, "warm_up": WARM_UP})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What an allocation costs, and how much more a GPT-2 training step reserves than it needs.

The trace is that of real steps of GPT-2 124M: every malloc and free, in order, of the batch of the
target (16 windows of 1024 tokens on cuda, few and short ones on the cpu). It is replayed on
addresses without memory behind them, so the figure is the allocator's own.

    usage: python benchmarks/bench_allocator.py [--save]
"""

from __future__ import annotations

import argparse
import gc
import time
from unittest import mock

import numpy as np
from report import Row, finish, median

import blutrain as bt
from blutrain import memory, optim
from blutrain.device import TARGET
from blutrain.memory.allocator import CachingAllocator
from blutrain.memory.block import Block
from blutrain.models.gpt2 import GPT2, GPT2Config

BATCH, CONTEXT = (16, 1024) if TARGET == "cuda" else (2, 32)
WARM_UP, STEPS = 1, 1  # the first step also makes the optimiser's state
CALLS, REPEATS = 10_000, 11

# (block's number, bytes) for a malloc, (block's number, -1) for a free.
Trace = list[tuple[int, int]]


class AddressesOnly:
    """A backend as large as asked for, with nothing behind its addresses."""

    granularity = 2 << 20

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._next = 1 << 40

    def reserve(self, nbytes: int) -> int:
        """The next address."""
        pointer, self._next = self._next, self._next + nbytes
        return pointer

    def release(self, pointer: int, nbytes: int) -> None:
        """Nothing is behind it."""

    def total(self) -> int:
        """The capacity."""
        return self.capacity

    available = total
    reserve_addresses = reserve
    release_addresses = release

    def map(self, pointer: int, nbytes: int) -> bool:
        """There is always room."""
        return True

    unmap = release

    def settle(self) -> None:
        """Nothing uses it."""


def record() -> Trace:
    """Every malloc and free of the model's making and `WARM_UP + STEPS` training steps."""
    trace: Trace = []
    numbers: dict[Block, int] = {}
    malloc, free = memory.malloc, memory.free

    def noted_malloc(nbytes: int) -> Block:
        block = malloc(nbytes)
        numbers[block] = len(trace)
        trace.append((len(trace), nbytes))
        return block

    def noted_free(block: Block) -> None:
        number = numbers.pop(block, None)
        if number is not None:
            trace.append((number, -1))
        free(block)

    with mock.patch.multiple(memory, malloc=noted_malloc, free=noted_free):
        train()
        gc.collect()
    return trace


def train() -> None:
    """Steps of GPT-2 124M."""
    bt.manual_seed(0)
    model = GPT2(GPT2Config())
    optimizer = optim.AdamW(optim.decay_groups(model, 0.1), lr=6e-4)
    window = np.random.default_rng(0).integers(0, 50257, (BATCH, CONTEXT + 1))
    tokens, targets = (bt.from_numpy(a.copy()) for a in (window[:, :-1], window[:, 1:]))
    for _ in range(WARM_UP + STEPS):
        loss = model.loss(tokens, targets)
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()


def replay(trace: Trace, expandable: bool) -> tuple[int, int]:
    """(peak reserved, peak allocated) of an allocator that serves the trace."""
    backend = AddressesOnly(1 << 42)
    allocator = CachingAllocator(backend, backend if expandable else None)
    blocks: dict[int, Block] = {}
    for number, nbytes in trace:
        if nbytes < 0:
            allocator.free(blocks.pop(number))
        else:
            blocks[number] = allocator.malloc(nbytes)
    seen = allocator.statistics()
    return seen.peak_reserved, seen.peak_allocated


def cached_call_row(nbytes: int) -> Row:
    """A malloc and free of a size that is in the cache."""
    backend = AddressesOnly(1 << 40)
    allocator = CachingAllocator(backend, backend)
    measured = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            allocator.free(allocator.malloc(nbytes))
        measured.append((time.perf_counter() - start) / CALLS * 1e6)
    return Row(f"malloc and free, {nbytes >> 10} KiB", "time", "us", "lower", median(measured))


def main() -> None:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    rows = [cached_call_row(4 << 10), cached_call_row(48 << 20)]
    trace = record()
    for expandable in (True, False):
        reserved, allocated = replay(trace, expandable)
        case = f"GPT-2 124M step, {BATCH} x {CONTEXT} tokens, {allocated / 2**30:.2f} GiB, "
        case += "expandable" if expandable else "plain segments"
        rows.append(Row(case, "reserved/allocated", "x", "lower", reserved / allocated))
    finish("allocator", rows, arguments.save, {"steps": STEPS, "requests": len(trace)})


if __name__ == "__main__":
    main()

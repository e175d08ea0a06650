"""Attention beside PyTorch's scaled_dot_product_attention, forward and backward, in one run.

q, k and v are views of one projection (B, T, 3, H, D) of normal random numbers, as in a model.
Results are filled with NaN before each check; errors are those of the first head of each batch
against float64, relative, in the Frobenius norm, the largest of y, dq, dk and dv. Times are medians
between events, ours and the peer's taking turns. PyTorch has no TF32 attention: float32 is its one
peer in every float32 precision.

    usage: python benchmarks/bench_attention.py [--save]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from report import Row, finish, median
from torch.nn.functional import scaled_dot_product_attention as sdpa

import blutrain as bt
from blutrain.autograd.registry import choose
from blutrain.cuda_kernels.attention.problem import Backward, Forward

REPEATS = 20
# What is measured, the storage, blutrain's precision.
PRECISIONS = (
    ("ieee", torch.float32, "ieee"),
    ("tf32x3", torch.float32, "tf32x3"),
    ("tf32", torch.float32, "tf32"),
    ("bf16", torch.bfloat16, "tf32"),
)
SHAPES = ((16, 12, 1024, 64), (4, 12, 1024, 64), (1, 12, 16384, 64), (64, 12, 256, 64))


def seconds(calls: list[Callable[[], object]]) -> list[float]:
    """The device's median time for each call, the calls taking turns."""
    times: list[list[Any]] = [[] for _ in calls]
    for call in calls * 3:
        call()
    torch.cuda.synchronize()
    for _ in range(REPEATS):
        for call, measured in zip(calls, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            measured.append((start, end))
    torch.cuda.synchronize()
    return [median([s.elapsed_time(e) / 1e3 for s, e in measured]) for measured in times]


def exact_results(q: Any, k: Any, v: Any, dy: Any) -> list[Any]:
    """(y, dq, dk, dv) of one head of each batch in float64."""
    inputs = [x[:, 0].detach().double().requires_grad_() for x in (q, k, v)]
    n = q.shape[2]
    scores = inputs[0] @ inputs[1].transpose(-1, -2) * q.shape[3] ** -0.5
    hidden = ~torch.ones(n, n, dtype=torch.bool, device="cuda").tril()
    y = torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ inputs[2]
    y.backward(dy[:, 0].double())
    return [y.detach(), *(x.grad for x in inputs)]


def largest_error(found: list[Any], exact: list[Any]) -> float:
    """The largest relative error."""
    errors = [
        float((x[:, 0].double() - e).norm() / e.norm()) for x, e in zip(found, exact, strict=True)
    ]
    return max(errors)


def measure(name: str, storage: Any, precision: str, shape: tuple[int, ...]) -> list[Row]:
    """Forward and backward of one shape, ours and PyTorch's."""
    b, h, n, d = shape
    qkv = torch.randn(b, n, 3, h, d, device="cuda").to(storage)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    dy = torch.randn(b, n, h, d, device="cuda").to(storage).transpose(1, 2)
    y, dq, dk, dv = (
        torch.full((b, n, h, d), math.nan, device="cuda", dtype=storage).transpose(1, 2)
        for _ in range(4)
    )
    lse = torch.full((b, h, n), math.nan, device="cuda")
    tensors = [bt.from_dlpack(x) for x in (q, k, v, y, lse, dy, dq, dk, dv)]
    scale = d**-0.5
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    their_y: Any = sdpa(leaves[0], leaves[1], leaves[2], is_causal=True)
    with bt.using_matmul_precision(precision):
        tq, tk, tv, ty, t_lse, tdy, tdq, tdk, tdv = tensors
        forward = Forward(tq, tk, tv, ty, t_lse, scale, True)
        backward = Backward(tq, tk, tv, ty, t_lse, scale, True, tdy, tdq, tdk, tdv, False)
        run_forward = choose("attention_forward", forward)
        run_backward = choose("attention_backward", backward)
        run_forward(forward)
        run_backward(backward)
        torch.cuda.synchronize()
        if any(bool(torch.isnan(x).any()) for x in (y, dq, dk, dv)):
            raise SystemExit(f"{name} {shape}: some of the result was not written")
        errors: list[float | None] = [None, None]
        if n <= 4096:
            exact = exact_results(q, k, v, dy)
            theirs = torch.autograd.grad(their_y, leaves, dy, retain_graph=True)
            errors = [largest_error([y, dq, dk, dv], exact)]
            errors.append(largest_error([their_y.detach(), *theirs], exact))
        pairs: list[list[Callable[[], object]]] = [
            [lambda: run_forward(forward), lambda: sdpa(q, k, v, is_causal=True)],
            [
                lambda: run_backward(backward),
                lambda: torch.autograd.grad(their_y, leaves, dy, retain_graph=True),
            ],
        ]
        times = [seconds(pair) for pair in pairs]
    rows = []
    sums = [sum(t[i] for t in times) for i in range(2)]
    for part, (ours, peer) in zip(("forward", "backward", "both"), (*times, sums), strict=True):
        case = f"{name} {part} B{b} H{h} T{n} D{d}"
        rows.append(
            Row(case, "milliseconds", "ms", "lower", ours * 1e3, "SDPA", peer * 1e3, *errors)
        )
    return rows


def main() -> None:
    """Measure all and print or save the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    options = parser.parse_args()
    rows = []
    for shape in SHAPES:
        for precision in PRECISIONS:
            if precision[0] == "ieee" and shape[2] > 4096:
                continue  # minutes
            rows += measure(*precision, shape)
    finish("attention", rows, options.save)


if __name__ == "__main__":
    main()

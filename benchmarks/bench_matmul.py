"""Matrix products beside cuBLAS, in every precision, forward, dX and dW forms, in one run.

Forms, for x (M, K), W (N, K), dy (M, N), as a linear layer has them:

    forward  x Wᵀ      dX  dy W      dW  dyᵀ x

The cases are GPT-2's layers at 16,384 tokens, its vocabulary, and two cubes. Operands are normal
random numbers; the result is filled with NaN before each check; the error is that of 256 rows
against a float64 product, relative, in the Frobenius norm. Times are medians of single products
between events, ours and the peer's taking turns, with the queue kept full so that the host's time
does not count. For small products it does: theirs is the time per call of many in a row.

    usage: python benchmarks/bench_matmul.py [--save] [--quick]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from report import Row, finish, median

import blutrain as bt
from blutrain.cuda_kernels.matmul.matmul import multiply

TOKENS = 16384
REPEATS = 20
CHECKED_ROWS = 256
HEAD_START = 10**7  # cycles that the device sleeps while the host fills its queue
SMALL = 512**3
IN_A_ROW = 100
# blutrain's precision, the storage, and how cuBLAS is asked for the same.
PRECISIONS = (
    ("ieee", torch.float32, False),
    ("tf32x3", torch.float32, False),
    ("tf32", torch.float32, True),
    ("bf16", torch.bfloat16, False),
)
Sizes = tuple[int, int, int]


def cases(quick: bool) -> Iterator[tuple[str, Sizes]]:
    """(form, (rows, columns, inner extent) of the product)."""
    layers = [(768, 768), (2304, 768), (3072, 768), (768, 3072)]
    if not quick:
        layers.append((50304, 768))
    for n_out, n_in in layers:
        yield "forward", (TOKENS, n_out, n_in)
        yield "dX", (TOKENS, n_in, n_out)
        yield "dW", (n_out, n_in, TOKENS)
    for n in (4096,) if quick else (4096, 8192):
        for form in ("forward", "dX", "dW"):
            yield form, (n, n, n)
    for n in (128, 512):
        yield "forward", (n, n, n)
    for m in (1, 16):
        yield "forward", (m, 3072, 768)


def device_seconds(calls: list[Callable[[], object]]) -> list[float]:
    """The device's median time for each call, the calls taking turns."""
    times: list[list[Any]] = [[] for _ in calls]
    for call in calls * 3:
        call()
    torch.cuda.synchronize()
    torch.cuda._sleep(HEAD_START)
    for _ in range(REPEATS):
        for call, measured in zip(calls, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            measured.append((start, end))
    torch.cuda.synchronize()
    return [median([s.elapsed_time(e) / 1e3 for s, e in measured]) for measured in times]


def seconds_a_call(calls: list[Callable[[], object]]) -> list[float]:
    """The median time for each call, host and device, of many in a row."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, measured in zip(calls, times, strict=True):
            call()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(IN_A_ROW):
                call()
            torch.cuda.synchronize()
            measured.append((time.perf_counter() - start) / IN_A_ROW)
    return [median(measured) for measured in times]


def measure(name: str, storage: torch.dtype, tf32: bool, form: str, sizes: Sizes) -> Row:
    """One product, ours and cuBLAS's."""
    m, n, k = sizes
    torch.backends.cuda.matmul.allow_tf32 = tf32
    transpose_a, transpose_b = form == "dW", form == "forward"
    a = torch.randn((k, m) if transpose_a else (m, k), device="cuda").to(storage)
    b = torch.randn((n, k) if transpose_b else (k, n), device="cuda").to(storage)
    ours, theirs = (torch.empty((m, n), device="cuda", dtype=storage) for _ in range(2))
    a_seen, b_seen = a.t() if transpose_a else a, b.t() if transpose_b else b
    x, y, out_seen = (bt.as_tensor(t) for t in (a, b, ours))
    precision = name if storage is torch.float32 else bt.matmul_precision()

    def run_ours() -> None:
        multiply(x, y, out_seen, None, transpose_a, transpose_b)

    def run_theirs() -> None:
        torch.mm(a_seen, b_seen, out=theirs)

    rows = slice(0, CHECKED_ROWS)
    exact = a_seen[rows].double() @ b_seen.double()
    with bt.using_matmul_precision(precision):
        errors = []
        for run, out in ((run_ours, ours), (run_theirs, theirs)):
            out.fill_(math.nan)
            run()
            torch.cuda.synchronize()
            errors.append(float((out[rows].double() - exact).norm() / exact.norm()))
            if bool(torch.isnan(out).any()):
                raise SystemExit(f"{name} {form} {sizes}: some of the result was not written")
        small = m * n * k <= SMALL
        seconds = (seconds_a_call if small else device_seconds)([run_ours, run_theirs])
    tflops = [2 * m * n * k / s / 1e12 for s in seconds]
    case = f"{name} {form} {m}x{n}x{k}"
    return Row(case, "tflops", "TFLOP/s", "higher", tflops[0], "cuBLAS", tflops[1], *errors)


def main() -> None:
    """Measure all and print or save the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="leave out the largest products")
    options = parser.parse_args()
    rows = [
        measure(*precision, *case) for precision, case in product(PRECISIONS, cases(options.quick))
    ]
    finish("matmul", rows, options.save)


if __name__ == "__main__":
    main()

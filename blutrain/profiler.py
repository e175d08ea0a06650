"""What this machine could do at best, to measure a program against."""

from __future__ import annotations

import time

import numpy as np

from blutrain.device import TARGET


def peak_flops() -> float:
    """Peak float32 operations a second of the device that kernels run on.

    On a GPU: multiprocessors × cores × 2 (a fused multiply-add) × clock, without tensor cores. On
    the CPU: what NumPy's BLAS reaches on a large product, measured in a few hundredths of a second.

    Example:
        >>> peak_flops() > 1e8
        True
    """
    return _peak_of_gpu() if TARGET == "cuda" else _measured_on_cpu()


def _measured_on_cpu() -> float:
    n = 768
    a = np.ones((n, n), dtype=np.float32)
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return float(2 * n**3 / best)


def _peak_of_gpu() -> float:
    from blutrain.device.cuda import driver

    device = driver.properties()
    # Float32 cores a multiprocessor (CUDA C programming guide, throughput of instructions).
    cores = 64 if device.compute_capability in ((7, 0), (7, 2), (7, 5), (8, 0)) else 128
    return float(device.n_multiprocessors * cores * 2 * device.clock_hz)

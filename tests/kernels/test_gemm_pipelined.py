"""The kernel on CUDA cores that GPUs use, against the portable one: the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import blutrain as bt
from blutrain.autograd.registry import portable_only
from blutrain.cuda_kernels.matmul import batches, gemm_pipelined
from blutrain.cuda_kernels.matmul.matmul import multiply
from blutrain.cuda_kernels.matmul.problem import Problem


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, True), (True, False)])
@pytest.mark.parametrize("sizes", [(129, 200, 37), (300, 128, 8), (130, 131, 1)])
def test_same_bits_as_the_portable_kernel(monkeypatch, sizes, transpose_a, transpose_b):
    monkeypatch.setattr(gemm_pipelined, "ENOUGH_TILES", 1)
    m, n, k = sizes
    rng = np.random.default_rng(0)
    a = bt.from_numpy(rng.standard_normal((k, m) if transpose_a else (m, k)).astype(np.float32))
    b = bt.from_numpy(rng.standard_normal((n, k) if transpose_b else (k, n)).astype(np.float32))
    bias = bt.from_numpy(rng.standard_normal(n).astype(np.float32))
    ours, portable = (bt.full((m, n), float("nan")) for _ in range(2))
    gemm_pipelined.gemm_pipelined(Problem(a, b, ours, bias, transpose_a, transpose_b))
    with portable_only():
        multiply(a, b, portable, bias, transpose_a, transpose_b)
    assert np.array_equal(ours.numpy(), portable.numpy())


def test_chunks_fill_the_rounds_of_a_device(monkeypatch):
    monkeypatch.setattr(batches, "_tiles_at_a_time", lambda: 264)
    assert batches._n_chunks((1, 1, 16384, 2304), 768) == 1
    assert batches._n_chunks((1, 1, 768, 768), 16384) >= 8  # 36 tiles would leave most idle
    assert batches._n_chunks((1, 3, 768, 768), 16384) == 1  # a batch is not cut
    assert 16384 % batches._n_chunks((1, 1, 3072, 768), 16384) == 0

"""Products of few rows against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blutrain as bt
from blutrain.cuda_kernels.matmul import few_rows
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.device import TARGET


def problem(m, n, k, with_bias, pad=0, seed=0):
    """A product and what it should give; rows of both operands are `pad` elements apart."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal((rows, k + pad)).astype(np.float32) for rows in (m, n))
    vector = rng.standard_normal(n).astype(np.float32)
    a, b = (bt.from_numpy(v)[:, :k] for v in (x, w))
    bias = bt.from_numpy(vector) if with_bias else None
    expected = x[:, :k].astype(np.float64) @ w[:, :k].T + (vector if with_bias else 0)
    return Problem(a, b, bt.full((m, n), float("nan")), bias, False, True), expected


@given(
    m=st.integers(1, few_rows.MAX_ROWS),
    n=st.integers(1, 300),
    k=st.integers(1, 300),
    with_bias=st.booleans(),
    pad=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_any_shape_against_float64(m, n, k, with_bias, pad, seed):
    p, expected = problem(m, n, k, with_bias, pad, seed)
    few_rows.gemm_few_rows(p)
    assert np.abs(p.out.numpy() - expected).max() <= 1e-5 * np.sqrt(k + 1)


@pytest.mark.parametrize(
    ("m", "n", "applies"), [(1, 3072, True), (16, 256, True), (17, 3072, False), (1, 64, False)]
)
def test_which_products_it_takes(m, n, applies):
    p, _ = problem(m, n, 64, False)
    assert few_rows._applies(p) is applies
    assert not few_rows._applies(p._replace(transpose_b=False, b=bt.zeros((64, n))))


@pytest.mark.skipif(TARGET != "cuda", reason="chosen on a GPU alone")
def test_is_chosen_on_a_gpu():
    from blutrain.autograd.registry import choose

    p, _ = problem(4, 512, 64, False)
    assert choose("matmul", p) is few_rows.gemm_few_rows

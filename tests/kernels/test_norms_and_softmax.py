"""Row kernels where rounding, infinities and the order of sums show."""

import numpy as np
import pytest

import blutrain as bt
from blutrain.cuda_kernels.norm.column_sum import MAX_CHUNKS, MIN_ROWS_PER_CHUNK, column_chunks


def test_layer_norm_keeps_its_digits_far_from_zero():
    x = (10000 + np.random.default_rng(0).normal(size=(3, 512))).astype(np.float32)
    y = bt.layer_norm(bt.from_numpy(x), bt.ones(512)).numpy()
    exact = x.astype(np.float64)
    want = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, want, atol=2e-3)  # half a unit of 10000 is 5e-4


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_parameter_gradients_repeat_bit_by_bit(op):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 40)).astype(np.float32)
    runs = []
    for _ in range(2):
        w = bt.ones(40).requires_grad_()
        getattr(bt, op)(bt.from_numpy(x), w).sum().backward()
        runs.append(w.grad.numpy())
    assert np.array_equal(*runs)


@pytest.mark.parametrize("n_rows", [1, 31, 32, 33, 16384, 16385, 10**6])
def test_chunks_cover_all_rows(n_rows):
    n_chunks, rows = column_chunks(n_rows)
    assert n_chunks <= MAX_CHUNKS
    assert rows >= MIN_ROWS_PER_CHUNK
    assert (n_chunks - 1) * rows < n_rows <= n_chunks * rows


def test_only_the_wanted_gradients_are_made():
    x = bt.ones((2, 3))
    w, b = bt.ones(3).requires_grad_(), bt.zeros(3)
    bt.layer_norm(x, w, b).sum().backward()
    assert w.grad is not None
    assert x.grad is None
    assert b.grad is None


@pytest.mark.parametrize("n", [5, 3000])
def test_softmax_of_masked_rows(n):
    x = np.full((3, n), -np.inf, np.float32)
    x[0, [0, n - 1]] = 0.0
    x[2, 0] = np.nan
    y = bt.softmax(bt.from_numpy(x)).numpy()
    log_y = bt.log_softmax(bt.from_numpy(x)).numpy()
    assert y[0, [0, n - 1]].tolist() == [0.5, 0.5]
    assert (y[0, 1 : n - 1] == 0).all()
    assert (log_y[0, 1 : n - 1] == -np.inf).all()
    assert np.isnan(y[1:]).all()
    assert np.isnan(log_y[1:]).all()


@pytest.mark.parametrize("n", [5, 3000])
def test_softmax_of_large_values_does_not_overflow(n):
    x = np.linspace(-1e4, 1e4, n, dtype=np.float32)
    y = bt.softmax(bt.from_numpy(x)).numpy()
    assert np.isfinite(y).all()
    assert y.sum() == pytest.approx(1.0, rel=1e-5)

"""Embedding, cat and split beyond their samples: order, sharing, bad indices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blutrain as bt
from blutrain.cuda_kernels.index.bounds import PER_WARP, unchecked
from blutrain.cuda_kernels.index.embedding import RUN
from blutrain.cuda_kernels.index.token_order import TILE, sorted_keys
from blutrain.errors import AutogradError, ShapeError

LENGTHS = st.sampled_from(
    [1, 2, RUN, RUN + 1, TILE - 1, TILE, TILE + 1, 2 * TILE + 3, 4 * TILE + 1]
)


def weight_gradient(indices, dy, n_rows):
    w = bt.zeros((n_rows, dy.shape[-1]), str(dy.dtype)).requires_grad_()
    y = bt.embedding(bt.from_numpy(indices), w)
    y.backward(bt.from_numpy(dy))
    return w.grad.numpy()


@settings(max_examples=25)
@given(LENGTHS, st.sampled_from([1, 2, 50, 100000]), st.integers(0, 2**32 - 1))
def test_keys_are_sorted_and_keep_positions_in_order(n, n_rows, seed):
    indices = np.random.default_rng(seed).integers(0, n_rows, n)
    keys = sorted_keys(bt.from_numpy(indices)).numpy()[:n]
    assert np.array_equal(keys & 0xFFFFFFFF, np.argsort(indices, kind="stable"))
    assert np.array_equal(keys >> 32, np.sort(indices))


@settings(max_examples=25)
@given(LENGTHS, st.sampled_from([1, 3, 60, 5000]), st.integers(0, 2**32 - 1))
def test_rows_that_are_looked_up_often_are_added_up(n, n_rows, seed):
    rng = np.random.default_rng(seed)
    indices, dy = rng.zipf(1.3, n) % n_rows, rng.normal(size=(n, 3))
    want = np.zeros((n_rows, 3))
    np.add.at(want, indices, dy)
    np.testing.assert_allclose(weight_gradient(indices, dy, n_rows), want, rtol=1e-12, atol=1e-12)


def test_the_gradient_repeats_bit_by_bit():
    rng = np.random.default_rng(0)
    indices, dy = rng.integers(0, 7, 5000), rng.normal(size=(5000, 40)).astype(np.float32)
    first, second = (weight_gradient(indices, dy, 9) for _ in range(2))
    assert np.array_equal(first, second)
    assert (first[7:] == 0).all()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_any_integer_is_an_index(dtype):
    w = bt.tensor([[1.0], [2.0], [3.0]])
    assert bt.embedding(bt.tensor([2, 0], dtype), w).tolist() == [[3.0], [1.0]]


@settings(max_examples=25)
@given(st.integers(1, 3 * PER_WARP), st.data())
def test_the_first_bad_index_is_named(n, data):
    indices = np.zeros(n, np.int64)
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4))
    indices[places] = data.draw(st.sampled_from([-1, 3, -(2**40), 2**40]))
    with pytest.raises(ShapeError, match=rf"got {indices[min(places)]} at \({min(places)},\)"):
        bt.embedding(bt.from_numpy(indices), bt.zeros((3, 2)))


def test_unchecked_indices_give_nan_and_touch_no_other_row():
    w = bt.ones((3, 2)).requires_grad_()
    with unchecked():
        y = bt.embedding(bt.tensor([1, -1, 2**40, 3]), w)
    y.backward(bt.ones((4, 2)))
    assert np.isnan(y.detach().numpy()).all(axis=1).tolist() == [False, True, True, True]
    assert w.grad.tolist() == [[0, 0], [1, 1], [0, 0]]


def test_split_shares_memory_and_cat_does_not():
    x = bt.arange(6)
    left, right = bt.split(x, 3)
    joined = bt.cat([left, right])
    x.fill_(7)
    assert left.tolist() == [7, 7, 7]
    assert joined.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_stretch_without_gradient_counts_as_zeros():
    x = bt.ones((2, 5)).requires_grad_()
    left, _, right = bt.split(x, [2, 1, 2], axis=1)
    (left.sum() + 2.0 * right.sum()).backward()
    assert x.grad.tolist() == [[1, 1, 0, 2, 2]] * 2


def test_a_stretch_of_overwritten_memory_is_refused():
    x = bt.ones(4).requires_grad_() * 1.0
    left, _ = bt.split(x, 2)
    with bt.no_grad():
        x.fill_(0.0)
    with pytest.raises(AutogradError, match="view"):
        left * 2.0


def test_one_tensor_may_be_joined_twice():
    x = bt.tensor([1.0, 2.0], requires_grad=True)
    (bt.cat([x, x, x]) * bt.arange(6).to("float32")).sum().backward()
    assert x.grad.tolist() == [6.0, 9.0]

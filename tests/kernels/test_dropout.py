"""Dropout's mask: its share, its independence, and that backward makes the same one again."""

import numpy as np
import pytest

import blutrain as bt


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p(p, dtype):
    bt.manual_seed(3)
    y = bt.dropout(bt.ones(100_000, dtype), p).numpy()
    assert abs((y == 0).mean() - p) < 5 * np.sqrt(p * (1 - p) / y.size)
    assert np.allclose(y[y != 0], 1 / (1 - p), rtol=1e-2 if dtype == "bfloat16" else 1e-6)


def test_backward_makes_the_same_mask():
    bt.manual_seed(4)
    x = bt.ones((37, 131)).requires_grad_()
    y = bt.dropout(x, 0.3)
    bt.rand(1000)  # moves the state on
    y.backward(bt.ones(y.shape))
    assert np.array_equal(x.grad.numpy(), y.detach().numpy())


def test_every_call_has_a_mask_of_its_own():
    bt.manual_seed(5)
    first, second = (bt.dropout(bt.ones(5000), 0.5).numpy() for _ in range(2))
    assert 0.45 < (first == second).mean() < 0.55
    # Nor is a mask a shifted copy of the one before.
    assert max((first[k:] == second[:-k]).mean() for k in (1, 256, 1024)) < 0.55


def test_the_seed_and_the_state_give_the_mask_again():
    bt.manual_seed(6)
    state = bt.random.get_state()
    first = bt.dropout(bt.ones(3000), 0.5).numpy()
    bt.random.set_state(state)
    assert np.array_equal(bt.dropout(bt.ones(3000), 0.5).numpy(), first)


def test_infinities_are_dropped_like_anything_else():
    bt.manual_seed(7)
    y = bt.dropout(bt.full((1000,), np.inf), 0.5).numpy()
    assert set(y.tolist()) == {0.0, np.inf}


def test_without_training_the_tensor_itself_comes_back():
    x = bt.ones(3)
    assert bt.dropout(x, 0.5, training=False) is x
    assert bt.dropout(x, 0.0) is x

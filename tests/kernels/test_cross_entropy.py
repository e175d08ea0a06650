"""Cross-entropy beyond its samples: infinities, ignored rows, bad targets, determinism."""

import math

import numpy as np
import pytest

import blutrain as bt
from blutrain.cuda_kernels.index.bounds import unchecked
from blutrain.errors import AutogradError, ShapeError


def loss_and_gradient(logits, targets, **params):
    x = bt.from_numpy(logits).requires_grad_()
    loss = bt.cross_entropy(x, bt.from_numpy(targets), **params)
    loss.backward()
    return loss.item(), x.grad.numpy()


def test_masked_classes_count_as_impossible():
    logits = np.zeros((2, 3000), np.float32)
    logits[:, 4:] = -np.inf
    loss, gradient = loss_and_gradient(logits, np.array([0, 3]))
    assert loss == pytest.approx(math.log(4))
    assert np.isfinite(gradient).all()
    assert (gradient[:, 4:] == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("n_classes", [7, 3000])
def test_what_is_not_a_number_is_not_hidden(bad, n_classes):
    logits = np.zeros((2, n_classes), np.float32)
    logits[1, n_classes - 1] = bad
    loss, _ = loss_and_gradient(logits, np.array([0, 0]))
    assert math.isnan(loss) or math.isinf(loss)


def test_an_ignored_row_is_never_looked_at():
    logits = np.ones((3, 5), np.float32)
    logits[1] = [np.nan, np.inf, -np.inf, 1e38, 0]
    loss, gradient = loss_and_gradient(logits, np.array([2, -100, 3]))
    assert loss == pytest.approx(math.log(5))
    assert (gradient[1] == 0).all()


def test_all_ignored_is_nan_as_in_pytorch():
    loss, _ = loss_and_gradient(np.ones((2, 3), np.float32), np.array([-100, -100]))
    assert math.isnan(loss)


def test_no_rows_are_nan_too():
    loss = bt.cross_entropy(bt.zeros((0, 3)), bt.zeros(0, "int64"))
    assert math.isnan(loss.item())


def test_the_first_bad_target_is_named_before_anything_is_made():
    targets = np.zeros((40, 50), np.int64)
    targets[13, 7], targets[13, 8], targets[39, 0] = 11, -1, 99
    x = bt.zeros((40, 50, 11)).requires_grad_()
    with pytest.raises(ShapeError, match=r"within \[0, 11\) or -100, got 11 at \(13, 7\)"):
        bt.cross_entropy(x, bt.from_numpy(targets))
    assert x.grad is None


def test_unchecked_gives_nan_and_reads_nothing_out_of_bounds():
    with unchecked():
        loss = bt.cross_entropy(bt.zeros((2, 3)), bt.tensor([0, 10**9]))
    assert math.isnan(loss.item())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_logits_have_a_float32_loss(dtype):
    x = bt.zeros((300, 5), dtype).requires_grad_()
    loss = bt.cross_entropy(x, bt.zeros(300, "int64"))
    loss.backward()
    assert loss.dtype is bt.float32
    assert loss.item() == pytest.approx(math.log(5), rel=1e-6)
    assert x.grad.dtype is x.dtype


def test_the_same_inputs_give_the_same_bits():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 1500)).astype(np.float32)
    targets = rng.integers(0, 1500, 600)
    first, second = (loss_and_gradient(logits, targets) for _ in range(2))
    assert first[0] == second[0]
    assert np.array_equal(first[1], second[1])


def test_the_gradient_may_take_the_logits_memory():
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(9, 1500)).astype(np.float32), rng.integers(0, 1500, 9)
    _, want = loss_and_gradient(logits, targets)
    leaf = bt.from_numpy(logits).requires_grad_()
    made = leaf * 1.0
    loss = bt.cross_entropy(made, bt.from_numpy(targets), reuse_logits=True)
    loss.backward(retain_graph=True)
    assert np.array_equal(leaf.grad.numpy(), want)
    assert np.array_equal(made.detach().numpy(), want)
    assert np.array_equal(leaf.detach().numpy(), logits)
    with pytest.raises(AutogradError, match="must be as the forward left it"):
        loss.backward()


def test_a_leaf_is_not_overwritten():
    x = bt.zeros((2, 3)).requires_grad_()
    with pytest.raises(AutogradError, match="reuse_logits must not overwrite a leaf"):
        bt.cross_entropy(x, bt.zeros(2, "int64"), reuse_logits=True)


@pytest.mark.peer
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_agrees_with_pytorch(smoothing):
    import torch

    rng = np.random.default_rng(1)
    logits = rng.normal(size=(64, 1100)).astype(np.float32)
    targets = rng.integers(0, 1100, 64)
    targets[::5] = -100
    loss, gradient = loss_and_gradient(logits, targets, label_smoothing=smoothing)
    theirs = torch.tensor(logits, requires_grad=True)
    their_loss = torch.nn.functional.cross_entropy(
        theirs, torch.tensor(targets), label_smoothing=smoothing
    )
    their_loss.backward()
    assert loss == pytest.approx(their_loss.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), rtol=1e-5, atol=1e-8)

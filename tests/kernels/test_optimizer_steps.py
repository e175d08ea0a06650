"""Optimizer kernels over many tensors: against PyTorch, in mixed dtypes, with kept tables."""

import math

import numpy as np
import pytest

import blutrain as bt
from blutrain.cuda_kernels.optimizer import tensor_table
from blutrain.cuda_kernels.optimizer.grad_norm import clip_coefficient, scale_tensors
from blutrain.cuda_kernels.optimizer.tensor_table import CHUNK

SHAPES = [(3, 5), (), (CHUNK + 3,), (1,), (0, 4), (64, 130)]


def draw(rng, shapes, dtype="float32"):
    return [bt.from_numpy(np.asarray(rng.normal(size=s)), dtype) for s in shapes]


@pytest.mark.peer
def test_adamw_agrees_with_pytorch_over_many_steps():
    import torch

    rng = np.random.default_rng(0)
    params = draw(rng, SHAPES)
    theirs = [torch.nn.Parameter(torch.tensor(p.numpy())) for p in params]
    adam = torch.optim.AdamW(theirs, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    means, squares = ([bt.zeros(p.shape) for p in params] for _ in range(2))
    for step in range(1, 8):
        grads = draw(rng, SHAPES)
        for t, g in zip(theirs, grads, strict=True):
            t.grad = torch.tensor(g.numpy())
        adam.step()
        bt.adamw_step(
            params, grads, means, squares, step=step, lr=0.01, beta1=0.8, beta2=0.95, eps=1e-6,
            weight_decay=0.1,
        )  # fmt: skip
    for p, t in zip(params, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), t.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.peer
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_agrees_with_pytorch_over_many_steps(momentum, nesterov):
    import torch

    rng = np.random.default_rng(0)
    params = draw(rng, SHAPES)
    theirs = [torch.nn.Parameter(torch.tensor(p.numpy())) for p in params]
    settings = {"lr": 0.1, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.01}
    sgd = torch.optim.SGD(theirs, **settings)
    buffers = [bt.zeros(p.shape) for p in params]
    for _ in range(4):
        grads = draw(rng, SHAPES)
        for t, g in zip(theirs, grads, strict=True):
            t.grad = torch.tensor(g.numpy())
        sgd.step()
        bt.sgd_step(params, grads, buffers, **settings)
    for p, t in zip(params, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), t.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_dtypes_may_be_mixed_and_moments_of_halves_are_float32():
    p = [bt.ones(300), bt.ones(300, "float64"), bt.ones(300, "bfloat16")]
    g = [bt.full((300,), 0.5, d) for d in ("float32", "float64", "bfloat16")]
    moments = [[bt.zeros(300), bt.zeros(300, "float64"), bt.zeros(300)] for _ in range(2)]
    bt.adamw_step(p, g, *moments, step=1, lr=0.25, weight_decay=0.0)
    for k, t in enumerate(p):
        np.testing.assert_allclose(t.numpy(), 0.75, rtol=1e-6)
        np.testing.assert_allclose(moments[0][k].numpy(), 0.05, rtol=1e-6)
        assert t.version == 1


def test_a_parameter_with_gaps_is_stepped_too():
    whole = bt.zeros((4, 6))
    view = whole.T[::2]
    bt.sgd_step([view], [bt.ones(view.shape)], lr=1.0)
    assert whole.tolist() == [[-1, 0, -1, 0, -1, 0]] * 4


def test_a_device_scalar_scales_the_gradients():
    p = [bt.zeros(5), bt.zeros(7)]
    bt.sgd_step(p, [bt.ones(5), bt.ones(7)], lr=1.0, grad_scale=bt.tensor(0.25))
    assert p[1].tolist() == [-0.25] * 7


def test_gradients_at_new_addresses_are_found():
    p = bt.zeros(3)
    kept = []
    for k in range(2 * tensor_table.KEPT):
        kept.append(bt.full((3,), float(k)))
        bt.sgd_step([p], [kept[-1]], lr=1.0)
    assert p.tolist() == [-sum(range(2 * tensor_table.KEPT))] * 3
    assert len(tensor_table._tables._made) <= tensor_table.KEPT


def test_the_norm_repeats_bit_by_bit_and_is_exact_enough():
    rng = np.random.default_rng(0)
    tensors = draw(rng, [(1000, 300), (7,), (100_001,)])
    norms = {bt.grad_norm(tensors).item() for _ in range(3)}
    want = math.sqrt(sum((t.numpy().astype(np.float64) ** 2).sum() for t in tensors))
    assert len(norms) == 1
    assert norms.pop() == pytest.approx(want, rel=1e-6)


def test_the_norm_of_mixed_dtypes_and_missing_gradients():
    got = bt.grad_norm([bt.full((2, 2), 2.0, "bfloat16"), None, bt.full((9,), 2.0, "float64")])
    assert got.dtype is bt.float32
    assert got.item() == pytest.approx(math.sqrt(52))


@pytest.mark.parametrize(
    ("norm", "want"), [(0.5, 1.0), (4.0, 0.5), (math.inf, 0.0), (math.nan, math.nan)]
)
def test_clip_coefficient(norm, want):
    got = clip_coefficient(bt.tensor(norm), 2.0).item()
    assert got == pytest.approx(want, rel=1e-6, nan_ok=True)


def test_scaling_many_tensors():
    tensors = [bt.ones(3), bt.ones((2, 2), "bfloat16"), bt.ones(CHUNK + 1)]
    scale_tensors(tensors, bt.tensor(0.5))
    assert [t.numpy().min() for t in tensors] == [0.5, 0.5, 0.5]
    assert [t.numpy().max() for t in tensors] == [0.5, 0.5, 0.5]
    assert tensors[0].version == 1

"""Optimizers against their formulas in NumPy float64; groups, state, clipping."""

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn, optim
from blutrain.errors import CheckpointError, DTypeError, ShapeError

SHAPES = [(3, 5), (7,), (1,), (65, 33)]


def parameters(dtype="float32"):
    rng = np.random.default_rng(0)
    return [nn.Parameter(bt.from_numpy(rng.normal(size=s), dtype=dtype)) for s in SHAPES]


def give_gradients(params, step):
    rng = np.random.default_rng(100 + step)
    for p in params:
        p.grad = bt.from_numpy(rng.normal(size=p.shape), dtype=p.dtype)


def values(params):
    return [p.detach().numpy().astype(np.float64) for p in params]


def adamw_reference(p, gradients, lr, b1, b2, eps, decay):
    m = v = np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p * (1 - lr * decay)
        p = p - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return p


def sgd_reference(p, gradients, lr, momentum, decay, nesterov):
    buffer = None
    for g in gradients:
        g = g + decay * p
        if momentum:
            buffer = g if buffer is None else momentum * buffer + g
            g = g + momentum * buffer if nesterov else buffer
        p = p - lr * g
    return p


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adamw(dtype, decay):
    params = parameters(dtype)
    first, gradients = values(params), []
    optimizer = optim.AdamW(params, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=decay)
    for step in range(5):
        give_gradients(params, step)
        gradients.append([p.grad.numpy().astype(np.float64) for p in params])
        optimizer.step()
    for k, p in enumerate(values(params)):
        want = adamw_reference(first[k], [g[k] for g in gradients], 0.01, 0.8, 0.9, 1e-6, decay)
        assert p == pytest.approx(want, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd(momentum, nesterov):
    params = parameters()
    first, gradients = values(params), []
    optimizer = optim.SGD(params, 0.1, momentum, weight_decay=0.01, nesterov=nesterov)
    for step in range(4):
        give_gradients(params, step)
        gradients.append([p.grad.numpy().astype(np.float64) for p in params])
        optimizer.step()
    for k, p in enumerate(values(params)):
        own = [g[k] for g in gradients]
        want = sgd_reference(first[k], own, 0.1, momentum, 0.01, nesterov)
        assert p == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_a_parameter_without_gradient_stays():
    params = parameters()
    before = values(params)
    give_gradients(params, 0)
    params[1].grad = None
    optim.AdamW(params, lr=0.1).step()
    after = values(params)
    assert (after[1] == before[1]).all()
    assert (after[0] != before[0]).all()


def test_a_step_without_any_gradient():
    optim.AdamW(parameters(), lr=0.1).step()


@pytest.mark.parametrize("kind", [optim.AdamW, lambda p, lr: optim.SGD(p, lr, momentum=0.9)])
def test_state_goes_on_bit_for_bit(kind):
    one, two = parameters(), parameters()
    a, b = kind(one, lr=0.1), kind(two, lr=0.5)
    for step in range(3):
        give_gradients(one, step)
        a.step()
    for p, q in zip(one, two, strict=True):
        nn.parameter.overwrite(q, p)
    b.load_state_dict(a.state_dict())
    assert b.groups[0]["lr"] == 0.1
    for step in range(3, 6):
        for params, optimizer in ((one, a), (two, b)):
            give_gradients(params, step)
            optimizer.step()
    assert all((p == q).all() for p, q in zip(values(one), values(two), strict=True))


def test_a_state_that_does_not_fit():
    optimizer = optim.AdamW(parameters(), lr=0.1)
    fewer = optim.AdamW(parameters()[:2], lr=0.1).state_dict()
    with pytest.raises(CheckpointError, match=r"groups of \[4\] parameters, got \[2\]"):
        optimizer.load_state_dict(fewer)
    state = optimizer.state_dict()
    state["slots"][1]["exp_avg"] = np.zeros(8)
    with pytest.raises(CheckpointError, match=r"exp_avg of parameter 1 must have shape \(7,\)"):
        optimizer.load_state_dict(state)
    state = optim.SGD(parameters(), 0.1, momentum=0.9).state_dict()
    with pytest.raises(CheckpointError, match="parameter 0 must have the slots"):
        optimizer.load_state_dict(state)


def test_decay_groups():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    groups = optim.decay_groups(net, 0.1)
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert [len(g["params"]) for g in groups] == [1, 3]
    optimizer = optim.AdamW(groups, lr=0.1)
    optimizer.set_lr(0.2)
    assert [g["lr"] for g in optimizer.groups] == [0.2, 0.2]


def test_bad_parameters():
    p = parameters()
    with pytest.raises(ShapeError, match="parameters must be given, each once, got 0"):
        optim.AdamW([], lr=0.1)
    with pytest.raises(ShapeError, match="each once, got 5"):
        optim.AdamW([*p, p[0]], lr=0.1)
    with pytest.raises(DTypeError, match=r"must be given Parameters, got Tensor; wrap it"):
        optim.AdamW([bt.ones(3)], lr=0.1)
    with pytest.raises(ShapeError, match="a group may set lr, .* got momentum"):
        optim.AdamW([{"params": p, "momentum": 0.9}], lr=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -0.1},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"eps": 0.0},
        {"weight_decay": -1},
    ],
)
def test_bad_adamw_settings(options):
    with pytest.raises(ShapeError, match="AdamW: must hold"):
        optim.AdamW(parameters(), **{"lr": 0.1, **options})


def test_bad_sgd_settings():
    with pytest.raises(ShapeError, match="SGD: must hold"):
        optim.SGD(parameters(), 0.1, momentum=1.0)
    with pytest.raises(ShapeError, match="nesterov needs momentum"):
        optim.SGD(parameters(), 0.1, nesterov=True)


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clip(limit):
    params = parameters()
    give_gradients(params, 0)
    before = [p.grad.numpy().astype(np.float64) for p in params]
    norm = np.sqrt(sum((g * g).sum() for g in before))
    assert float(optim.clip_grad_norm(params, limit)) == pytest.approx(norm, rel=1e-5)
    factor = min(1.0, limit / norm)
    for p, g in zip(params, before, strict=True):
        assert p.grad.numpy() == pytest.approx(g * factor, rel=1e-5)
    if factor == 1:
        assert all((p.grad.numpy() == g).all() for p, g in zip(params, before, strict=True))


def test_clip_without_gradients():
    assert float(optim.clip_grad_norm(parameters(), 1.0)) == 0


def test_clip_keeps_what_is_not_finite():
    params = parameters()
    give_gradients(params, 0)
    params[0].grad = params[0].grad * float("inf")
    assert not np.isfinite(float(optim.clip_grad_norm(params, 1.0)))

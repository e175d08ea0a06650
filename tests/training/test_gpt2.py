"""GPT-2: sizes, initialisation, generation, refusals."""

import math

import numpy as np
import pytest

import blutrain as bt
from blutrain.errors import BlutrainError, DTypeError, ShapeError
from blutrain.models import GPT2, PRESETS, GPT2Config

SMALL = GPT2Config(vocab_size=32, block_size=8, n_layer=2, n_head=2, n_embd=16)


@pytest.fixture(scope="module")
def model():
    bt.manual_seed(0)
    return GPT2(SMALL)


def expected_parameters(c):
    block = 12 * c.n_embd**2 + 13 * c.n_embd
    return (c.vocab_size + c.block_size) * c.n_embd + c.n_layer * block + 2 * c.n_embd


def test_parameter_count(model):
    assert model.n_parameters() == expected_parameters(SMALL)
    # 124,439,808 with the vocabulary not padded, as published.
    assert expected_parameters(GPT2Config(vocab_size=50257)) == 124_439_808


@pytest.mark.parametrize(
    ("name", "millions"), [("small", 124), ("medium", 355), ("large", 774), ("xl", 1558)]
)
def test_presets_have_the_published_sizes(name, millions):
    assert round(expected_parameters(PRESETS[name]) / 1e6) in (millions, millions + 1)


def test_initialisation():
    bt.manual_seed(0)
    c = GPT2Config(vocab_size=200, block_size=50, n_layer=8, n_head=2, n_embd=64)
    state = {name: t.numpy() for name, t in GPT2(c).state_dict().items()}
    for name, values in state.items():
        if name.endswith("bias"):
            assert (values == 0).all()
        elif "ln_" in name:
            assert (values == 1).all()
        else:
            std = 0.02 / math.sqrt(16) if name.endswith("proj.weight") else 0.02
            assert values.std() == pytest.approx(std, rel=0.05), name


def test_the_first_loss_is_that_of_a_guess(model):
    tokens = bt.from_numpy(np.arange(16).reshape(2, 8))
    loss = model.loss(tokens, bt.from_numpy(np.arange(16)[::-1].reshape(2, 8).copy()))
    assert float(loss) == pytest.approx(math.log(32), rel=0.02)


def test_every_parameter_gets_a_gradient(model):
    tokens = bt.from_numpy(np.arange(16).reshape(2, 8))
    model.zero_grad()
    model.loss(tokens, tokens).backward()
    for name, p in model.named_parameters():
        assert p.grad.shape == p.shape, name
        assert np.abs(p.grad.numpy()).max() > 0, name


def test_the_future_is_not_seen(model):
    one = np.arange(8)[None]
    other = one.copy()
    other[0, 5] = 31
    a, b = (model(bt.from_numpy(t)).detach().numpy()[0] for t in (one, other))
    assert (a[:5] == b[:5]).all()
    assert (a[5:] != b[5:]).any()


def test_generation_is_seeded_and_leaves_no_trace(model):
    before = bt.random.get_state()
    model.train()
    runs = [model.generate([1, 2], 12, top_k=5, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert len(runs[0]) == 14
    assert runs[0][:2] == [1, 2]
    assert bt.random.get_state() == before
    assert model.training


def test_generation_takes_the_likeliest_at_zero_temperature(model):
    tokens = model.generate([3], 1, temperature=0)
    logits = model(bt.from_numpy(np.array([[3]]))).detach().numpy()
    assert tokens[1] == logits[0, -1].argmax()
    assert model.generate([3], 1, top_k=1) == tokens


def test_generation_leaves_padding_out(model):
    assert max(model.generate([0], 40, temperature=50.0, n_choices=4)) < 4


@pytest.mark.parametrize(
    "options",
    [{"prompt": []}, {"n_new": -1}, {"temperature": -0.1}, {"top_k": 0}],
)
def test_bad_generation(model, options):
    with pytest.raises(ShapeError, match="generate: the prompt must not be empty"):
        model.generate(**{"prompt": [1], "n_new": 1, **options})


@pytest.mark.parametrize("bad", [-1, 32])
def test_tokens_out_of_range(model, bad):
    with pytest.raises(BlutrainError, match="embedding: "):
        model(bt.from_numpy(np.array([[0, bad]])))


def test_bad_tokens(model):
    with pytest.raises(ShapeError, match=r"T in 1\.\.8, got \(1, 9\)"):
        model(bt.from_numpy(np.zeros((1, 9), np.int64)))
    with pytest.raises(DTypeError, match="tokens must be integers, got bt.float32"):
        model(bt.zeros((1, 4)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_layer": 0}, "n_layer must be at least 1, got 0"),
        ({"n_head": 5}, r"multiple of n_head, got \(768, 5\)"),
    ],
)
def test_bad_config(change, says):
    with pytest.raises(ShapeError, match=says):
        GPT2Config(**change)


def test_unknown_preset():
    with pytest.raises(ShapeError, match=r"name must be one of \['tiny'.*got huge"):
        GPT2.preset("huge")


def test_flops_per_token(model):
    # Of GPT-2 124M at T = 1024: 6 · 124M + 12 · 12 · 768 · 1024, the position table left out.
    weights = expected_parameters(SMALL) - 8 * 16
    assert model.flops_per_token() == 6 * weights + 12 * 2 * 16 * 8


def test_half_precision_is_close_to_single():
    bt.manual_seed(0)
    model = GPT2(SMALL)
    tokens = bt.from_numpy(np.arange(16).reshape(2, 8))
    single = float(model.loss(tokens, tokens))
    loss = model.to(bt.bfloat16).loss(tokens, tokens)
    loss.backward()
    assert float(loss) == pytest.approx(single, rel=0.01)
    assert all(p.grad.dtype is bt.bfloat16 for p in model.parameters())

"""Modules: the tree, its state, hooks, modes."""

import numpy as np
import pytest

import blutrain as bt
from blutrain import nn
from blutrain.errors import CheckpointError, DTypeError, ShapeError


class Net(nn.Module):
    def __init__(self):
        self.table = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.again = self.layers[0]  # Shared: counted once.
        self.register_buffer("scale", bt.full((4,), 2.0))
        self.drop = nn.Dropout(0.5)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = self.drop(layer(x))
        return x * self.scale


TOKENS = np.array([[1, 2, 3]])


def test_names_in_order_and_once():
    net = Net()
    names = [name for name, _ in net.named_parameters()]
    assert names == ["table.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight",
                     "layers.1.bias"]  # fmt: skip
    assert [name for name, _ in net.named_buffers()] == ["scale"]
    assert net.n_parameters() == 40 + 2 * 20
    assert "drop" in dict(net.named_modules())


def test_replacing_an_attribute_replaces_the_parameter():
    layer = nn.Linear(2, 3)
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert layer(bt.ones((1, 2))).shape == (1, 3)


def test_state_round_trip():
    one, two = Net(), Net()
    two.load_state_dict({name: t.numpy() for name, t in one.state_dict().items()})
    for (name, a), (_, b) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        assert (a.numpy() == b.numpy()).all(), name
    tokens = bt.from_numpy(TOKENS)
    assert (one.eval()(tokens).detach().numpy() == two.eval()(tokens).detach().numpy()).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("scale"), "must not lack scale; load the state"),
        (lambda s: s.update(extra=np.zeros(3)), "must not hold extra"),
        (lambda s: s.update(scale=np.zeros(3)), r"scale must have shape \(4,\), got \(3,\)"),
        (lambda s: s.update(scale=[1, 2]), "scale must be a tensor or an array, got list"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, says):
    net = Net()
    before = {name: t.numpy() for name, t in net.state_dict().items()}
    state = {name: values + 1 for name, values in before.items()}
    change(state)
    with pytest.raises(CheckpointError, match=says):
        net.load_state_dict(state)
    for name, t in net.state_dict().items():
        assert (t.numpy() == before[name]).all()


def test_not_strict():
    net = Net()
    net.load_state_dict({"scale": np.full(4, 3.0, np.float32), "extra": 1}, strict=False)
    assert net.scale.tolist() == [3.0] * 4


def test_many_missing_names_are_counted():
    with pytest.raises(CheckpointError, match="and 2 more"):
        Net().load_state_dict({})


def test_modes_reach_everything_below():
    net = Net()
    tokens = bt.from_numpy(TOKENS)
    assert not net.eval().drop.training
    quiet = net(tokens).detach().numpy()
    assert (quiet == net(tokens).detach().numpy()).all()
    assert net.train().drop.training
    assert (quiet != net(tokens).detach().numpy()).any()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_to_converts_in_place(dtype):
    net = Net()
    weight = net.layers[0].weight
    assert net.to(dtype) is net
    assert net.layers[0].weight is weight
    assert weight.dtype.name == net.scale.dtype.name == dtype
    loss = net.eval()(bt.from_numpy(TOKENS)).sum()
    loss.backward()
    assert weight.grad.dtype.name == dtype
    net.zero_grad()
    assert weight.grad is None


def test_to_an_integer():
    with pytest.raises(DTypeError, match="dtype must be floating, got bt.int32"):
        Net().to("int32")


def test_hooks_see_replace_and_come_off():
    layer = nn.Linear(2, 2)
    seen = []
    x = bt.ones((1, 2))
    with layer.register_forward_hook(lambda m, i, o: seen.append((m, i[0].shape, o.shape))):
        layer(x)
    layer(x)
    assert seen == [(layer, (1, 2), (1, 2))]
    handle = layer.register_forward_hook(lambda m, i, o: o * 0.0)
    assert layer(x).tolist() == [[0.0, 0.0]]
    handle.remove()
    assert layer(x).tolist() != [[0.0, 0.0]]


def test_containers():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    assert net(bt.ones((5, 2))).shape == (5, 1)
    assert len(net) == 3
    assert isinstance(net[-1], nn.Linear)
    assert repr(net) == (
        "Sequential(\n  (0): Linear(2, 3)\n  (1): ReLU()\n  (2): Linear(3, 1, bias=False)\n)"
    )


@pytest.mark.parametrize(
    "make",
    [
        nn.GELU,
        lambda: nn.GELU("tanh"),
        nn.ReLU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Tanh,
        lambda: nn.RMSNorm(4),
        lambda: nn.LayerNorm(4, bias=False),
    ],
)
def test_shapes_stay(make):
    assert make()(bt.ones((2, 3, 4))).shape == (2, 3, 4)


def test_layer_norm_without_bias_keeps_a_buffer():
    layer = nn.LayerNorm(4, bias=False)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert "bias" in layer.state_dict()


def test_initialisers():
    bt.manual_seed(1)
    shape = (200, 300)
    cases = {
        0.3: nn.init.normal(0.3),
        0.5 / 3**0.5: nn.init.uniform(0.5),
        300**-0.5 / 3**0.5: nn.init.fan_in_uniform(),
        (2 / 500) ** 0.5: nn.init.xavier_uniform(),
        (2 / 300) ** 0.5: nn.init.kaiming_normal(),
    }
    for std, make in cases.items():
        values = make(shape, bt.float32).numpy()
        assert values.std() == pytest.approx(std, rel=0.02)
        assert abs(values.mean()) < 0.02 * std * 3
    assert nn.init.ones()((2,), bt.float64).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Dropout(1.0), r"p must be in \[0, 1\), got 1.0"),
        (lambda: nn.MultiHeadAttention(8, 3), r"multiple of n_head, got \(8, 3\)"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(ShapeError, match=says):
        make()


def test_parameters_are_floating_and_buffers_are_tensors():
    with pytest.raises(DTypeError, match="must be floating, got bt.int64"):
        nn.Parameter(bt.from_numpy(TOKENS))
    with pytest.raises(DTypeError, match="scale must be a tensor and not a Parameter, got list"):
        nn.Module().register_buffer("scale", [1])


def test_attention_is_causal():
    bt.manual_seed(0)
    layer = nn.MultiHeadAttention(8, 2)
    x = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
    y = x.copy()
    y[0, 3] += 1
    a, b = (layer(bt.from_numpy(v)).detach().numpy() for v in (x, y))
    assert (a[0, :3] == b[0, :3]).all()
    assert (a[0, 3:] != b[0, 3:]).any(axis=-1).all()


class TestFirstNonFinite:
    def net(self):
        bt.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))

    def loss(self, net, value=1.0):
        return lambda: (net(bt.full((2, 3), value)) ** 2).mean()

    def test_all_finite(self):
        net = self.net()
        assert nn.first_nonfinite(net, self.loss(net)) is None

    def test_parameter(self):
        net = self.net()
        values = net[2].weight.detach().numpy()
        values[1, 1] = np.nan
        net.load_state_dict({"2.weight": values}, strict=False)
        assert nn.first_nonfinite(net, self.loss(net)) == "parameter 2.weight (1 of 8 elements)"

    def test_activation_in_forward_order(self):
        net = self.net()
        found = nn.first_nonfinite(net, self.loss(net, float("inf")))
        assert found.startswith("activation 0 (")

    def test_loss(self):
        net = self.net()
        found = nn.first_nonfinite(net, lambda: self.loss(net)() * float("inf"))
        assert found.startswith("the loss")

    def test_gradient(self):
        net = nn.Linear(2, 2)
        net.load_state_dict({"weight": np.zeros((2, 2)), "bias": np.zeros(2)})
        # The root of zero is finite, its slope is not.
        found = nn.first_nonfinite(net, lambda: bt.sqrt(net(bt.ones((1, 2)))).sum())
        assert found.startswith("gradient of bias (2 of 2")

    def test_hooks_come_off(self):
        net = self.net()
        nn.first_nonfinite(net, self.loss(net))
        assert not net[0]._hooks

"""Graphs on whichever target the tests run on, and what the driver is told."""

import gc

import numpy as np
import pytest

import blutrain as bt
from blutrain import memory, optim
from blutrain.cuda_kernels.index import bounds
from blutrain.device import Event, Stream, copy_to_device, fill_bytes, synchronize
from blutrain.device.stream import here
from blutrain.errors import DeviceError, OutOfMemoryError
from blutrain.models.gpt2 import GPT2, GPT2Config


def set_to(x, value):
    copy_to_device(x.storage.pointer, np.full(x.shape, value, np.float32))


def warm(x):
    """Compile what the tests capture."""
    (x * 2 + 1).sum()


def test_nothing_runs_during_the_capture_and_all_at_every_replay():
    x = bt.ones(1000)
    warm(x)
    counter = bt.zeros(1)
    counter.add_(1)
    with bt.capture_graph() as graph:
        counter.add_(1)
        total = (x * 2 + 1).sum()
    assert counter.item() == 1
    assert graph.n_nodes >= 4
    for k, value in enumerate((1.0, 5.0, -3.0), start=2):
        set_to(x, value)
        graph.replay()
        assert total.item() == 1000 * (2 * value + 1)
        assert counter.item() == k


def test_fills_and_device_copies_are_captured():
    x, y = bt.ones(100), bt.zeros(100)
    with bt.capture_graph() as graph:
        from blutrain.device import copy_device

        copy_device(y.storage.pointer, x.storage.pointer, 400)
        fill_bytes(x.storage.pointer, 0, 400)
    assert y.numpy().sum() == 0
    graph.replay()
    assert y.numpy().sum() == 100
    assert x.numpy().sum() == 0
    assert graph.n_nodes == 2


def test_the_graphs_memory_is_its_own_while_it_lives():
    x = bt.ones(300_000)
    warm(x)
    with bt.capture_graph() as graph:
        total = (x * 2 + 1).sum()
    memory.empty_cache()
    others = [bt.full((300_000,), 7.0) for _ in range(8)]
    graph.replay()
    assert total.item() == 900_000
    assert all((o.numpy() == 7).all() for o in others)
    kept = memory.memory_reserved()
    del others, graph, total
    gc.collect()
    memory.empty_cache()
    assert memory.memory_reserved() < kept


def test_graphs_that_share_a_pool_share_its_memory():
    x = bt.ones(3_000_000)
    warm(x)
    memory.empty_cache()
    with bt.capture_graph() as first:
        a = (x * 2 + 1).sum()
    reserved = memory.memory_reserved()
    with bt.capture_graph(pool=first.pool) as second:
        b = (x * 3 + 1).sum()
    assert memory.memory_reserved() - reserved <= 2 << 20
    first.replay()
    second.replay()
    assert (a.item(), b.item()) == (9_000_000, 12_000_000)


def test_backward_is_captured():
    x = bt.from_numpy(np.linspace(-2, 2, 64, dtype=np.float32))
    x.requires_grad = True

    def step():
        x.grad = None
        bt.gelu(x).sum().backward()
        return x.grad

    want = step().numpy()
    with bt.capture_graph() as graph:
        grad = step()
    graph.replay()
    np.testing.assert_array_equal(grad.numpy(), want)


def test_matrix_products_are_captured():
    a = bt.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    with bt.capture_graph() as graph:
        product = a @ a.T
    set_to(a, 2)
    graph.replay()
    np.testing.assert_array_equal(product.numpy(), np.full((3, 3), 16))


def test_a_gpt_step_is_captured_and_replayed():
    bt.manual_seed(0)
    config = GPT2Config(vocab_size=64, block_size=16, n_layer=1, n_head=2, n_embd=32)
    model = GPT2(config)
    window = np.random.default_rng(0).integers(0, 64, (2, 17))
    tokens, targets = (bt.from_numpy(w.copy()) for w in (window[:, :-1], window[:, 1:]))

    def step():
        model.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    wanted, gradients = step()
    want = wanted.item(), [g.numpy() for g in gradients]
    # The check of indices reads its answer on the host.
    with bounds.unchecked(), bt.capture_graph() as graph:
        loss, captured = step()
    graph.replay()
    assert loss.item() == pytest.approx(want[0], rel=1e-5)
    for got, expected in zip(captured, want[1], strict=True):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-3, atol=1e-5)
    optim.SGD(list(model.parameters()), lr=0.5).step()
    graph.replay()
    assert loss.item() < want[0]


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("synchronize", synchronize),
        ("copy_to_device", lambda: bt.from_numpy(np.ones(3, np.float32))),
        ("(copy_to_host|host_view)", lambda: bt.zeros(3).numpy()),
        ("Stream.synchronize", lambda: Stream().synchronize()),
        ("Stream.query", lambda: Stream().query()),
        ("Event.synchronize", lambda: Event().synchronize()),
        ("Event.query", lambda: Event().query()),
    ],
)
def test_what_waits_for_the_device_cannot_be_captured(name, forbidden):
    bt.zeros(3)
    says = f"{name}: cannot be captured.*before or after"
    with pytest.raises(DeviceError, match=says), bt.capture_graph() as graph:
        forbidden()
    assert here.capture is None
    assert here.place is None
    with pytest.raises(DeviceError, match="Graph.replay: the graph must have been captured to the"):
        graph.replay()
    synchronize()


@pytest.mark.parametrize("draw", [lambda x: bt.dropout(x, 0.5), lambda x: bt.rand(3)])
def test_random_numbers_cannot_be_captured(draw):
    x, before = bt.ones(3), bt.random.get_state()
    says = "random: random numbers cannot be captured: every replay would draw the same; draw them"
    with pytest.raises(DeviceError, match=says), bt.capture_graph():
        draw(x)
    assert bt.random.get_state() == before
    assert here.capture is None
    with bt.capture_graph() as graph:
        y = bt.dropout(x, 0.5, training=False) + 1
    graph.replay()
    assert y.numpy().tolist() == [2.0] * 3


def test_a_capture_within_a_capture():
    says = "one capture cannot contain another"
    with pytest.raises(DeviceError, match=says), bt.capture_graph(), bt.capture_graph():
        pass
    assert here.capture is None


def test_a_graph_is_not_replayed_within_a_capture():
    counter = bt.zeros(1)
    counter.add_(1)
    with bt.capture_graph() as inner:
        counter.add_(1)
    with bt.capture_graph() as outer:
        counter.add_(1)
        with pytest.raises(DeviceError, match="a capture must not be under way"):
            inner.replay()
    inner.replay()
    outer.replay()
    assert counter.item() == 3


def test_an_empty_graph():
    with bt.capture_graph() as graph:
        pass
    graph.replay()
    assert graph.n_nodes == 0


def test_running_out_of_memory_in_a_capture_leaves_nothing_behind():
    gc.collect()  # graphs of earlier tests
    allocated = memory.memory_allocated()
    says = "call bt.memory.empty_cache before the capture"
    with pytest.raises(OutOfMemoryError, match=says), bt.capture_graph():
        memory.malloc(1 << 50)
    gc.collect()
    assert memory.memory_allocated() == allocated
    warm(bt.ones(10))

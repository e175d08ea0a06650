"""The tape: modes, hooks, freeing, versions, checkpoint, custom functions, deep chains."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import blutrain as bt
from blutrain import memory


def leaf(*values, dtype="float64"):
    return bt.tensor(list(values), dtype=dtype, requires_grad=True)


def test_a_reused_tensor_gathers_all_its_gradients():
    x = leaf(2.0, 3.0)
    y = x * x
    (y * y + y).sum().backward()  # x**4 + x**2
    np.testing.assert_allclose(x.grad.numpy(), 4 * np.array([8.0, 27.0]) + 2 * np.array([2.0, 3.0]))


def test_gradients_accumulate_over_backwards():
    x = leaf(1.0)
    for _ in range(3):
        (x * 2).sum().backward()
    assert x.grad.tolist() == [6.0]


def test_a_gradient_is_never_shared_between_leaves():
    x, y = leaf(1.0), leaf(1.0)
    (x + y).sum().backward()
    with bt.no_grad():
        x.grad.mul_(5.0)
    assert y.grad.tolist() == [1.0]


def test_the_users_gradient_is_not_written():
    x = leaf(1.0, 1.0)
    g = bt.tensor([1.0, 2.0], dtype="float64")
    y = x + 0.0
    y.backward(g, retain_graph=True)
    y.backward(g)
    assert x.grad.tolist() == [2.0, 4.0]
    assert g.tolist() == [1.0, 2.0]


def test_no_grad_and_detach_record_nothing():
    x = leaf(2.0)
    with bt.no_grad():
        assert not (x * x).requires_grad
        with bt.enable_grad():
            assert (x * x).requires_grad
    assert not (x.detach() * 2).requires_grad
    y = (x * x.detach()).sum()
    y.backward()
    assert x.grad.tolist() == [2.0]


def test_no_grad_decorates():
    @bt.no_grad()
    def double(x):
        return x * 2

    assert not double(leaf(1.0)).requires_grad


def test_a_second_backward_needs_retain_graph():
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8.0]
    with pytest.raises(bt.AutogradError, match="freed by an earlier backward; pass retain_graph"):
        y.backward()


def test_an_overwritten_saved_tensor_is_caught():
    x = leaf(2.0)
    h = x * 1.0
    y = h * h
    with bt.no_grad():
        h.add_(1.0)
    with pytest.raises(bt.AutogradError, match="saved tensor 0 of shape .* version 1 where 0"):
        y.backward(bt.ones_like(y))


def test_recorded_in_place_writes_carry_gradients():
    x, w = leaf(2.0), leaf(5.0)
    h = x * 3.0
    h += w
    h *= 2.0
    h.sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == ([6.0], [2.0])


def test_a_view_of_memory_written_since_is_refused():
    x = leaf(1.0, 2.0)
    h = x * 2.0
    view = h[:1]
    h += 1.0
    with pytest.raises(bt.AutogradError, match="view of shape .* must be of memory as it was"):
        view * 2.0
    with pytest.raises(bt.AutogradError, match="a view cannot be written"):
        h[:1].add_(1.0)


def test_assigning_what_needs_gradients_is_refused():
    buffer = bt.zeros(2, "float64")
    with pytest.raises(bt.AutogradError, match="setitem: gradients must not be recorded"):
        buffer[0] = leaf(1.0)[0]


@pytest.mark.parametrize(
    "use, says",
    [
        (lambda x: x.detach().sum().backward(), "the tensor must come from one that requires"),
        (lambda x: (x * 2).backward(), "without a gradient the tensor must be a scalar"),
        (lambda x: (x * 2).backward(bt.ones(3)), "gradient must be"),
        (lambda x: bt.grad((x * 2).sum(), bt.zeros(1)), "input 0 must require a gradient"),
        (lambda x: bt.grad((x * 2).sum(), leaf(1.0)), "outputs must depend on input 0"),
        (lambda x: x.numpy(), "tensor must not require a gradient; call .detach"),
    ],
)
def test_errors(use, says):
    x = leaf(1.0, 2.0)
    with pytest.raises(bt.BlutrainError, match=says):
        use(x)
    assert x.grad is None


def test_grad_leaves_every_grad_alone():
    x, w = leaf(2.0), leaf(3.0)
    h = x * w
    dx, dh = bt.grad((h * h).sum(), [x, h])
    assert (dx.tolist(), dh.tolist()) == ([36.0], [12.0])
    assert x.grad is None
    assert w.grad is None
    unused = leaf(1.0)
    assert bt.grad((x * w).sum(), [unused], allow_unused=True) == (None,)


def test_hooks_see_and_replace_gradients():
    x = leaf(1.0)
    h = x * 2.0
    seen = []
    remove = h.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g * 10.0)
    h.retain_grad()
    (h * 3.0 + h).sum().backward()
    assert seen == [[4.0]]
    assert x.grad.tolist() == [80.0]
    assert h.grad.tolist() == [4.0]
    remove()
    (x * 1.0).sum().backward()
    assert seen == [[4.0]]


def test_several_outputs_of_which_one_is_used():
    x = leaf(1.0, 2.0, 3.0)
    first, _ = bt.split(x * 2.0, [1, 2], 0)
    first.sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 0.0]


def test_custom_function_with_several_outputs():
    class SumAndProduct(bt.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, scale):
            ctx.save(x, y)
            ctx.scale = scale
            return (x + y) * scale, x * y

        @staticmethod
        def backward(ctx, ds, dp):
            x, y = ctx.saved
            return ds * ctx.scale + dp * y, ds * ctx.scale + dp * x

    x, y = leaf(2.0), leaf(3.0)
    s, p = SumAndProduct.apply(x, y, 10.0)
    (s + p).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([13.0], [12.0])


def test_a_function_that_returns_too_few_gradients_is_named():
    class Wrong(bt.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, dz):
            return dz

    with pytest.raises(bt.AutogradError, match="Wrong: backward must return 2 gradients"):
        Wrong.apply(leaf(1.0), leaf(1.0)).sum().backward()


def test_checkpoint_gives_the_same_gradients_and_masks():
    x, w = leaf(*np.linspace(-1, 1, 40)), leaf(*np.linspace(1, 2, 40))

    def block(t):
        return bt.dropout(bt.tanh(t * w), 0.5) * t

    grads = []
    for run in (block, lambda t: bt.checkpoint(block, t)):
        bt.manual_seed(5)
        x.grad = w.grad = None
        run(x).sum().backward()
        after = bt.rand(1).item()
        grads.append((x.grad.tolist(), w.grad.tolist(), after))
    assert grads[0] == grads[1]


def test_grad_through_a_checkpoint_leaves_every_grad_alone():
    x, w, b = leaf(2.0), leaf(3.0), leaf(1.0)
    y = (bt.checkpoint(lambda t: t * w + b, x) * w).sum()
    dx, dw = bt.grad(y, [x, w])
    assert (dx.tolist(), dw.tolist()) == ([9.0], [2 * 2.0 * 3.0 + 1.0])
    assert x.grad is None and w.grad is None and b.grad is None


def test_checkpoint_keeps_its_arguments_only():
    def chain(t):
        for _ in range(20):
            t = bt.tanh(t)
        return t

    x = bt.zeros(10_000).requires_grad_()
    sizes = []
    for run in (chain, lambda t: bt.checkpoint(chain, t)):
        before = memory.memory_allocated()
        y = run(x)
        sizes.append(memory.memory_allocated() - before)
        del y
    assert sizes[1] < sizes[0] / 10


def test_gradcheck_finds_a_wrong_gradient():
    class Wrong(bt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save(x)
            return x * x

        @staticmethod
        def backward(ctx, dy):
            return ctx.saved[0] * dy

    with pytest.raises(bt.AutogradError, match=r"gradcheck: gradient of input 0 at \(0,\) must be"):
        bt.gradcheck(Wrong.apply, leaf(1.5))
    with pytest.raises(bt.DTypeError, match="gradcheck: input 0 must be float64"):
        bt.gradcheck(bt.tanh, leaf(1.0, dtype="float32"))


def test_anomaly_mode_names_the_forward_line():
    x = leaf(0.0)
    with bt.detect_anomaly():
        y = bt.sqrt(x).sum()  # the culprit
        with pytest.raises(
            bt.AutogradError, match=r"sqrt: .*test_autograd.py:\d+: y = bt.sqrt\(x\)"
        ):
            y.backward()


def test_saved_tensors_are_freed_during_the_backward_pass():
    x = bt.zeros(100_000).requires_grad_()
    bt.tanh(x).sum().backward()  # compiled now: a compiler leaves cycles behind
    gc.collect()
    x.grad = None
    h = x
    for _ in range(10):
        h = bt.tanh(h)
    loss = h.sum()
    del h
    memory.reset_peak_memory_stats()
    held = memory.memory_allocated()
    loss.backward()
    # Ten saved tensors are there at the start; each is gone once it was used.
    assert memory.max_memory_allocated() <= held + 3 * x.n_bytes
    del loss
    assert memory.memory_allocated() <= held - 9 * x.n_bytes + x.n_bytes


def test_an_unused_graph_goes_with_its_result():
    x = bt.zeros(1000).requires_grad_()
    bt.exp(bt.tanh(x) * 2.0).sum()  # compiled now: a compiler leaves cycles behind
    gc.collect()
    gc.disable()  # the reference counts alone must free it: no cycles
    try:
        before = memory.memory_allocated()
        y = bt.exp(bt.tanh(x) * 2.0).sum()
        del y
        assert memory.memory_allocated() == before
    finally:
        gc.enable()


def test_a_chain_of_100_000_ops_neither_recurses_nor_leaks():
    x = bt.tensor([1.0], requires_grad=True)
    ((x + 1.0) * 1.0).sum().backward()  # compiled now: a compiler leaves cycles behind
    x.grad = None
    gc.collect()
    before = memory.memory_allocated()
    h = x
    for _ in range(100_000):
        h = h + 1.0
    h.sum().backward()
    assert x.grad.tolist() == [1.0]
    del h
    x.grad = None
    assert memory.memory_allocated() == before
    h = x
    for _ in range(100_000):
        h = h * 1.0
    del h  # freed without having been walked
    assert memory.memory_allocated() == before

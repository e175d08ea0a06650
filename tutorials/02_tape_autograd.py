# %% [markdown]
# # Autograd on a tape
# **A network has many weights: which way should each move, and what does it cost to know?**
#
# We ask the slow way, by trying. Then we write a tape in some 60 lines, over kernels of our own,
# and know every answer for about the price of two forward passes. Then we meet blutrain's tape,
# which is the same one with the edges finished.

# %%
import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from lesson import save, seconds
from numba import cuda

import blutrain as bt
from blutrain.device import TARGET, launch

# %% [markdown]
# ## The network
# Two layers that should learn $\sin$ from 64 points:
#
# $$ \hat y = \tanh(x W_1)\, W_2, \qquad L = \frac{1}{N}\sum_{i} (\hat y_i - y_i)^2 $$
#
# Each row of $x$ is a point and a 1, so that $W_1$'s second row is a bias. Three operations: a
# matrix product, a $\tanh$, a mean square. The naive kernels give each number that comes out to one
# thread.

# %%
BLOCK = 128


@cuda.jit
def matmul_kernel(
    a,  # (M, K), any strides
    b,  # (K, N), any strides
    c,  # (M, N)
):
    i = cuda.grid(1)
    if i < c.size:
        row, col = i // c.shape[1], i % c.shape[1]
        total = type(a[0, 0])(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        c[row, col] = total


@cuda.jit
def tanh_kernel(
    x,  # (M, N)
    y,  # (M, N)
):
    i = cuda.grid(1)
    if i < y.size:
        row, col = i // y.shape[1], i % y.shape[1]
        y[row, col] = math.tanh(x[row, col])


@cuda.jit
def tanh_backward_kernel(
    y,  # (M, N), tanh(x)
    dy,  # (M, N)
    dx,  # (M, N)
):
    i = cuda.grid(1)
    if i < y.size:
        row, col = i // y.shape[1], i % y.shape[1]
        dx[row, col] = dy[row, col] * (1 - y[row, col] * y[row, col])


def run(kernel: object, *arguments: bt.Tensor, shape: tuple[int, int]) -> bt.Tensor:
    """Launch a kernel that fills a new matrix, one thread an element."""
    out = bt.empty(shape, arguments[0].dtype)
    launch(kernel, (out.size + BLOCK - 1) // BLOCK, BLOCK, *arguments, out)
    return out


def product(a: bt.Tensor, b: bt.Tensor) -> bt.Tensor:
    return run(matmul_kernel, a, b, shape=(a.shape[0], b.shape[1]))


points = np.linspace(-3, 3, 64)[:, None]
x = bt.from_numpy(np.hstack([points, np.ones_like(points)]))  # float64: we compare gradients
target = bt.from_numpy(np.sin(points))
WIDTH = 16


def initial(width: int) -> list[np.ndarray]:
    """W1 and W2."""
    rng = np.random.default_rng(1)
    return [rng.normal(size=(2, width)), rng.normal(size=(width, 1)) / math.sqrt(width)]


def plain_loss(weights: list[np.ndarray]) -> float:
    """The loss, with no thought of gradients."""
    w1, w2 = (bt.from_numpy(w) for w in weights)
    hidden = run(tanh_kernel, product(x, w1), shape=(x.shape[0], w1.shape[1]))
    error = product(hidden, w2).numpy() - target.numpy()
    return float((error**2).mean())


# %% [markdown]
# ## The slow way: try each weight
# $$ \frac{\partial L}{\partial w_k} \approx \frac{L(w_k + h) - L(w_k - h)}{2h} $$
#
# Two forward passes *for each weight*: for a network of $P$ weights, $2P$. GPT-2's 124 million
# would take years a step.


# %%
def gradients_by_trying(weights: list[np.ndarray], h: float = 1e-5) -> list[np.ndarray]:
    found = [np.zeros_like(w) for w in weights]
    for w, g in zip(weights, found, strict=True):
        for k in range(w.size):
            before = w.flat[k]
            w.flat[k] = before + h
            up = plain_loss(weights)
            w.flat[k] = before - h
            down = plain_loss(weights)
            w.flat[k] = before
            g.flat[k] = (up - down) / (2 * h)
    return found


weights = initial(WIDTH)
tried = gradients_by_trying(weights)
print(f"loss {plain_loss(weights):.4f}; {sum(w.size for w in weights)} weights tried one by one")

# %% [markdown]
# ## The tape
# If $L$ depends on $x$ only through $y = f(x)$, then $\mathrm{d}x = J_f^\top\, \mathrm{d}y$, where
# $\mathrm{d}x$ means $\partial L/\partial x$. So each operation needs one rule: *given the gradient
# of my output, what is the gradient of my input?* None of them needs the Jacobian $J$ itself:
#
# | operation | rule |
# |---|---|
# | $C = AB$ | $\mathrm{d}A = \mathrm{d}C\, B^\top$, $\ \mathrm{d}B = A^\top \mathrm{d}C$ |
# | $y = \tanh x$ | $\mathrm{d}x = \mathrm{d}y \cdot (1 - y^2)$ |
# | $L = \mathrm{mean}((\hat y - t)^2)$ | $\mathrm{d}\hat y = 2(\hat y - t)/N$ |
#
# The **tape** is a list: as the forward pass runs, each operation appends its output and its rules.
# Backward reads the list from the end: by then everything that used a value has said its part of
# that value's gradient.


# %%
class Variable:
    """A matrix and, after `backward`, the loss's gradient with respect to it."""

    def __init__(self, value: bt.Tensor) -> None:
        self.value = value
        self.grad: bt.Tensor | None = None


Rule = tuple[Variable, Callable[[bt.Tensor], bt.Tensor]]
TAPE: list[tuple[Variable, tuple[Rule, ...]]] = []


def record(value: bt.Tensor, *rules: Rule) -> Variable:
    """An operation's output, with a rule for each of its inputs."""
    out = Variable(value)
    TAPE.append((out, rules))
    return out


def matmul(a: Variable, b: Variable) -> Variable:
    return record(
        product(a.value, b.value),
        (a, lambda dc: product(dc, b.value.transpose(0, 1))),
        (b, lambda dc: product(a.value.transpose(0, 1), dc)),
    )


def tanh(x: Variable) -> Variable:
    y = run(tanh_kernel, x.value, shape=x.value.shape)
    return record(y, (x, lambda dy: run(tanh_backward_kernel, y, dy, shape=y.shape)))


def mean_square(prediction: Variable, target: bt.Tensor) -> Variable:
    error = prediction.value - target
    return record(
        (error * error).mean(), (prediction, lambda dl: error * (dl * (2.0 / error.size)))
    )


def backward(loss: Variable) -> None:
    """Fill in the gradients of everything that the loss came from, and clear the tape."""
    loss.grad = bt.ones((), loss.value.dtype)
    while TAPE:
        out, rules = TAPE.pop()
        if out.grad is None:
            continue  # the loss does not depend on it
        for parent, rule in rules:
            part = rule(out.grad)
            parent.grad = part if parent.grad is None else parent.grad + part


# %% [markdown]
# That is all of it. The `+` in the last line is where a weight that is used twice collects both of
# its gradients.


# %%
def gradients_by_tape(weights: list[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    w1, w2 = (Variable(bt.from_numpy(w)) for w in weights)
    loss = mean_square(matmul(tanh(matmul(Variable(x), w1)), w2), target)
    backward(loss)
    return loss.value.item(), [v.grad.numpy() for v in (w1, w2) if v.grad is not None]


_, taped = gradients_by_tape(weights)
for name, by_tape, by_trying in zip(["W1", "W2"], taped, tried, strict=True):
    difference = np.abs(by_tape - by_trying).max()
    print(f"{name}: largest difference between tape and trying {difference:.1e}")
    assert difference < 1e-8

# %% [markdown]
# ## What it costs

# %%
widths = [2, 4, 8, 16]
trying = [seconds(lambda w=w: gradients_by_trying(initial(w)), repeats=1) for w in widths]
taping = [seconds(lambda w=w: gradients_by_tape(initial(w))) for w in widths]
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
counts = [3 * w for w in widths]
axes.semilogy(counts, [t * 1e3 for t in trying], marker="o", label="trying each weight")
axes.semilogy(counts, [t * 1e3 for t in taping], marker="o", label="one pass over the tape")
axes.set_xticks(counts)
axes.set(xlabel="weights", ylabel="milliseconds", title=f"all gradients, measured here ({TARGET})")
axes.legend()
save(figure, "02_cost")

# %% [markdown]
# ## The same through blutrain
# blutrain's tape has the same list and the same walk. What it adds: rules are named and registered,
# so that tests can be derived from them; what a rule saved is freed as soon as it was used; a saved
# tensor that was overwritten is noticed; 100,000 operations need no recursion.

# %%
w1, w2 = (bt.tensor(w, dtype=bt.float64, requires_grad=True) for w in weights)
parameters = [w1, w2]


def blutrain_loss() -> bt.Tensor:
    error = bt.matmul(bt.tanh(bt.matmul(x, w1)), w2) - target
    return (error * error).mean()


blutrain_loss().backward()
for parameter, by_tape in zip(parameters, taped, strict=True):
    assert parameter.grad is not None
    assert np.allclose(parameter.grad.numpy(), by_tape, atol=1e-12)

losses = []
for _ in range(300):
    for parameter in parameters:
        parameter.grad = None
    loss = blutrain_loss()
    loss.backward()
    with bt.no_grad():
        for parameter in parameters:
            parameter -= 0.1 * parameter.grad  # in place: the tensor itself moves
    losses.append(loss.item())
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps of gradient descent")
assert losses[-1] < losses[0] / 10

# %% [markdown]
# A kernel of one's own joins blutrain's tape as a `Function`: forward, backward, and what to keep
# in between.


# %%
class Tanh(bt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = run(tanh_kernel, x, shape=x.shape)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved
        return run(tanh_backward_kernel, y, dy, shape=y.shape)


assert bt.gradcheck(Tanh.apply, (bt.tensor(points, dtype=bt.float64, requires_grad=True),))

with bt.no_grad():
    fitted = (bt.matmul(bt.tanh(bt.matmul(x, w1)), w2)).numpy()
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.semilogy(losses)
left.set(xlabel="step", title="loss")
right.plot(points, np.sin(points), label="sin")
right.plot(points, fitted, "--", label="network")
right.legend()
save(figure, "02_fit")

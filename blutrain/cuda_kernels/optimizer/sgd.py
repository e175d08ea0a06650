r"""Stochastic gradient descent with momentum, one step over all parameters in one launch.

For every parameter p with gradient g and momentum buffer b (which starts at 0):

    g ← grad_scale g + λ p
    b ← μ b + g
    p ← p - lr (g + μ b)   with Nesterov's momentum, else   p ← p - lr b

With μ = 0 there is no buffer and p ← p - lr g. PyTorch starts b at the first g in place of 0, which
is the same, since μ 0 + g = g.

Bytes for n float32 parameters: 20 n (read p, g, b; write p, b), 12 n without momentum. FLOPs: 6 n.

Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, register
from blutrain.cuda_kernels.common import BLOCK
from blutrain.cuda_kernels.optimizer.tensor_table import (
    CHUNK,
    Rows,
    check_lists,
    constant,
    device_number,
    number_each,
    one_number,
    run_over,
    tensor_table,
)
from blutrain.device import launch
from blutrain.device.pointer import array_at
from blutrain.errors import ShapeError, message
from blutrain.tensor import Tensor


@cuda.jit
def sgd_kernel(
    table,  # (n_tensors, 3): addresses of p and g, size
    chunks,  # (n_chunks, 2): tensor, first element
    weight_decays,  # (n_tensors,)
    grad_scale,  # (1,)
    like,  # any array of the parameters' dtype
    lr,
):
    """One block a chunk of CHUNK elements, without momentum."""
    tensor = chunks[cuda.blockIdx.x, 0]
    begin = chunks[cuda.blockIdx.x, 1]
    size = min(table[tensor, 2] - begin, CHUNK)
    param = array_at(table[tensor, 0], begin, size, like)
    gradient = array_at(table[tensor, 1], begin, size, like)
    decay = weight_decays[tensor]
    scale = grad_scale[0]
    for i in range(cuda.threadIdx.x, size, BLOCK):
        p = param[i]
        param[i] = p - lr * (gradient[i] * scale + decay * p)


@cuda.jit
def sgd_momentum_kernel(
    table,  # (n_tensors, 4): addresses of p, g and b, size
    chunks,  # (n_chunks, 2): tensor, first element
    weight_decays,  # (n_tensors,)
    grad_scale,  # (1,)
    like,  # any array of the parameters' dtype
    like_buffer,  # any array of the buffers' dtype
    lr,
    momentum,
    nesterov,
):
    """One block a chunk of CHUNK elements."""
    tensor = chunks[cuda.blockIdx.x, 0]
    begin = chunks[cuda.blockIdx.x, 1]
    size = min(table[tensor, 3] - begin, CHUNK)
    param = array_at(table[tensor, 0], begin, size, like)
    gradient = array_at(table[tensor, 1], begin, size, like)
    buffer = array_at(table[tensor, 2], begin, size, like_buffer)
    decay = weight_decays[tensor]
    scale = grad_scale[0]
    for i in range(cuda.threadIdx.x, size, BLOCK):
        p = param[i]
        g = gradient[i] * scale + decay * p
        b = momentum * buffer[i] + g
        buffer[i] = b
        direction = g + momentum * b if nesterov else b
        param[i] = p - lr * direction


def reference(
    params: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    buffers: Sequence[np.ndarray] | None = None,
    *,
    lr: float = 1e-3,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float | Sequence[float] = 0.0,
    grad_scale: float = 1.0,
) -> tuple[np.ndarray, ...]:
    """NumPy, float64: the new parameters and buffers."""
    decays = np.broadcast_to(weight_decay, len(params))
    new_params: list[Any] = []
    new_buffers: list[Any] = []
    for k, (p, g) in enumerate(zip(params, grads, strict=True)):
        b = 0.0 if buffers is None else buffers[k]
        if g is not None:
            g = g * grad_scale + decays[k] * p
            b = momentum * b + g
            p = p - lr * (g + momentum * b if nesterov else b)
        new_params.append(p)
        new_buffers.append(b)
    return tuple(new_params if buffers is None else new_params + new_buffers)


def samples(rng: np.random.Generator) -> list[Sample]:
    """With and without momentum, Nesterov, decays, a missing gradient, more than a chunk."""

    def sample(*shapes: tuple[int, ...], missing: int | None = None, **params: Any) -> Sample:
        lists: list[Any] = [[np.asarray(rng.normal(size=s)) for s in shapes] for _ in range(3)]
        if missing is not None:
            lists[1][missing] = None
        if not params.get("momentum"):
            del lists[2]
        return Sample(inputs=tuple(lists), params={"lr": 0.1, **params})

    return [
        sample((1,)),
        sample((3, 5), (0,), (257,), (), weight_decay=[0.1, 0.0, 0.3, 0.0], momentum=0.9),
        sample((CHUNK + 1,), (1 + int(rng.integers(0, CHUNK)),), grad_scale=0.25, weight_decay=0.1),
        sample((4,), (6,), missing=0, momentum=0.9, nesterov=True),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    a, b = [np.zeros(3, np.float32)], [np.zeros(4, np.float32)]
    op = "sgd_step:"
    return [
        Invalid((a, []), ShapeError, f"{op} grads must hold 1 tensors like params"),
        Invalid((a, b), ShapeError, f"{op} grads[0] must have shape (3,), got (4,)"),
        Invalid((a, a), ShapeError, f"{op} momentum must come with buffers", {"momentum": 0.9}),
        Invalid((a, a), ShapeError, f"{op} nesterov must come with momentum", {"nesterov": True}),
        Invalid((a, a), ShapeError, f"{op} momentum must be within [0, 1)", {"momentum": 1.0}),
    ]


def sgd_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    buffers: Sequence[Tensor] | None = None,
    *,
    lr: float = 1e-3,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float | Sequence[float] = 0.0,
    grad_scale: float | Tensor = 1.0,
) -> None:
    """Update parameters and momentum buffers in place, all those of the same dtypes in one launch.

    Args:
        params: floating tensors.
        grads: of the same shapes and dtypes; None where a parameter is to stay as it is.
        buffers: of the same shapes, zeros at first; float32 for 16-bit parameters. Needed with
            momentum only.
        lr: the learning rate.
        momentum: μ, within [0, 1).
        nesterov: look one step of momentum ahead.
        weight_decay: λ, one for all or one a parameter; added to the gradient.
        grad_scale: what gradients are multiplied by, a number or a scalar tensor.

    Raises:
        ShapeError: the lists do not fit together, or a setting is out of range.
        DTypeError: a tensor is not floating, or a gradient has not its parameter's dtype.

    Example:
        >>> import blutrain as bt
        >>> p = bt.ones(2)
        >>> bt.sgd_step([p], [bt.tensor([1.0, -2.0])], lr=0.5)
        >>> p.tolist()
        [0.5, 2.0]
    """
    op = "sgd_step"
    if not 0 <= momentum < 1:
        raise ShapeError(message(op, "momentum must be within [0, 1)", momentum))
    if nesterov and not momentum:
        raise ShapeError(message(op, "nesterov must come with momentum", momentum))
    lists: dict[str, Sequence[Tensor | None]] = {"params": params, "grads": grads}
    if momentum:
        if buffers is None:
            do = "pass zeros of the parameters' shapes"
            raise ShapeError(message(op, "momentum must come with buffers", "none", do))
        lists["buffers"] = buffers
    check_lists(op, lists)
    decays = number_each(op, "weight_decay", weight_decay, len(params))
    one_number(op, "grad_scale", grad_scale)

    def run(rows: Rows, places: list[int]) -> None:
        param, last = rows[0][0], rows[0][-1]
        real = last.dtype.compute
        where = tensor_table(rows)
        common: list[Any] = [
            where.table,
            where.chunks,
            constant([decays[place] for place in places], real),
            device_number(grad_scale, real),
            param.array(param.size),
        ]
        rate = real.type(lr)
        if momentum:
            common += [last.array(last.size), rate, real.type(momentum), nesterov]
            launch(sgd_momentum_kernel, where.n_chunks, BLOCK, *common)
        else:
            launch(sgd_kernel, where.n_chunks, BLOCK, *common, rate)

    run_over(list(lists.values()), [0, 2] if momentum else [0], run)


def _step_and_results(*args: Any, **params: Any) -> tuple[Tensor, ...]:
    """The step, for the record: what it wrote."""
    sgd_step(*args, **params)
    return (*args[0], *(args[2] if len(args) > 2 else ()))


register(
    Op(
        name="sgd_step",
        forward=lambda ctx, *args, **params: _step_and_results(*args, **params),
        backward=None,
        reference=reference,
        samples=samples,
        errors=errors,
        call=functools.wraps(sgd_step)(_step_and_results),
        dtypes=(dtypes.float32, dtypes.float64),
        differentiable=False,
    )
)

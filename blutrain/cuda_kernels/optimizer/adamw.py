r"""AdamW: Adam with decoupled weight decay, one step over all parameters in one launch.

For every parameter p with gradient g, at step t = 1, 2, ...:

    p ← p - lr λ p                                  weight decay, apart from the gradient
    m ← m + (1 - β1) (g - m)                        mean of the gradients
    v ← v + (1 - β2) (g² - v)                       mean of their squares
    p ← p - lr / (1 - β1ᵗ) m / (sqrt(v) / sqrt(1 - β2ᵗ) + eps)

m and v start at 0 and would be too small for the first steps; the powers of β mend that. g is
multiplied by `grad_scale` first: one over a number of accumulated batches, or the coefficient of
`clip_coefficient`, which is on the device and need not be waited for.

Blocks find their tensor in a table (`tensor_table`). m and v are float32 for 16-bit parameters.
Bytes for n float32 parameters: 28 n (read p, g, m, v; write p, m, v). FLOPs: about 15 n.

Source: Loshchilov, Hutter, "Decoupled weight decay regularization", 2019, algorithm 2, with
PyTorch's placement of eps.
"""

from __future__ import annotations

import functools
import math
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
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor


@cuda.jit
def adamw_kernel(
    table,  # (n_tensors, 5): addresses of p, g, m and v, size
    chunks,  # (n_chunks, 2): tensor, first element
    weight_decays,  # (n_tensors,)
    grad_scale,  # (1,)
    like_param,  # any array of the parameters' dtype
    like_moment,  # any array of the moments' dtype
    lr,
    take1,  # 1 - β1
    take2,  # 1 - β2
    step_size,  # lr / (1 - β1ᵗ)
    rescale,  # 1 / sqrt(1 - β2ᵗ)
    eps,
):
    """One block a chunk of CHUNK elements."""
    tensor = chunks[cuda.blockIdx.x, 0]
    begin = chunks[cuda.blockIdx.x, 1]
    size = min(table[tensor, 4] - begin, CHUNK)
    param = array_at(table[tensor, 0], begin, size, like_param)
    gradient = array_at(table[tensor, 1], begin, size, like_param)
    mean = array_at(table[tensor, 2], begin, size, like_moment)
    square = array_at(table[tensor, 3], begin, size, like_moment)
    decay = lr * weight_decays[tensor]
    scale = grad_scale[0]
    for i in range(cuda.threadIdx.x, size, BLOCK):
        p = param[i]
        g = gradient[i] * scale
        m = mean[i]
        v = square[i]
        m += take1 * (g - m)
        v += take2 * (g * g - v)
        mean[i] = m
        square[i] = v
        param[i] = p - decay * p - step_size * m / (math.sqrt(v) * rescale + eps)


def reference(
    params: Sequence[np.ndarray],
    grads: Sequence[np.ndarray | None],
    exp_avgs: Sequence[np.ndarray],
    exp_avg_sqs: Sequence[np.ndarray],
    *,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float | Sequence[float] = 0.01,
    grad_scale: float = 1.0,
) -> tuple[np.ndarray, ...]:
    """NumPy, float64: the new parameters, means and squares."""
    decays = np.broadcast_to(weight_decay, len(params))
    new: list[list[np.ndarray]] = [[], [], []]
    for p, g, m, v, decay in zip(params, grads, exp_avgs, exp_avg_sqs, decays, strict=True):
        if g is not None:
            g = g * grad_scale
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            denominator = np.sqrt(v) / np.sqrt(1 - beta2**step) + eps
            p = p * (1 - lr * decay) - lr / (1 - beta1**step) * m / denominator
        for values, value in zip(new, (p, m, v), strict=True):
            values.append(value)
    return tuple(new[0] + new[1] + new[2])


def samples(rng: np.random.Generator) -> list[Sample]:
    """One tensor, many sizes, a decay for each, a missing gradient, more than a chunk."""

    def sample(*shapes: tuple[int, ...], missing: int | None = None, **params: Any) -> Sample:
        lists: list[list[Any]] = [
            [np.asarray(rng.normal(size=s)) for s in shapes] for _ in range(3)
        ]
        if missing is not None:
            lists[1][missing] = None
        squares = [np.asarray(rng.uniform(0.1, 1.0, s)) for s in shapes]
        return Sample(inputs=(*lists, squares), params={"step": 3, "lr": 0.01, **params})

    return [
        sample((1,), step=1),
        sample((3, 5), (0,), (257,), (), weight_decay=[0.1, 0.0, 0.3, 0.0]),
        sample((CHUNK + 1,), (1 + int(rng.integers(0, CHUNK)),), grad_scale=0.25),
        sample((4,), (6,), missing=0, beta1=0.8, beta2=0.95, eps=1e-3),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    a, b = [np.zeros(3, np.float32)], [np.zeros(4, np.float32)]
    op = "adamw_step:"
    return [
        Invalid((a, a, a, []), ShapeError, f"{op} exp_avg_sqs must hold 1 tensors", {"step": 1}),
        Invalid((a, b, a, a), ShapeError, f"{op} grads[0] must have shape (3,)", {"step": 1}),
        Invalid((a, a, a, a), ShapeError, f"{op} step must be at least 1", {"step": 0}),
        Invalid(
            (a, a, a, a), ShapeError, f"{op} beta1 must be within [0, 1)", {"step": 1, "beta1": 1.0}
        ),
        Invalid(
            (a, a, a, a),
            ShapeError,
            f"{op} weight_decay must be one number or 1 of them",
            {"step": 1, "weight_decay": [0.1, 0.2]},
        ),
        Invalid(
            (a, a, [np.zeros(3, np.int32)], a),
            DTypeError,
            f"{op} exp_avgs[0] must have a floating dtype",
            {"step": 1},
        ),
    ]


def adamw_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    *,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float | Sequence[float] = 0.01,
    grad_scale: float | Tensor = 1.0,
) -> None:
    """Update parameters and moments in place, all those of the same dtypes in one launch.

    Args:
        params: floating tensors.
        grads: of the same shapes and dtypes; None where a parameter is to stay as it is.
        exp_avgs: running means m of the gradients; float32 for 16-bit parameters.
        exp_avg_sqs: running means v of their squares.
        step: which step this is, from 1.
        lr: the learning rate.
        beta1: how much of m is kept.
        beta2: how much of v is kept.
        eps: added to the root of v.
        weight_decay: λ, one for all or one a parameter.
        grad_scale: what gradients are multiplied by, a number or a scalar tensor.

    Raises:
        ShapeError: the lists do not fit together, or a setting is out of range.
        DTypeError: a tensor is not floating, or a gradient has not its parameter's dtype.

    Example:
        >>> import blutrain as bt
        >>> p, g = bt.ones(2), bt.tensor([0.5, -0.5])
        >>> bt.adamw_step([p], [g], [bt.zeros(2)], [bt.zeros(2)], step=1, lr=0.1, weight_decay=0.0)
        >>> [round(v, 4) for v in p.tolist()]
        [0.9, 1.1]
    """
    op = "adamw_step"
    if step < 1:
        raise ShapeError(message(op, "step must be at least 1", step))
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= beta < 1:
            raise ShapeError(message(op, f"{name} must be within [0, 1)", beta))
    lists: dict[str, Sequence[Tensor | None]]
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    check_lists(op, lists)
    decays = number_each(op, "weight_decay", weight_decay, len(params))
    one_number(op, "grad_scale", grad_scale)

    def run(rows: Rows, places: list[int]) -> None:
        param, _, moment, _ = rows[0]
        real = moment.dtype.compute
        where = tensor_table(rows)
        launch(
            adamw_kernel,
            where.n_chunks,
            BLOCK,
            where.table,
            where.chunks,
            constant([decays[place] for place in places], real),
            device_number(grad_scale, real),
            param.array(param.size),
            moment.array(moment.size),
            real.type(lr),
            real.type(1.0 - beta1),
            real.type(1.0 - beta2),
            real.type(lr / (1.0 - beta1**step)),
            real.type(1.0 / math.sqrt(1.0 - beta2**step)),
            real.type(eps),
        )

    run_over(list(lists.values()), [0, 2, 3], run)


def _step_and_results(*args: Any, **params: Any) -> tuple[Tensor, ...]:
    """The step, for the record: what it wrote."""
    adamw_step(*args, **params)
    return (*args[0], *args[2], *args[3])


register(
    Op(
        name="adamw_step",
        forward=lambda ctx, *args, **params: _step_and_results(*args, **params),
        backward=None,
        reference=reference,
        samples=samples,
        errors=errors,
        call=functools.wraps(adamw_step)(_step_and_results),
        dtypes=(dtypes.float32, dtypes.float64),
        differentiable=False,
    )
)

r"""Dropout: zero each element with probability p, and scale the others so that the mean stays.

Forward:   y_i = x_i / (1 - p) where u_i >= p, else 0,   u_i uniform in [0, 1)
Backward:  dx_i = dy_i / (1 - p) where u_i >= p, else 0

The mask is not kept: u_i is a function of the seed, the offset that the forward pass reserved, and
i (Philox), so backward makes it again. One counter gives four numbers; a thread uses them for four
elements that lie BLOCK apart, so that neighbouring threads touch neighbouring elements.

Shapes: any. Saved for backward: two integers. Bytes for n elements of size s: 2 n s each way. About
40 integer operations an element.

Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from
overfitting", 2014.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from blutrain import random
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.random.philox import philox_4x32, philox_reference, uniform
from blutrain.cuda_kernels.validate import check_floating
from blutrain.device import launch
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty_like, zeros

TILE = 4 * BLOCK  # elements of a block


@cuda.jit
def dropout_kernel(
    x,  # (n,)
    y,  # (n,)
    seed,
    offset,
    p,
    scale,  # 1 / (1 - p)
):
    """Forward with x and y, backward with dy and dx."""
    words = philox_4x32(offset + cuda.grid(1), seed)
    first = cuda.blockIdx.x * TILE + cuda.threadIdx.x
    zero = type(scale)(0.0)
    if first < x.size:
        y[first] = x[first] * scale if uniform(words[0]) >= p else zero
    second = first + BLOCK
    if second < x.size:
        y[second] = x[second] * scale if uniform(words[1]) >= p else zero
    third = second + BLOCK
    if third < x.size:
        y[third] = x[third] * scale if uniform(words[2]) >= p else zero
    fourth = third + BLOCK
    if fourth < x.size:
        y[fourth] = x[fourth] * scale if uniform(words[3]) >= p else zero


def _masked(x: Tensor, p: float, seed: int, offset: int) -> Tensor:
    """Launch the kernel over `x`; at p = 1 there is nothing to scale."""
    if p == 1.0:
        return zeros(x.shape, x.dtype)
    x = dense(x)
    y = empty_like(x)
    if x.size:
        launch(
            dropout_kernel,
            blocks_for(x.size, TILE),
            BLOCK,
            x.array(x.size),
            y.array(x.size),
            seed,
            offset,
            p,
            x.dtype.compute.type(1.0 / (1.0 - p)),
        )
    return y


def dropout_forward(ctx: Context, x: Tensor, *, p: float) -> Tensor:
    """Reserve random numbers, remember which, and mask."""
    seed, offset = random.next_offset(blocks_for(x.size, TILE) * TILE)
    ctx.p, ctx.seed, ctx.offset = p, seed, offset
    return _masked(x, p, seed, offset)


def dropout_backward(ctx: Context, dy: Tensor) -> Tensor:
    """The same mask and scale on the gradient."""
    return _masked(dy, ctx.p, ctx.seed, ctx.offset)


def reference(x: np.ndarray, p: float, training: bool = True) -> np.ndarray:
    """NumPy, float64, with the random numbers that the next call of `dropout` takes."""
    if not training or p == 0 or not x.size:
        return x
    if p == 1:
        return np.zeros_like(x)
    seed, offset = random.get_state()[0], random.get_state()[1]
    n_blocks = blocks_for(x.size, TILE)
    words = philox_reference(offset, seed, n_blocks * BLOCK) >> 8
    # (block, thread, word) → (block, word, thread): the order of the elements
    u = words.reshape(n_blocks, BLOCK, 4).transpose(0, 2, 1).reshape(-1)[: x.size] / 2**24
    y: np.ndarray = np.where(u.reshape(x.shape) >= np.float32(p), x / (1 - p), 0.0)
    return y


def samples(rng: np.random.Generator) -> list[Sample]:
    """Sizes around a block's tile; nothing dropped, everything dropped, not training."""

    def sample(shape: tuple[int, ...], p: float, training: bool = True) -> Sample:
        return Sample(inputs=(rng.normal(size=shape), p), params={"training": training})

    return [
        sample((0, 3), 0.5),
        sample((), 0.5),
        sample((1023,), 0.1),
        sample((5, 1 + int(rng.integers(200, 300))), 0.9),
        sample((2, 7, 3), 0.5),
        sample((33,), 0.0),
        sample((33,), 1.0),
        sample((33,), 0.5, training=False),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    x = np.zeros(3, np.float32)
    return [
        Invalid((x, -0.1), ShapeError, "dropout: p must be within [0, 1], got -0.1"),
        Invalid((x, 1.1), ShapeError, "dropout: p must be within [0, 1], got 1.1"),
        Invalid((x.astype(np.int32), 0.5), DTypeError, "dropout: x must have a floating dtype"),
    ]


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each element with probability p, and divide the others by 1 - p.

    Args:
        x: floating, any shape.
        p: the probability of an element to be dropped.
        training: without it, and at p = 0, the result is x itself.

    Returns:
        Same shape and dtype as x.

    Raises:
        ShapeError: p is not within [0, 1].
        DTypeError: x is no floating tensor.

    Example:
        >>> import blutrain as bt
        >>> sorted(set(bt.dropout(bt.ones(1000), 0.75).tolist()))
        [0.0, 4.0]
    """
    check_floating("dropout", "x", x)
    if not 0 <= p <= 1:
        raise ShapeError(message("dropout", "p must be within [0, 1]", p))
    if p == 0 or not training:
        return x
    y: Tensor = apply("dropout", x, p=float(p))
    return y


register(
    Op(
        name="dropout",
        forward=dropout_forward,
        backward=dropout_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=dropout,
    )
)

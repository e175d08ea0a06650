"""Keeping gradients from growing too large."""

from __future__ import annotations

import math
from collections.abc import Iterable

from blutrain import ops
from blutrain.autograd import no_grad
from blutrain.cuda_kernels.optimizer.grad_norm import clip_coefficient, scale_tensors
from blutrain.errors import ShapeError, message
from blutrain.tensor import Tensor, zeros


def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients by one factor so that their norm, taken together, is at most `max_norm`.

    The norm stays on the device and nothing waits for it. One that is inf or nan makes every
    gradient so.

    Args:
        parameters: whose gradients; those without one are left out.
        max_norm: the limit; `math.inf` for none.

    Returns:
        The norm before, a scalar tensor.

    Raises:
        ShapeError: max_norm is not positive.

    Example:
        >>> import blutrain as bt
        >>> from blutrain.nn import Parameter
        >>> p = Parameter(bt.zeros(2))
        >>> (p * bt.tensor([3.0, 4.0])).sum().backward()
        >>> clip_grad_norm([p], 1.0).item(), round(p.grad.numpy()[0].item(), 4)
        (5.0, 0.6)
    """
    if not max_norm > 0:
        raise ShapeError(message("clip_grad_norm", "max_norm must be positive", max_norm))
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return zeros(())
    with no_grad():
        norm = ops.grad_norm(gradients)
        if math.isfinite(max_norm):
            scale_tensors(gradients, clip_coefficient(norm, max_norm))
    return norm

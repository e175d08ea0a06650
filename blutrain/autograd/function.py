"""Operations of one's own: a forward and a backward, recorded like any other."""

from __future__ import annotations

from typing import Any

from blutrain.autograd import tape
from blutrain.tensor import Tensor


class Function:
    """Subclass with two static methods and call `apply`.

    `forward(ctx, *args)` returns a tensor or a tuple of tensors and may `ctx.save(...)` tensors;
    `backward(ctx, *grads)` returns one gradient (or None) for each tensor among the arguments.

    Example:
        >>> import blutrain as bt
        >>> class Cube(bt.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save(x)
        ...         return x * x * x
        ...     @staticmethod
        ...     def backward(ctx, dy):
        ...         (x,) = ctx.saved
        ...         return 3.0 * x * x * dy
        >>> x = bt.tensor([2.0], requires_grad=True)
        >>> Cube.apply(x).sum().backward()
        >>> x.grad.tolist()
        [12.0]
    """

    @staticmethod
    def forward(ctx: tape.Context, *args: Any) -> Any:
        """Compute the outputs; nothing in here is recorded."""
        raise NotImplementedError("Function: forward must be defined by the subclass")

    @staticmethod
    def backward(ctx: tape.Context, *grads: Tensor) -> Any:
        """Compute the gradients of the tensor arguments."""
        raise NotImplementedError("Function: backward must be defined by the subclass")

    @classmethod
    def apply(cls, *args: Any, **params: Any) -> Any:
        """Run the operation and record it."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        return tape.record(cls.__name__, cls.forward, cls.backward, tensors, args, params)

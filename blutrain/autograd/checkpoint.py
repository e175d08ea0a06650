"""Trading time for memory: run a function again in the backward pass instead of keeping its
intermediate tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blutrain import random
from blutrain.autograd import engine, tape
from blutrain.tensor import Tensor


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` and keep only its arguments; the backward pass calls it once more.

    Random numbers are the same in both calls, so dropout masks agree.

    Args:
        function: takes tensors and other values, returns a tensor or a tuple of tensors. Tensors
            that it closes over (a module's parameters) get their gradients too.
        args: its arguments.

    Example:
        >>> import blutrain as bt
        >>> x = bt.tensor([0.5], requires_grad=True)
        >>> bt.checkpoint(lambda t: bt.exp(t) * t, x).sum().backward()
        >>> round(x.grad.item(), 4)
        2.4731
    """
    if not tape.is_grad_enabled():
        return function(*args)
    state = random.get_state()
    with tape.no_grad():
        result = function(*args)
    outputs = result if isinstance(result, tuple) else (result,)
    inputs = [a for a in args if isinstance(a, Tensor)]

    def backward(context: tape.Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kept = iter(context.saved)
        again = []
        for a in args_without_tensors:
            if a is _TENSOR:
                t = next(kept)
                copy = t.detach()
                copy.requires_grad = t.requires_grad
                again.append(copy)
            else:
                again.append(a)
        after = random.get_state()
        random.set_state(state)
        try:
            with tape.enable_grad():
                repeated = function(*again)
        finally:
            random.set_state(after)
        repeated = repeated if isinstance(repeated, tuple) else (repeated,)
        roots = [(o, g) for o, g in zip(repeated, gradients) if o.requires_grad]
        leaves = [a for a in again if isinstance(a, Tensor)]
        return tuple(engine.run_within(roots, leaves)) if roots else (None,) * len(leaves)

    # The closure must not hold the tensors: the context does, and lets go of them.
    args_without_tensors = [_TENSOR if isinstance(a, Tensor) else a for a in args]
    context = tape.Context(tuple(t.requires_grad for t in inputs))
    context.save(*inputs)
    tape.attach(tape.Node("checkpoint", backward, context, inputs, outputs), outputs)
    return result


_TENSOR = object()

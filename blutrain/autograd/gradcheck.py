"""Comparing a backward pass with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blutrain import dtypes
from blutrain.autograd import engine, tape
from blutrain.errors import AutogradError, DTypeError, message
from blutrain.tensor import Tensor, from_numpy


def gradcheck(
    function: Callable[..., Any],
    inputs: Tensor | Sequence[Tensor],
    eps: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> bool:
    """Check the gradients of `function` against central differences, element by element.

    Args:
        function: takes the inputs, returns a float64 tensor or a tuple of them.
        inputs: float64 tensors; those that require a gradient are checked.
        eps: the step.
        rtol: allowed relative difference.
        atol: allowed absolute difference.

    Returns:
        True.

    Raises:
        AutogradError: a gradient differs; the message says which, where and by how much.
        DTypeError: an input to be checked is not float64, where differences would drown.

    Example:
        >>> import blutrain as bt
        >>> x = bt.tensor([0.3, -1.2], dtype="float64", requires_grad=True)
        >>> bt.gradcheck(bt.tanh, x)
        True
    """
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [k for k, t in enumerate(tensors) if t.requires_grad]
    for k in checked:
        if tensors[k].dtype is not dtypes.float64:
            got = tensors[k].dtype
            raise DTypeError(message("gradcheck", f"input {k} must be float64", got))
    values = [t.detach().numpy() for t in tensors]
    rng = np.random.default_rng(0)

    def call(
        arrays: Sequence[np.ndarray[Any, Any]], grad: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        fresh = [from_numpy(a, t.dtype) for a, t in zip(arrays, tensors)]
        for k in checked:
            fresh[k].requires_grad = grad
        with tape.set_grad_enabled(grad):
            result = function(*fresh)
        return fresh, list(result) if isinstance(result, (tuple, list)) else [result]

    fresh, outputs = call(values, grad=True)
    # One random direction in the space of outputs reduces them to a scalar.
    weights = [rng.standard_normal(o.shape) for o in outputs]
    live = [(o, from_numpy(w)) for o, w in zip(outputs, weights) if o.requires_grad]
    analytic = engine.run(live, wanted=[fresh[k] for k in checked])

    def scalar(arrays: Sequence[np.ndarray[Any, Any]]) -> float:
        _, outs = call(arrays, grad=False)
        return float(sum((o.numpy() * w).sum() for o, w in zip(outs, weights)))

    for k, found in zip(checked, analytic):
        gradient = np.zeros(values[k].shape) if found is None else found.numpy()
        for at in np.ndindex(values[k].shape):
            high, low = ([v.copy() for v in values] for _ in range(2))
            high[k][at] += eps
            low[k][at] -= eps
            numeric = (scalar(high) - scalar(low)) / (2 * eps)
            if not abs(numeric - gradient[at]) <= atol + rtol * abs(numeric):
                raise AutogradError(
                    message(
                        "gradcheck",
                        f"gradient of input {k} at {at} must be {numeric:.9g}",
                        f"{gradient[at]:.9g}",
                    )
                )
    return True

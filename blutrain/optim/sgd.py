"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blutrain import ops
from blutrain.errors import ShapeError, message
from blutrain.nn import Parameter
from blutrain.optim.optimizer import Group, Optimizer
from blutrain.tensor import Tensor


class SGD(Optimizer):
    """Gradient descent with momentum, all parameters in one launch (`bt.sgd_step`).

    Args:
        parameters: parameters, or groups of them with settings of their own.
        lr: learning rate.
        momentum: how much of the last direction is kept.
        weight_decay: times the parameter, added to its gradient.
        nesterov: look ahead along the momentum.

    Raises:
        ShapeError: a setting is out of range.

    Example:
        >>> import blutrain as bt
        >>> from blutrain.nn import Parameter
        >>> p = Parameter(bt.ones(1))
        >>> (p * p).sum().backward()
        >>> SGD([p], lr=0.25).step()
        >>> p.tolist()
        [0.5]
    """

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Group],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if lr < 0 or not 0 <= momentum < 1 or weight_decay < 0:
            want = "must hold lr >= 0, 0 <= momentum < 1, weight_decay >= 0"
            raise ShapeError(message("SGD", want, (lr, momentum, weight_decay)))
        if nesterov and not momentum:
            raise ShapeError(message("SGD", "nesterov needs momentum", momentum))
        settings = {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov
        }  # fmt: skip
        super().__init__(parameters, settings)

    def _slot_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum",) if group["momentum"] else ()

    def _update(
        self,
        settings: Group,
        params: Sequence[Parameter],
        slots: Sequence[dict[str, Tensor]],
        decays: Sequence[float],
        grad_scale: float | Tensor,
    ) -> None:
        ops.sgd_step(
            params,
            [p.grad for p in params],
            [s["momentum"] for s in slots] if settings["momentum"] else None,
            lr=settings["lr"],
            momentum=settings["momentum"],
            nesterov=settings["nesterov"],
            weight_decay=decays,
            grad_scale=grad_scale,
        )

"""AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blutrain import ops
from blutrain.errors import ShapeError, message
from blutrain.nn import Parameter
from blutrain.optim.optimizer import Group, Optimizer
from blutrain.tensor import Tensor


class AdamW(Optimizer):
    """Adam with decoupled weight decay, all parameters in one launch (`bt.adamw_step`).

    Args:
        parameters: parameters, or groups of them with settings of their own.
        lr: learning rate.
        betas: how much of the running means of gradients and of their squares is kept a step.
        eps: added to the root of the mean square.
        weight_decay: how much of a parameter is taken away a step, times lr.

    Raises:
        ShapeError: a setting is out of range.

    Example:
        >>> import blutrain as bt
        >>> from blutrain.nn import Parameter
        >>> p = Parameter(bt.ones(1))
        >>> (p * p).sum().backward()
        >>> AdamW([p], lr=0.1, weight_decay=0.0).step()
        >>> round(p.item(), 4)
        0.9
    """

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Group],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        fits = all(0 <= beta < 1 for beta in betas) and lr >= 0 and eps > 0 and weight_decay >= 0
        if not fits:
            want = "must hold lr >= 0, 0 <= betas < 1, eps > 0, weight_decay >= 0"
            raise ShapeError(message("AdamW", want, (lr, betas, eps, weight_decay)))
        settings = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, settings)

    def _slot_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _update(
        self,
        settings: Group,
        params: Sequence[Parameter],
        slots: Sequence[dict[str, Tensor]],
        decays: Sequence[float],
        grad_scale: float | Tensor,
    ) -> None:
        beta1, beta2 = settings["betas"]
        ops.adamw_step(
            params,
            [p.grad for p in params],
            [s["exp_avg"] for s in slots],
            [s["exp_avg_sq"] for s in slots],
            step=self.steps,
            lr=settings["lr"],
            beta1=beta1,
            beta2=beta2,
            eps=settings["eps"],
            weight_decay=decays,
            grad_scale=grad_scale,
        )

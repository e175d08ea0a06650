"""What optimizers share: groups of parameters with settings, slots, steps, state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from blutrain import dtypes
from blutrain.autograd import no_grad
from blutrain.errors import CheckpointError, DTypeError, ShapeError, message
from blutrain.nn import Module, Parameter
from blutrain.nn.parameter import overwrite
from blutrain.tensor import Tensor, zeros

Group = dict[str, Any]


class Optimizer:
    """Base class; a subclass names its slots and launches the update.

    Args:
        parameters: parameters, or groups: dicts with "params" and settings of their own.
        defaults: the settings of groups that do not say otherwise, "weight_decay" among them.

    Attributes:
        groups: dicts of "params" and settings; change `group["lr"]` as you like.
        steps: how many steps were taken.

    Raises:
        DTypeError: something in `parameters` is not a Parameter.
        ShapeError: there are none, one stands twice, or a group has an unknown setting.
    """

    def __init__(
        self, parameters: Iterable[Parameter] | Iterable[Group], defaults: Mapping[str, Any]
    ) -> None:
        given: list[Any] = list(parameters)
        if not all(isinstance(item, dict) for item in given):
            given = [{"params": given}]
        self.groups: list[Group] = []
        self.steps = 0
        for group in given:
            self._add(group, defaults)
        everything = self._parameters()
        if not everything or len({id(p) for p in everything}) != len(everything):
            want = "parameters must be given, each once"
            raise ShapeError(message(type(self).__name__, want, f"{len(everything)} of them"))
        # Made now, not at the first step: a run that will not fit fails before it has trained.
        self._slots = [
            {slot: zeros(p.shape, _slot_dtype(p)) for slot in self._slot_names(group)}
            for group in self.groups
            for p in group["params"]
        ]
        self._place = {id(p): k for k, p in enumerate(everything)}

    def _add(self, group: Group, defaults: Mapping[str, Any]) -> None:
        where = type(self).__name__
        if unknown := set(group) - {"params", *defaults}:
            want = f"a group may set {', '.join(defaults)}"
            raise ShapeError(message(where, want, ", ".join(sorted(unknown))))
        params = list(group.get("params", ()))
        for p in params:
            if not isinstance(p, Parameter):
                do = "wrap it in nn.Parameter"
                raise DTypeError(message(where, "must be given Parameters", type(p).__name__, do))
        self.groups.append({**defaults, **group, "params": params})

    def _slot_names(self, group: Group) -> tuple[str, ...]:
        """What is kept for each parameter of a group, zeros at first."""
        raise NotImplementedError

    def step(self, grad_scale: float | Tensor = 1.0) -> None:
        """Update every parameter that has a gradient.

        Args:
            grad_scale: what gradients are multiplied by first; a scalar tensor is not waited for.
        """
        self.steps += 1
        with no_grad():
            for settings, members in self._launches():
                params, decays = zip(*members, strict=True)
                slots = [self._slots[self._place[id(p)]] for p in params]
                self._update(settings, params, slots, decays, grad_scale)

    def _launches(self) -> list[tuple[Group, list[tuple[Parameter, float]]]]:
        """What one launch can do: groups that differ in weight decay alone are updated together."""
        found: dict[tuple[Any, ...], tuple[Group, list[tuple[Parameter, float]]]] = {}
        for group in self.groups:
            key = tuple(v for k, v in group.items() if k not in ("params", "weight_decay"))
            _, members = found.setdefault(key, (group, []))
            decay = group["weight_decay"]
            members.extend((p, decay) for p in group["params"] if p.grad is not None)
        return [launch for launch in found.values() if launch[1]]

    def _update(
        self,
        settings: Group,
        params: Sequence[Parameter],
        slots: Sequence[dict[str, Tensor]],
        decays: Sequence[float],
        grad_scale: float | Tensor,
    ) -> None:
        """Update parameters that share `settings`, all of which have a gradient."""
        raise NotImplementedError

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every group."""
        for group in self.groups:
            group["lr"] = lr

    def zero_grad(self) -> None:
        """Forget every parameter's gradient."""
        for p in self._parameters():
            p.grad = None

    def _parameters(self) -> list[Parameter]:
        return [p for group in self.groups for p in group["params"]]

    # ------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Steps, the groups' settings, and the slots in the order of the parameters."""
        settings = [{k: v for k, v in g.items() if k != "params"} for g in self.groups]
        sizes = [len(g["params"]) for g in self.groups]
        return {
            "steps": self.steps,
            "groups": settings,
            "sizes": sizes,
            "slots": [dict(slots) for slots in self._slots],
        }

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that does not fit, as `load_state_dict` would; changes nothing.

        Raises:
            CheckpointError: groups, slots or shapes differ.
        """
        where = f"{type(self).__name__}.load_state_dict"
        sizes = [len(g["params"]) for g in self.groups]
        if state.get("sizes") != sizes:
            want = f"the state must be of groups of {sizes} parameters"
            raise CheckpointError(message(where, want, state.get("sizes")))
        for k, (own, saved) in enumerate(zip(self._slots, state["slots"], strict=True)):
            if set(saved) != set(own):
                want = f"parameter {k} must have the slots {sorted(own)}"
                raise CheckpointError(message(where, want, sorted(saved)))
            for name, tensor in own.items():
                if tuple(saved[name].shape) != tensor.shape:
                    want = f"{name} of parameter {k} must have shape {tensor.shape}"
                    raise CheckpointError(message(where, want, tuple(saved[name].shape)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken, with its settings.

        Raises:
            CheckpointError: the state does not fit; nothing has changed.
        """
        self.check_state_dict(state)
        self.steps = int(state["steps"])
        for group, settings in zip(self.groups, state["groups"], strict=True):
            # A checkpoint's JSON has lists where there were tuples.
            group |= {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        for own, saved in zip(self._slots, state["slots"], strict=True):
            for name, tensor in own.items():
                values: Tensor | np.ndarray[Any, Any] = saved[name]
                overwrite(tensor, values)


def decay_groups(model: Module, weight_decay: float) -> list[Group]:
    """Two groups: matrices and tables, which weight decay shrinks, and vectors, which it spares.

    Args:
        model: whose parameters.
        weight_decay: of the first group.

    Example:
        >>> from blutrain.nn import Linear
        >>> [len(group["params"]) for group in decay_groups(Linear(2, 3), 0.1)]
        [1, 1]
    """
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _slot_dtype(parameter: Parameter) -> dtypes.DType:
    """Sums over many steps need float32 at least, whatever the parameter is stored in."""
    return dtypes.as_dtype(parameter.dtype.compute)

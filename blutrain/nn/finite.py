"""Finding the first tensor that is not finite, when a loss is inf or nan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blutrain.nn.module import HookHandle, Module
from blutrain.tensor import Tensor


def first_nonfinite(model: Module, loss: Callable[[], Tensor]) -> str | None:
    """Name the first tensor of a training step that holds an inf or a nan.

    Looks at parameters, then, running the step again, at each module's output in the order of the
    forward pass, at the loss, and at gradients from the loss backwards.

    Args:
        model: the model.
        loss: runs the forward pass of the step that failed.

    Returns:
        For example "activation blocks.3.mlp.fc (12 of 49152 elements)", or None if all is finite.
    """
    for name, parameter in model.named_parameters():
        if found := _count(parameter):
            return f"parameter {name} {found}"
    first: list[str] = []
    handles = [_watch(module, name, first) for name, module in model.named_modules()]
    model.zero_grad()
    try:
        value = loss()
    finally:
        for handle in handles:
            handle.remove()
    if first:
        return first[0]
    if _count(value):
        return "the loss, though every activation is finite"
    value.backward()
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and (found := _count(parameter.grad)):
            return f"gradient of {name} {found}"
    return None


def _watch(module: Module, name: str, first: list[str]) -> HookHandle:
    def look(_: Module, inputs: tuple[Any, ...], output: Any) -> None:
        for tensor in _tensors(output):
            if not first and (found := _count(tensor)):
                first.append(f"activation {name or type(module).__name__} {found}")

    return module.register_forward_hook(look)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, tuple | list):
        for part in output:
            yield from _tensors(part)


def _count(tensor: Tensor) -> str:
    """How many elements are not finite, in words; empty when all are."""
    if not tensor.dtype.is_floating:
        return ""
    bad = int((~np.isfinite(tensor.detach().numpy())).sum())
    return f"({bad} of {tensor.size} elements)" if bad else ""

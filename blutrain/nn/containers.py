"""Modules that hold others: Sequential, ModuleList."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from blutrain.nn.module import Module

T = TypeVar("T", bound=Module)


class ModuleList(Module, Generic[T]):
    """A list of modules whose parameters belong to the module that holds the list.

    Example:
        >>> from blutrain.nn import Linear
        >>> layers = ModuleList(Linear(2, 2) for _ in range(3))
        >>> len(layers), [name for name, _ in layers.named_parameters()][:2]
        (3, ['0.weight', '0.bias'])
    """

    def __init__(self, modules: Iterable[T] = ()) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: T) -> None:
        """Add a module at the end."""
        setattr(self, str(len(self)), module)

    def __len__(self) -> int:
        return sum(1 for _ in self.named_children())

    def __iter__(self) -> Iterator[T]:
        return (cast(T, child) for _, child in self.named_children())

    def __getitem__(self, index: int) -> T:
        return list(self)[index]


class Sequential(ModuleList[Module]):
    """Modules that are applied one after the other.

    Example:
        >>> import blutrain as bt
        >>> from blutrain.nn import Linear, ReLU
        >>> Sequential(Linear(3, 4), ReLU(), Linear(4, 2))(bt.ones((5, 3))).shape
        (5, 2)
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """Apply them in order."""
        for module in self:
            x = module(x)
        return x

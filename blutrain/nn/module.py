"""Modules: parameters and the function that uses them, in a tree.

What belongs to a module is what its attributes hold: a `Parameter` is a parameter, a `Module` a
child, and a tensor named by `register_buffer` a buffer. Nothing is registered behind the scenes,
so an attribute that is replaced or deleted is replaced or gone everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from blutrain import ops
from blutrain.autograd import no_grad
from blutrain.dtypes import as_dtype
from blutrain.errors import CheckpointError, DTypeError, message
from blutrain.nn.parameter import Parameter, overwrite, rebind
from blutrain.tensor import Tensor

M = TypeVar("M", bound="Module")
Hook = Callable[["Module", tuple[Any, ...], Any], Any]


class HookHandle:
    """Takes a hook off again: by `remove()`, or at the end of a `with` block."""

    def __init__(self, hooks: dict[HookHandle, Hook]) -> None:
        self._hooks = hooks

    def remove(self) -> None:
        """Take the hook off."""
        self._hooks.pop(self, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class Module:
    """Base class; a subclass assigns parameters and children and defines `forward`.

    Example:
        >>> import blutrain as bt
        >>> class Scale(Module):
        ...     def __init__(self):
        ...         self.factor = Parameter(bt.full((), 2.0))
        ...     def forward(self, x):
        ...         return x * self.factor
        >>> Scale()(bt.ones(2)).tolist()
        [2.0, 2.0]
    """

    training: bool = True
    forward: Callable[..., Any]
    _buffer_names: frozenset[str] = frozenset()
    _hooks: dict[HookHandle, Hook] | None = None

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run `forward`, then the forward hooks."""
        output = self.forward(*inputs, **options)
        if self._hooks:
            for hook in list(self._hooks.values()):
                replaced = hook(self, inputs, output)
                output = output if replaced is None else replaced
        return output

    # ------------------------------------------------------------------ the tree
    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules that this one's attributes hold."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module (called by `prefix`) and all below it, in the order of assignment."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under the first of its names."""
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield (f"{prefix}.{name}" if prefix else name), value

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter once."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors that are saved with the module but not learned."""
        for prefix, module in self.named_modules():
            for name in sorted(module._buffer_names):
                yield (f"{prefix}.{name}" if prefix else name), getattr(module, name)

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        """Set an attribute that `state_dict` and `to` take along but that is not learned.

        Raises:
            DTypeError: it is not a tensor, or it is a parameter.
        """
        if not isinstance(tensor, Tensor) or isinstance(tensor, Parameter):
            want = f"{name} must be a tensor and not a Parameter"
            raise DTypeError(message("register_buffer", want, type(tensor).__name__))
        self._buffer_names = self._buffer_names | {name}
        setattr(self, name, tensor)

    def n_parameters(self) -> int:
        """How many numbers the module learns."""
        return sum(p.size for p in self.parameters())

    # ------------------------------------------------------------------ modes
    def train(self: M, mode: bool = True) -> M:
        """Behave as in training (dropout on), here and below."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Behave as in use (dropout off), here and below."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget every parameter's gradient."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self: M, dtype: Any) -> M:
        """Convert floating parameters and buffers, in place: who holds them sees the new dtype.

        Raises:
            DTypeError: `dtype` is not a floating one.
        """
        wanted = as_dtype(dtype)
        if not wanted.is_floating:
            raise DTypeError(message("Module.to", "dtype must be floating", wanted))
        with no_grad():
            for _, tensor in self._named_tensors():
                if tensor.dtype.is_floating and tensor.dtype is not wanted:
                    rebind(tensor, ops.cast(tensor, wanted))
        return self

    def apply(self: M, function: Callable[[Module], None]) -> M:
        """Call `function` on every module, children first."""
        for _, child in self.named_children():
            child.apply(function)
        function(self)
        return self

    def register_forward_hook(self, hook: Hook) -> HookHandle:
        """Call `hook(module, inputs, output)` after each forward; a result replaces the output."""
        if self._hooks is None:
            self._hooks = {}
        handle = HookHandle(self._hooks)
        self._hooks[handle] = hook
        return handle

    # ------------------------------------------------------------------ state
    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named_parameters()
        yield from self.named_buffers()

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by name; they share the module's memory."""
        return {name: tensor.detach() for name, tensor in self._named_tensors()}

    def check_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Refuse a state that does not fit, as `load_state_dict` would; changes nothing.

        Raises:
            CheckpointError: names are missing or unknown (strict), or a shape or kind differs.
        """
        where = f"{type(self).__name__}.load_state_dict"
        own = dict(self._named_tensors())
        for wrong, names in (
            ("must not lack", [n for n in own if n not in state]),
            ("must not hold", [n for n in state if n not in own]),
        ):
            if names and strict:
                do = "load the state of a module of the same config, or pass strict=False"
                raise CheckpointError(message(where, f"the state {wrong} {_some(names)}", None, do))
        for name, tensor in own.items():
            values = state.get(name)
            if values is None:
                continue
            if not isinstance(values, Tensor | np.ndarray):
                want = f"{name} must be a tensor or an array"
                raise CheckpointError(message(where, want, type(values).__name__))
            if tuple(values.shape) != tensor.shape:
                want = f"{name} must have shape {tensor.shape}"
                raise CheckpointError(message(where, want, tuple(values.shape)))

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy tensors or NumPy arrays over the module's own, rounded to its dtypes.

        Args:
            state: values by name.
            strict: whether names must match exactly; otherwise what is missing stays as it is.

        Raises:
            CheckpointError: the state does not fit; nothing has changed.
        """
        self.check_state_dict(state, strict)
        for name, tensor in self._named_tensors():
            if name in state:
                overwrite(tensor, state[name])

    # ------------------------------------------------------------------ printing
    def extra(self) -> str:
        """What `repr` shows in the module's brackets."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}" for name, child in self.named_children()]
        if not lines:
            return f"{type(self).__name__}({self.extra()})"
        body = "\n".join(lines).replace("\n", "\n  ")
        return f"{type(self).__name__}({self.extra()}\n  {body}\n)"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"

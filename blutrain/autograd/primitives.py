"""The few kernels that the engine itself needs, given to it by name.

`autograd` knows no kernels. The kernels' own modules hand these in when they are imported:

- `accumulate(into, tensor)`: `into += tensor`, in place;
- `dense_copy(tensor)`: a contiguous copy;
- `ones(shape, dtype)`: a tensor of ones;
- `all_finite(tensor)`: whether no element is inf or nan (reads back; anomaly mode only).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blutrain.errors import AutogradError, message

_PRIMITIVES: dict[str, Callable[..., Any]] = {}


def provide(name: str, function: Callable[..., Any]) -> None:
    """Give the engine its kernel called `name`."""
    _PRIMITIVES[name] = function


def primitive(name: str) -> Callable[..., Any]:
    """The engine's kernel called `name`.

    Raises:
        AutogradError: no kernel module provided it.
    """
    try:
        return _PRIMITIVES[name]
    except KeyError:
        raise AutogradError(
            message("autograd", f"primitive {name!r} must be provided", do="import blutrain.ops")
        ) from None

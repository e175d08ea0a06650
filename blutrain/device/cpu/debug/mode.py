"""The switches of debug mode."""

from __future__ import annotations

import ctypes
import os
from types import TracebackType
from typing import Any

import numpy as np

from blutrain.device.array import Array
from blutrain.device.cpu.debug.barriers import DivergentBarrier
from blutrain.device.cpu.debug.races import Races
from blutrain.device.cpu.debug.uninitialised import Uninitialised
from blutrain.device.cpu.interpret import Bfloat16, Order, interpret
from blutrain.device.geometry import Dim
from blutrain.device.launch import Interpreter, interpret_with
from blutrain.device.stream import here
from blutrain.device.target import TARGET
from blutrain.errors import DeviceError, ShapeError, message


def check(
    kernel: Any,
    grid: Dim,
    block: Dim,
    *arguments: Any,
    shared: int = 0,
    order: Order = "ascending",
) -> None:
    """Run a kernel thread by thread, with every check.

    Args:
        kernel, grid, block, arguments, shared: as of `blutrain.device.cpu.run`.
        order: in which order threads run: "ascending", "reversed", or a seed for random orders.

    Raises:
        KernelFault: the kernel does what CUDA leaves undefined. Arrays keep what it has written.
    """
    checks = (Uninitialised(), DivergentBarrier(), Races())
    interpret(kernel, grid, block, *arguments, shared=shared, observers=checks, order=order)


class debug:
    """Check every kernel that is launched: bounds, races, barriers, uninitialised memory.

    Called, it switches debug mode on (or off) from there on; as a context manager it puts back at
    the end what was before. `BLUTRAIN_DEBUG=1` in the environment has it on from the start, and
    `=reversed` or `=7` with that order. A launch then takes some ten thousand times as long, so
    take small shapes.

    Args:
        mode: whether it is on.
        order: in which order threads run between barriers, and blocks: "ascending", "reversed", or
            a seed for random orders. Results that depend on it are results of a race.

    Raises:
        DeviceError: kernels run on a GPU.

    Example:
        >>> import blutrain as bt
        >>> with bt.debug():
        ...     y = bt.arange(4) * 2.0
        >>> y.tolist()
        [0.0, 2.0, 4.0, 6.0]
    """

    def __init__(self, mode: bool = True, *, order: Order = "ascending") -> None:
        if not (order in ("ascending", "reversed") or type(order) is int):
            wrong = 'order must be "ascending", "reversed" or a seed'
            raise ShapeError(message("debug", wrong, repr(order)))
        if mode and TARGET == "cuda":
            do = "run the same script with BLUTRAIN_DEVICE=cpu"
            raise DeviceError(message("debug", "checks kernels on the CPU, not on a GPU", do=do))
        self._before = interpret_with(_launcher(order) if mode else None)

    def __enter__(self) -> debug:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interpret_with(self._before)


def _launcher(order: Order) -> Interpreter:
    """What launches in place of compiled code."""

    def launch(kernel: Any, grid: Dim, block: Dim, arguments: tuple[Any, ...], shared: int) -> None:
        seen = [_hosted(a) for a in arguments]

        def start() -> None:
            check(kernel, grid, block, *seen, shared=shared, order=order)

        if here.capture is None:
            start()
        else:
            here.capture.add(start)

    return launch


def _hosted(argument: Any) -> Any:
    """An argument of a launch as an argument of the interpreter."""
    to_array = getattr(argument, "array", None)
    array = argument if to_array is None else to_array()
    if type(array) is not Array:
        return array
    kind = array.dtype.storage
    spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    if 0 in array.shape:
        data: np.ndarray[Any, Any] = np.empty(array.shape, kind)
    else:
        # Of an axis that runs backwards, the last element has the lowest address.
        low = sum(s for s in spans if s < 0)
        size = sum(map(abs, spans)) + array.dtype.itemsize
        kept = (ctypes.c_char * size).from_address(array.pointer + low)
        data = np.ndarray(array.shape, kind, memoryview(kept), -low, array.strides)
    return data.view(Bfloat16) if array.dtype.name == "bfloat16" else data


def from_environment(value: str) -> None:
    """Switch on what `BLUTRAIN_DEBUG` says; "" and "0" say nothing.

    Raises:
        ShapeError: it says something else.
    """
    if value in ("", "0"):
        return
    if value == "1":
        debug()
    elif value == "reversed":
        debug(order="reversed")
    elif value.isdecimal():
        debug(order=int(value))
    else:
        wrong = "must be 1, reversed, or a seed for random orders"
        raise ShapeError(message("BLUTRAIN_DEBUG", wrong, repr(value)))


from_environment(os.environ.get("BLUTRAIN_DEBUG", ""))

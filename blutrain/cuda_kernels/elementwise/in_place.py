"""Writing into a tensor's own memory: x += y and its kin, with a version that counts the writes.

Outside the tape the kernel writes straight into x. Where gradients are recorded, the result is
computed beside x, copied in, and x takes its place on the tape; what an earlier operation saved of
x is then known to be overwritten. A view cannot take part in that, since its base would not know.
"""

from __future__ import annotations

import math
from typing import Any

from blutrain.autograd import tape
from blutrain.cuda_kernels.elementwise import binary, fill
from blutrain.cuda_kernels.elementwise.binary import Number, operands
from blutrain.cuda_kernels.elementwise.cast import cast
from blutrain.cuda_kernels.elementwise.copy import copy_into, dense_copy
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.errors import AutogradError, DTypeError, ShapeError, message
from blutrain.tensor import Tensor, from_numpy


def _check_write(op: str, x: Tensor, y: Tensor | None) -> bool:
    """Whether the write is to be recorded; refuses what cannot be."""
    if 0 in x.strides and any(s == 0 and n > 1 for s, n in zip(x.strides, x.shape)):
        raise ShapeError(message(op, "elements must not share memory", x.strides, "clone() it"))
    recorded = tape.mode.recording and (
        x.requires_grad or (y is not None and y.requires_grad and x.dtype.is_floating)
    )
    if not recorded:
        return False
    if x.is_view:
        do = "write under no_grad(), or build the result with where or cat"
        raise AutogradError(
            message(op, "a view cannot be written where gradients are recorded", do=do)
        )
    if x.node is None and x.requires_grad:
        do = "write under no_grad(), or into a clone()"
        raise AutogradError(
            message(op, "a leaf that requires a gradient must not be written", do=do)
        )
    return True


def _take_place(x: Tensor, result: Tensor) -> None:
    """x has result's values, and its place on the tape."""
    with tape.no_grad():
        copy_into(x, result)
    x.storage.version += 1
    x.node, x.output_index = result.node, result.output_index
    x.requires_grad = result.requires_grad


def _binary_in_place(name: str, x: Tensor, y: Any) -> Tensor:
    op = f"{name}_"
    check_tensor(op, "x", x)
    a, b, number, _ = operands(op, x, y)
    if a.dtype is not x.dtype:
        got = f"a result of {a.dtype}"
        raise DTypeError(message(op, f"the result must be {x.dtype}, as x is", got, "cast y"))
    if b is not None and binary.broadcast_shapes(op, x.shape, b.shape) != x.shape:
        raise ShapeError(message(op, f"y must broadcast to {x.shape}", b.shape))
    if _check_write(op, x, b):
        _take_place(x, getattr(binary, name)(x, y))
        return x
    if name == "div" and not x.dtype.is_floating:
        raise DTypeError(message(op, "x must have a floating dtype", x.dtype, "use div"))
    if b is not None and b.storage is x.storage and (b.offset, b.strides) != (x.offset, x.strides):
        b = dense_copy(b)  # another view of the same memory would be read half written
    binary.write_binary(name, x, b, number)
    x.storage.version += 1
    return x


def add_(x: Tensor, y: Tensor | Number) -> Tensor:
    """x += y in x's memory; y broadcasts to x's shape.

    Raises:
        AutogradError: x is a leaf that requires a gradient, or a view on the tape.
        DTypeError: the sum's dtype is not x's.
        ShapeError: y does not broadcast to x.

    Example:
        >>> import blutrain as bt
        >>> x = bt.tensor([1.0, 2.0])
        >>> x.add_(1.0).tolist()
        [2.0, 3.0]
    """
    return _binary_in_place("add", x, y)


def sub_(x: Tensor, y: Tensor | Number) -> Tensor:
    """x -= y in x's memory; errors as for `add_`."""
    return _binary_in_place("sub", x, y)


def mul_(x: Tensor, y: Tensor | Number) -> Tensor:
    """x *= y in x's memory; errors as for `add_`."""
    return _binary_in_place("mul", x, y)


def div_(x: Tensor, y: Tensor | Number) -> Tensor:
    """x /= y in x's memory; errors as for `add_`."""
    return _binary_in_place("div", x, y)


def copy_(x: Tensor, y: Tensor | Number | Any) -> Tensor:
    """Write y's values, broadcast and converted to x's dtype, into x's memory.

    Example:
        >>> import blutrain as bt
        >>> bt.zeros((2, 2)).copy_(bt.tensor([1, 2])).tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    check_tensor("copy_", "x", x)
    if not isinstance(y, Tensor):
        y = from_numpy(y, x.dtype)
    if binary.broadcast_shapes("copy_", x.shape, y.shape) != x.shape:
        raise ShapeError(message("copy_", f"y must broadcast to {x.shape}", y.shape))
    if _check_write("copy_", x, y):
        _take_place(x, cast(y, x.dtype).expand(x.shape))
        return x
    if y.storage is x.storage:
        y = dense_copy(y)
    copy_into(x, y)
    x.storage.version += 1
    return x


def fill_(x: Tensor, value: Number) -> Tensor:
    """Write one value into every element of x."""
    check_tensor("fill_", "x", x)
    if _check_write("fill_", x, None):
        raise AutogradError(
            message("fill_", "the tensor must not be on the tape", do="fill under no_grad()")
        )
    fill.fill(x, value)
    x.storage.version += 1
    return x


def zero_(x: Tensor) -> Tensor:
    """Write zeros into x."""
    return fill_(x, 0)


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value, for a basic index; the value broadcasts.

    Raises:
        AutogradError: gradients are recorded for x or the value.
    """
    view = x.detach()[key]
    needs = x.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
    if tape.mode.recording and needs:
        do = "assign under no_grad(), or build the result with where or cat"
        raise AutogradError(message("setitem", "gradients must not be recorded", do=do))
    if isinstance(value, (bool, int, float)):
        if isinstance(value, float) and not math.isfinite(value) and not x.dtype.is_floating:
            raise DTypeError(message("setitem", f"value must fit {x.dtype}", value))
        _check_write("setitem", view, None)
        fill.fill(view, value)
        x.storage.version += 1
        return
    with tape.no_grad():
        copy_(view, value)

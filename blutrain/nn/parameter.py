"""A tensor that a module learns."""

from __future__ import annotations

from typing import Any

from blutrain import dtypes
from blutrain.device import transfer
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor; a module finds its parameters by this type.

    Args:
        values: the initial values, whose memory it takes over.
        requires_grad: whether it is learned.

    Raises:
        DTypeError: the values are not floating-point numbers.

    Example:
        >>> import blutrain as bt
        >>> Parameter(bt.zeros(3)).requires_grad
        True
    """

    __slots__ = ()

    def __init__(self, values: Tensor, requires_grad: bool = True) -> None:
        if not values.dtype.is_floating:
            do = "convert it with .to(bt.float32)"
            raise DTypeError(message("Parameter", "values must be floating", values.dtype, do))
        super().__init__(
            values.storage, values.shape, values.strides, values.offset, values.dtype, requires_grad
        )


def rebind(tensor: Tensor, values: Tensor) -> None:
    """Make `tensor` (shared by modules and optimizers) stand for other values, of any dtype."""
    tensor.storage = values.storage
    tensor.shape, tensor.strides, tensor.offset = values.shape, values.strides, values.offset
    tensor.size, tensor.is_contiguous = values.size, values.is_contiguous
    tensor.dtype = values.dtype
    tensor.grad = None


def overwrite(tensor: Tensor, values: Any) -> None:
    """Copy an array or tensor of the same shape over `tensor`'s memory, rounded to its dtype.

    Raises:
        ShapeError: the shapes differ, or `tensor` is not contiguous.
    """
    if tuple(values.shape) != tensor.shape or not tensor.is_contiguous:
        want = f"values must be of shape {tensor.shape}, over contiguous memory"
        raise ShapeError(message("overwrite", want, tuple(values.shape)))
    if isinstance(values, Tensor):
        values = values.detach().numpy()
    if tensor.size:
        transfer.copy_to_device(tensor.pointer, dtypes.to_storage(values, tensor.dtype))
        tensor.storage.version += 1

"""What a kernel is given for a tensor: a pointer, a shape, strides and a dtype."""

from __future__ import annotations

from typing import Any

from blutrain.dtypes import DType


class Array:
    """A typed window on device memory, cheap to make, ready to be packed into a launch.

    Attributes:
        pointer: address of the first element on the device of the target.
        shape: extents.
        strides: steps in bytes, one a dimension, zero where broadcast.
        dtype: element type.
        layout: "C" when row-major and dense (kernels then never read `strides`), else "A".
        owner: whatever must stay alive while the window is in use.
    """

    __slots__ = ("dtype", "layout", "owner", "pointer", "shape", "strides")

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: DType,
        layout: str,
        owner: object = None,
    ) -> None:
        self.pointer = pointer
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.layout = layout
        self.owner = owner


def numba_array(owner: Any) -> Any:
    """Numba's device array over the memory of anything with `__cuda_array_interface__`."""
    from numba import cuda

    return cuda.as_cuda_array(owner)

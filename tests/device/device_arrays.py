"""Device memory for tests that have no tensors yet: arrays up, arrays down."""

import numpy as np

from blutrain import dtypes
from blutrain.device import copy_to_device, copy_to_host
from blutrain.device.array import Array
from blutrain.memory import free, malloc


class Upload:
    """A NumPy array's bytes on the device, as `array()` for a launch, until it is dropped."""

    def __init__(self, values: np.ndarray, dtype: dtypes.DType | None = None) -> None:
        self.dtype = dtype or dtypes.as_dtype(values.dtype)
        self.shape = values.shape
        stored = dtypes.to_storage(values, self.dtype)
        self.block = malloc(stored.nbytes)
        copy_to_device(self.block.pointer, stored)

    def array(self) -> Array:
        strides = np.empty(self.shape, self.dtype.storage).strides
        return Array(self.block.pointer, self.shape, strides, self.dtype, "C", self)

    def numpy(self) -> np.ndarray:
        out = np.empty(self.shape, self.dtype.storage)
        copy_to_host(out, self.block.pointer)
        return dtypes.from_storage(out, self.dtype)

    def __del__(self) -> None:
        free(self.block)

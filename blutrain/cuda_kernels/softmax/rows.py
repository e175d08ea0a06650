"""Any axis as the last one of a packed matrix, and back; samples and errors of both softmaxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Sample
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.validate import as_axes, check_floating
from blutrain.dtypes import DType
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor

# Up to here one warp sweeps a row that then lies in the L1 cache; past it a block does, once.
LONG_ROW = 1024


def computing_type(dtype: DType) -> Any:
    """The Numba type in which the kernels compute for elements of `dtype`."""
    return float64 if dtype is dtypes.float64 else float32


def axis_last(x: Tensor, axis: int) -> Tensor:
    """`x` with `axis` moved to the end, packed (a copy where it was not)."""
    order = (*(k for k in range(x.ndim) if k != axis), axis)
    return dense(x if axis == x.ndim - 1 else x.permute(order))


def axis_back(y: Tensor, axis: int) -> Tensor:
    """The inverse of `axis_last`, as a view."""
    last = y.ndim - 1
    if axis == last:
        return y
    return y.permute((*range(axis), last, *range(axis, last)))


def check(op: str, x: Tensor, axis: int) -> int:
    """The axis within [0, ndim) after x was found fit.

    Raises:
        DTypeError: x is no floating tensor.
        ShapeError: there is no such axis.
    """
    check_floating(op, "x", x)
    if not isinstance(axis, int):
        raise ShapeError(message(op, "axis must be one integer", axis))
    return as_axes(op, axis, x.ndim)[0]


def samples(rng: np.random.Generator) -> list[Sample]:
    """Short rows, rows around LONG_ROW and its steps, other axes, values far from 0."""

    def sample(shape: tuple[int, ...], scale: float = 2.0, **params: Any) -> Sample:
        return Sample(inputs=(rng.normal(0.0, scale, shape),), params=params)

    return [
        sample((0, 3)),
        sample((3, 0)),
        sample((1,)),
        sample((5, 33)),
        sample((4, 3, 31), axis=1),
        sample((2, 1, 7), axis=0),
        sample((9, int(rng.integers(2, 70))), scale=30.0),
        sample((2, 1025)),
        sample((1, 1024 + int(rng.integers(2, 300)))),
    ]


def errors(op: str) -> list[Invalid]:
    """What must be refused, and in which words."""
    x = np.zeros((2, 4), np.float32)
    return [
        Invalid((x,), ShapeError, f"{op}: axis must be within 2 dimensions", {"axis": 2}),
        Invalid((x,), ShapeError, f"{op}: axis must be one integer", {"axis": (0, 1)}),
        Invalid((x[0, 0],), ShapeError, f"{op}: axis must be within 0 dimensions"),
        Invalid((x.astype(np.int32),), DTypeError, f"{op}: x must have a floating dtype"),
    ]

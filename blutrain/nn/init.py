"""Initialisers: functions that make the first values of a parameter.

Each takes its settings and returns a function of (shape, dtype). Weights have the shape
(outputs, inputs), so fan-in is the last extent. The numbers come from blutrain's counter-based
generator: the same seed gives the same weights on every target.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from blutrain import ops
from blutrain.dtypes import DType
from blutrain.tensor import Shape, Tensor

Initialiser = Callable[[Shape, DType], Tensor]


def zeros() -> Initialiser:
    """All zeros."""
    return lambda shape, dtype: ops.zeros(shape, dtype)


def ones() -> Initialiser:
    """All ones."""
    return lambda shape, dtype: ops.ones(shape, dtype)


def normal(std: float = 1.0, mean: float = 0.0) -> Initialiser:
    """Normally distributed.

    Example:
        >>> import blutrain as bt
        >>> bt.manual_seed(0)
        >>> abs(float(normal(0.02)((100, 100), bt.float32).numpy().std()) - 0.02) < 1e-3
        True
    """
    return lambda shape, dtype: ops.randn(shape, mean, std, dtype=dtype)


def uniform(bound: float) -> Initialiser:
    """Uniform in [-bound, bound)."""
    return lambda shape, dtype: ops.rand(shape, -bound, bound, dtype=dtype)


def fan_in_uniform() -> Initialiser:
    """Uniform within 1/√fan_in: PyTorch's default for linear layers."""
    return lambda shape, dtype: uniform(1 / math.sqrt(shape[-1]))(shape, dtype)


def xavier_uniform(gain: float = 1.0) -> Initialiser:
    """Uniform with variance 2/(fan_in + fan_out) (Glorot and Bengio, 2010)."""
    return lambda shape, dtype: uniform(gain * math.sqrt(6 / (shape[-1] + shape[0])))(shape, dtype)


def kaiming_normal(gain: float = math.sqrt(2)) -> Initialiser:
    """Normal with standard deviation gain/√fan_in (He et al., 2015)."""
    return lambda shape, dtype: normal(gain / math.sqrt(shape[-1]))(shape, dtype)

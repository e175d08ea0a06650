"""Copies: packed, into other memory, and the op `clone`.

y = x, dx = dy. One read and one write an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blutrain.autograd.primitives import provide
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.template import map_elements, same
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.errors import DTypeError
from blutrain.tensor import Tensor


def copy_into(out: Tensor, t: Tensor) -> Tensor:
    """Write `t`, broadcast and converted, into the memory of `out`."""
    return map_elements(same, "copy", [t], out.dtype, out=out, shape=out.shape)


def dense(t: Tensor) -> Tensor:
    """`t` itself if it is contiguous, else a packed copy."""
    return t if t.is_contiguous else map_elements(same, "copy", [t], t.dtype)


def dense_copy(t: Tensor) -> Tensor:
    """A contiguous copy, always in new memory."""
    return map_elements(same, "copy", [t], t.dtype)


provide("dense_copy", dense_copy)


def clone_forward(ctx: Any, x: Tensor) -> Tensor:
    """y = x, packed."""
    return dense_copy(x)


def clone_backward(ctx: Any, dy: Tensor) -> Tensor:
    """dx = dy."""
    return dy


def samples(rng: np.random.Generator) -> list[Sample]:
    """Sizes around a block."""
    return [
        Sample((rng.standard_normal(s),)) for s in ((0,), (), (1,), (257,), (3, 5, 7), (2, 300))
    ]


def errors() -> list[Invalid]:
    """A value that is no tensor."""
    return [Invalid(([1.0],), DTypeError, "clone: x must be a tensor")]


def clone(x: Tensor) -> Tensor:
    """A contiguous copy in memory of its own, with gradients flowing through.

    Example:
        >>> import blutrain as bt
        >>> x = bt.tensor([[1, 2], [3, 4]])
        >>> x.T.clone().is_contiguous
        True
    """
    check_tensor("clone", "x", x)
    result: Tensor = apply("clone", x)
    return result


def contiguous(x: Tensor) -> Tensor:
    """`x` itself if its elements are row-major without gaps, else a packed copy."""
    return x if x.is_contiguous else clone(x)


register(
    Op(
        name="clone",
        forward=clone_forward,
        backward=clone_backward,
        reference=lambda x: x,
        samples=samples,
        errors=errors,
        call=clone,
    )
)

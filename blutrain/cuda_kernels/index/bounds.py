"""Refusing indices that are out of range, before anything is computed from them.

Indices live on the device, so the device has to look: a small kernel finds the first bad position,
and the host reads its answer. That read waits for the work queued before it, which on a GPU costs
an idle gap of some ten microseconds a check. In exchange the error names the place, comes before
any result exists, and no parameter is ever updated from garbage. Where the host must not wait, such
as in a captured graph, `unchecked()` leaves the check out; the kernels then give nan for such an
index and still read nothing out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.cuda_kernels.common import FULL_MASK, N_WARPS, ROWS_BLOCK, WARP, blocks_for
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.device import launch
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty

PER_LANE = 16  # indices that each lane looks at: few answers to read back, enough warps to be fast
PER_WARP = PER_LANE * WARP

_checking = True


@contextmanager
def unchecked() -> Iterator[None]:
    """Do not look for bad indices within a block; results computed from one are nan."""
    global _checking
    before, _checking = _checking, False
    try:
        yield
    finally:
        _checking = before


@cuda.jit
def first_bad_index_kernel(
    indices,  # (n,), any integer type
    upper,
    ignored,  # an index that is fine wherever it lies; upper - 1 where there is none
    first_bad,  # (n_warps,): the first bad position of each warp's stretch, n where there is none
):
    """One warp a stretch of PER_WARP indices."""
    n = indices.size
    warp = cuda.blockIdx.x * N_WARPS + cuda.threadIdx.y
    if warp >= first_bad.size:  # a whole warp leaves, so the shuffles below stay full
        return
    first = n
    for k in range(PER_LANE):
        # Downwards, so that the last one kept is the first one bad.
        at = warp * PER_WARP + (PER_LANE - 1 - k) * WARP + cuda.threadIdx.x
        if at < n:
            index = indices[at]
            if (index < 0 or index >= upper) and index != ignored:
                first = at
    first = min(first, cuda.shfl_xor_sync(FULL_MASK, first, 16))
    first = min(first, cuda.shfl_xor_sync(FULL_MASK, first, 8))
    first = min(first, cuda.shfl_xor_sync(FULL_MASK, first, 4))
    first = min(first, cuda.shfl_xor_sync(FULL_MASK, first, 2))
    first = min(first, cuda.shfl_xor_sync(FULL_MASK, first, 1))
    if cuda.threadIdx.x == 0:
        first_bad[warp] = first


def check_indices(
    op: str, name: str, indices: Tensor, upper: int, ignored: int | None = None
) -> Tensor:
    """The indices, packed, after every one was found within [0, upper).

    Args:
        op: the op that the user called.
        name: its argument.
        indices: integers of any shape.
        upper: what they must be below.
        ignored: one more value that is allowed.

    Raises:
        DTypeError: `indices` are no tensor of integers.
        ShapeError: one is out of range; the message names the first and its place.
    """
    check_tensor(op, name, indices)
    if indices.dtype.kind not in "iu":
        do = f"pass {name}.to('int64')"
        raise DTypeError(message(op, f"{name} must be integers", indices.dtype, do))
    indices = dense(indices)
    n = indices.size
    if n == 0 or not _checking:
        return indices
    n_warps = blocks_for(n, PER_WARP)
    first_bad = empty((n_warps,), dtypes.int64)
    launch(
        first_bad_index_kernel,
        blocks_for(n_warps, N_WARPS),
        ROWS_BLOCK,
        indices.array(n),
        upper,
        upper - 1 if ignored is None else ignored,
        first_bad,
    )
    at = int(first_bad.numpy().min())
    if at < n:
        place = tuple(int(i) for i in np.unravel_index(at, indices.shape))
        value = indices.view(n)[at].item()
        within = f"{name} must be within [0, {upper})"
        if ignored is not None:
            within += f" or {ignored}"
        raise ShapeError(message(op, within, f"{value} at {place}"))
    return indices

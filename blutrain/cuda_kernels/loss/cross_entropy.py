r"""Cross-entropy of logits against target classes: log-softmax and negative log-likelihood in one.

Forward, for every row x of V logits with target t, L = log Σ_k exp(x_k) and label smoothing ε:

    loss_row = -Σ_j q_j (x_j - L) = L - (1 - ε) x_t - ε Σ_j x_j / V,   q_j = (1 - ε) [j = t] + ε / V
    loss     = Σ loss_row / n,   n = the number of rows whose target is not ignore_index

Backward, from dL/dx_j = exp(x_j - L):

    dx_j = dy / n (exp(x_j - L) - q_j)      (0 in ignored rows)

Shapes: logits (..., V), targets (...), loss (). Saved for backward: the logits themselves, L of
every row (4 bytes) and 1 / n. Neither the log-softmax nor the softmax is ever stored.
Bytes for N rows of element size s: forward N V s, the logits once (twice with smoothing), backward
2 N V s. FLOPs: about 6 N V and N V exponentials forward, 4 N V and N V exponentials backward.

L comes from the one-sweep maximum and sum of `softmax.online`. The rows' losses are added by one
block in a fixed order. With every target ignored the loss is 0 / 0 = nan, as in PyTorch. For 16-bit
logits the loss is float32: a mean over thousands of rows deserves its digits.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda

from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.autograd.tape import Context
from blutrain.cuda_kernels.common import BLOCK, N_WARPS, block_sum, blocks_for
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.index.bounds import check_indices
from blutrain.cuda_kernels.softmax.online import block_peak_and_total
from blutrain.cuda_kernels.softmax.rows import computing_type
from blutrain.cuda_kernels.validate import check_floating, check_tensor
from blutrain.device import launch
from blutrain.errors import AutogradError, DTypeError, ShapeError, message
from blutrain.tensor import Tensor, empty, empty_like

TILE = 4 * BLOCK  # logits of a row that one block of the backward kernel handles


@functools.cache
def _forward_kernels(real: Any) -> tuple[Any, Any]:
    """The two forward kernels; shared memory needs the computing type `real`."""

    @cuda.jit
    def cross_entropy_forward_kernel(
        logits,  # (n_rows, n_cols)
        targets,  # (n_rows,)
        losses,  # (n_rows,)
        log_sums,  # (n_rows,): L
        ignore_index,
        smoothing,
    ):
        """One block a row: L in one sweep, then the row's loss."""
        shared = cuda.shared.array(N_WARPS, real)
        row = cuda.blockIdx.x
        n_cols = logits.shape[1]
        target = targets[row]
        if target == ignore_index:  # the whole block leaves: the row is never read
            if cuda.threadIdx.x == 0:
                losses[row] = real(0.0)
                log_sums[row] = real(0.0)
            return
        peak, total = block_peak_and_total(logits, row, shared)
        log_sum = peak + math.log(total)
        mean = real(0.0)
        if smoothing > 0:
            for col in range(cuda.threadIdx.x, n_cols, BLOCK):
                mean += logits[row, col]
            mean = block_sum(mean, shared) / real(n_cols)
        if cuda.threadIdx.x == 0:
            log_sums[row] = log_sum
            if target >= 0 and target < n_cols:
                loss = log_sum - (real(1.0) - smoothing) * logits[row, target]
                if smoothing > 0:  # 0 times a mean of -inf would be nan
                    loss -= smoothing * mean
                losses[row] = loss
            else:
                losses[row] = real(math.nan)  # only in unchecked()

    @cuda.jit
    def cross_entropy_mean_kernel(
        losses,  # (n_rows,)
        targets,  # (n_rows,)
        loss,  # (1,)
        inverse_count,  # (1,)
        ignore_index,
    ):
        """One block: the mean over the rows that count."""
        shared = cuda.shared.array(N_WARPS, real)
        total = real(0.0)
        count = real(0.0)
        for row in range(cuda.threadIdx.x, losses.size, BLOCK):
            total += losses[row]
            if targets[row] != ignore_index:
                count += real(1.0)
        total = block_sum(total, shared)
        count = block_sum(count, shared)
        if cuda.threadIdx.x == 0:
            loss[0] = total / count
            inverse_count[0] = real(1.0) / count

    return cross_entropy_forward_kernel, cross_entropy_mean_kernel


@cuda.jit
def cross_entropy_backward_kernel(
    dloss,  # (1,)
    logits,  # (n_rows, n_cols)
    targets,  # (n_rows,)
    log_sums,  # (n_rows,)
    inverse_count,  # (1,)
    dlogits,  # (n_rows, n_cols)
    ignore_index,
    smoothing,
):
    """One block a tile of a row: dx = dy / n (exp(x - L) - q)."""
    n_cols = logits.shape[1]
    n_tiles = (n_cols + TILE - 1) // TILE
    row = cuda.blockIdx.x // n_tiles
    begin = cuda.blockIdx.x % n_tiles * TILE
    target = targets[row]
    log_sum = log_sums[row]
    scale = dloss[0] * inverse_count[0]
    elsewhere = smoothing / type(smoothing)(n_cols)
    counts = target != ignore_index
    for col in range(begin + cuda.threadIdx.x, min(n_cols, begin + TILE), BLOCK):
        gradient = math.exp(logits[row, col] - log_sum) - elsewhere
        if col == target:
            gradient -= type(smoothing)(1.0) - smoothing
        dlogits[row, col] = gradient * scale if counts else type(scale)(0.0)


def cross_entropy_forward(
    ctx: Context,
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    reuse_logits: bool,
) -> Tensor:
    """Launch the row kernel and the mean, and save what backward needs."""
    logits = dense(logits)
    n_rows, n_cols = targets.size, logits.shape[-1]
    real = logits.dtype.compute
    losses, log_sums = empty((n_rows,), real), empty((n_rows,), real)
    loss, inverse_count = empty((), real), empty((1,), real)
    per_row, mean = _forward_kernels(computing_type(logits.dtype))
    if n_rows:
        launch(
            per_row,
            n_rows,
            BLOCK,
            logits.array(n_rows, n_cols),
            targets.array(n_rows),
            losses,
            log_sums,
            ignore_index,
            real.type(label_smoothing),
        )
    launch(
        mean, 1, BLOCK, losses, targets.array(n_rows), loss.array(1), inverse_count, ignore_index
    )
    ctx.save(logits, targets, log_sums, inverse_count)
    ctx.ignore_index, ctx.label_smoothing = ignore_index, label_smoothing
    ctx.reuse_logits = reuse_logits
    return loss


def cross_entropy_backward(ctx: Context, dloss: Tensor) -> tuple[Tensor, None]:
    """Launch the kernel that writes the logits' gradient in one sweep."""
    logits, targets, log_sums, inverse_count = ctx.saved
    n_rows, n_cols = targets.size, logits.shape[-1]
    # In place is safe: each element is read and then written by one thread, and read by no other.
    dlogits = logits.detach() if ctx.reuse_logits else empty_like(logits)
    if ctx.reuse_logits:
        logits.storage.version += 1
    if n_rows:
        launch(
            cross_entropy_backward_kernel,
            n_rows * blocks_for(n_cols, TILE),
            BLOCK,
            dense(dloss).array(1),
            logits.array(n_rows, n_cols),
            targets.array(n_rows),
            log_sums,
            inverse_count,
            dlogits.array(n_rows, n_cols),
            ctx.ignore_index,
            logits.dtype.compute.type(ctx.label_smoothing),
        )
    return dlogits, None


def reference(
    logits: np.ndarray,
    targets: np.ndarray,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reuse_logits: bool = False,
) -> np.ndarray:
    """NumPy, float64."""
    n_cols = logits.shape[-1]
    rows, classes = logits.reshape(-1, n_cols), targets.reshape(-1)
    counted = classes != ignore_index
    rows, classes = rows[counted], classes[counted]
    log_p = rows - rows.max(-1, keepdims=True, initial=-np.inf)
    log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    q = np.full(rows.shape, label_smoothing / n_cols)
    q[np.arange(len(classes)), classes] += 1 - label_smoothing
    with np.errstate(invalid="ignore"):
        return np.asarray(-(q * log_p).sum() / np.float64(len(classes)))


def samples(rng: np.random.Generator) -> list[Sample]:
    """Few and many classes around the kernels' steps, ignored targets, smoothing, large logits."""

    def sample(
        shape: tuple[int, ...], ignored: int | None = None, scale: float = 2.0, **params: Any
    ) -> Sample:
        targets = rng.integers(0, shape[-1], shape[:-1])
        if ignored is not None:
            targets.reshape(-1)[::3] = ignored
            params["ignore_index"] = ignored
        return Sample(inputs=(rng.normal(0.0, scale, shape), targets), params=params)

    return [
        sample((1, 1)),
        sample((7, 5)),
        sample((2, 3, 11), label_smoothing=0.1),
        sample((int(rng.integers(2, 9)), int(rng.integers(257, 1300)))),
        sample((3, 2049), scale=20.0),
        sample((10, 70), ignored=-100, label_smoothing=0.2),
        sample((10, 70), ignored=3),
    ]


def errors() -> list[Invalid]:
    """What must be refused, and in which words."""
    x, t = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    op = "cross_entropy:"
    within = f"{op} targets must be within [0, 3) or -100, got"
    return [
        Invalid((x, t[:1]), ShapeError, f"{op} targets must have shape (2,), got (1,)"),
        Invalid((x, t - 1), ShapeError, f"{within} -1 at (0,)"),
        Invalid((x, t + np.array([0, 3])), ShapeError, f"{within} 3 at (1,)"),
        Invalid((x, x[:, 0]), DTypeError, f"{op} targets must be integers"),
        Invalid((x.astype(np.int64), t), DTypeError, f"{op} logits must have a floating dtype"),
        Invalid((x[:, :0], t), ShapeError, f"{op} logits must have at least 1 class"),
        Invalid((x, t), ShapeError, f"{op} label_smoothing must be", {"label_smoothing": 1.5}),
    ]


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reuse_logits: bool = False,
) -> Tensor:
    """The mean negative log-likelihood of the targets under softmax(logits).

    Args:
        logits: (..., V), floating.
        targets: (...), integers within [0, V), or ignore_index.
        ignore_index: targets of this value count neither in the sum nor in the mean.
        label_smoothing: the share of each target that is spread over all classes, in [0, 1].
        reuse_logits: let backward write the gradient into the logits' memory, which is the largest
            of a language model. Nobody may read the logits after that; where the tape would
            (a second backward too), it says so.

    Returns:
        A scalar: float64 for float64 logits, else float32; nan where every target is ignored.

    Raises:
        ShapeError: shapes do not fit, or a target is out of range (see `index.bounds`).
        DTypeError: logits are not floating or targets not integers.
        AutogradError: a leaf's own values were to be reused.

    Example:
        >>> import blutrain as bt
        >>> loss = bt.cross_entropy(bt.zeros((2, 4)), bt.tensor([0, 3]))
        >>> round(loss.item(), 4)  # log 4
        1.3863
    """
    op = "cross_entropy"
    check_floating(op, "logits", logits)
    check_tensor(op, "targets", targets)
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ShapeError(message(op, "logits must have at least 1 class", logits.shape))
    if targets.shape != logits.shape[:-1]:
        wrong = f"targets must have shape {logits.shape[:-1]}"
        do = "logits are (..., V), targets (...)"
        raise ShapeError(message(op, wrong, targets.shape, do))
    if not 0 <= label_smoothing <= 1:
        raise ShapeError(message(op, "label_smoothing must be within [0, 1]", label_smoothing))
    if reuse_logits and logits.requires_grad and logits.is_leaf:
        do = "pass what an operation made"
        raise AutogradError(message(op, "reuse_logits must not overwrite a leaf", do=do))
    targets = check_indices(op, "targets", targets, logits.shape[-1], ignore_index)
    loss: Tensor = apply(
        op,
        logits,
        targets,
        ignore_index=int(ignore_index),
        label_smoothing=float(label_smoothing),
        reuse_logits=reuse_logits,
    )
    return loss


register(
    Op(
        name="cross_entropy",
        forward=cross_entropy_forward,
        backward=cross_entropy_backward,
        reference=reference,
        samples=samples,
        errors=errors,
        call=cross_entropy,
    )
)

"""How exactly matrix products and attention multiply: a setting of the process.

| name   | multiplies on | operands | error against float64 |
|--------|---------------|----------|-----------------------|
| ieee   | CUDA cores    | as they are | float32's own |
| tf32x3 | tensor cores  | split in two TF32 parts, three products | no larger than ieee's |
| tf32   | tensor cores  | rounded to 10 bits of mantissa | about 3e-4, relative |
| bf16   | tensor cores  | rounded to 7 bits of mantissa | about 2e-3, relative |

All add up in float32. The names are Triton's. The setting concerns float32 tensors: float64 is
always multiplied as it is, and the halves on tensor cores, which lose nothing of them.

On the cpu target, and on GPUs without tensor cores for it, every precision multiplies as ieee does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from blutrain.device.target import TARGET
from blutrain.errors import KernelError, message

PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")

_precision: str | None = None


def matmul_precision() -> str:
    """The precision in force: what was set, else tf32x3 where tensor cores can do it, else ieee.

    Example:
        >>> import blutrain as bt
        >>> with bt.using_matmul_precision("tf32"):
        ...     bt.matmul_precision()
        'tf32'
    """
    global _precision
    if _precision is None:
        _precision = _default()
    return _precision


def set_matmul_precision(precision: str) -> None:
    """Choose the precision of every later product and attention, forward and backward.

    Args:
        precision: "ieee", "tf32x3", "tf32" or "bf16".

    Raises:
        KernelError: there is no such precision.
    """
    global _precision
    if precision not in PRECISIONS:
        wrong = f"precision must be one of {', '.join(PRECISIONS)}"
        raise KernelError(message("set_matmul_precision", wrong, repr(precision)))
    _precision = precision


@contextmanager
def using_matmul_precision(precision: str) -> Iterator[None]:
    """Multiply in a precision within a block, and as before after it.

    Raises:
        KernelError: there is no such precision.
    """
    before = matmul_precision()
    set_matmul_precision(precision)
    try:
        yield
    finally:
        set_matmul_precision(before)


def _default() -> str:
    if TARGET == "cpu":
        return "ieee"
    from blutrain.device.cuda import driver

    return "tf32x3" if driver.properties().compute_capability >= (8, 0) else "ieee"

"""The state of the counter-based random numbers.

Every random op reserves a run of Philox counters here and hands (seed, offset) to its kernel. The
numbers depend on these two alone, not on the target, the grid or the order of threads; a mask can
be made again in the backward pass from the same pair instead of being kept.
"""

from __future__ import annotations

from blutrain.device.stream import here
from blutrain.errors import DeviceError, ShapeError, message

_seed = 0
_offset = 0


def manual_seed(seed: int) -> None:
    """Start the stream of random numbers that belongs to `seed`.

    Args:
        seed: 0 <= seed < 2**63.

    Raises:
        ShapeError: the seed is out of range.
    """
    global _seed, _offset
    if not 0 <= seed < 2**63:
        raise ShapeError(message("manual_seed", "seed must be within [0, 2**63)", seed))
    _seed, _offset = int(seed), 0


def next_offset(n: int) -> tuple[int, int]:
    """Reserve counters for `n` numbers of 32 bits; four come from each counter.

    Returns:
        (seed, offset): the key and the first counter, for a kernel.

    Raises:
        DeviceError: a graph is being captured: it would keep the offset, and every replay would
            draw the same numbers.
    """
    global _offset
    if here.capture is not None:
        wrong = "random numbers cannot be captured: every replay would draw the same"
        do = "draw them before the capture, into a tensor that it reads; set dropout's p to 0"
        raise DeviceError(message("random", wrong, do=do))
    first = _offset
    _offset += (n + 3) // 4
    return _seed, first


def get_state() -> tuple[int, int]:
    """The state, for a checkpoint: (seed, next counter)."""
    return _seed, _offset


def set_state(state: tuple[int, int]) -> None:
    """Continue from a state that `get_state` returned."""
    global _seed, _offset
    _seed, _offset = int(state[0]), int(state[1])

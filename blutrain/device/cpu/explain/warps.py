"""From what single threads did to what their warps did.

A warp executes an instruction for all of its lanes at once. Threads that were run one after the
other are put together again: of those who come to a place of the source in the same turns of its
loops, the first time of each lane goes with the first of the others, the second with the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from blutrain.device.cpu.explain.counting import LANES, Integers, Mask


class Instructions(NamedTuple):
    """Warp-wide instructions of one place in the source.

    Attributes:
        values: what each lane brought, such as an address, (n, 32); 0 for lanes that took no part.
        active: which lanes took part, (n, 32).
    """

    values: Integers
    active: Mask


def group(
    threads: Sequence[int] | Integers,
    values: Sequence[int] | Integers,
    moments: Sequence[int] | Integers | None = None,
) -> Instructions:
    """Put single threads' executions of one place together by warps.

    Args:
        threads: of each execution the thread's number in its block, (n,), each thread's own
            executions in the order in which it came to them.
        values: what each brought, (n,).
        moments: only executions with equal ones go together, (n,); the order of their numbers
            means nothing.

    Example:
        >>> seen = group([0, 0, 1, 40], [100, 200, 104, 300])  # thread 0 came twice
        >>> seen.values[:, :2].tolist(), seen.active.sum(1).tolist()
        ([[100, 104], [200, 0], [0, 0]], [2, 1, 1])
        >>> group([0, 0, 1], [100, 200, 204], [1, 2, 2]).values[:, :2].tolist()
        [[100, 0], [200, 204]]
    """
    thread = np.asarray(threads, np.int64)
    moment = np.zeros_like(thread) if moments is None else np.asarray(moments, np.int64)
    # Each thread's executions in a moment stand together, in their order.
    span = int(moment.max(initial=0)) + 1
    own = thread * span + moment
    order = np.argsort(own, kind="stable")
    ordered, thread, moment = own[order], thread[order], moment[order]
    nth = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    warp, lane = thread // LANES, thread % LANES
    keys = (warp * span + moment) * (len(ordered) + 1) + nth
    _, row = np.unique(keys, return_inverse=True)
    n = int(row.max()) + 1 if len(row) else 0
    filled = np.zeros((n, LANES), np.int64)
    active = np.zeros((n, LANES), np.bool_)
    filled[row, lane] = np.asarray(values, np.int64)[order]
    active[row, lane] = True
    return Instructions(filled, active)

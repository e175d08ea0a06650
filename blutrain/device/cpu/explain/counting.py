"""What one warp-wide access costs: 32-byte sectors of global memory, wavefronts of shared memory.

Both functions take many accesses at once: `addresses` (n_accesses, 32), the byte address of each
lane of a warp, and `active` (n_accesses, 32), the lanes that take part. They count what NVIDIA's
profiler counts under the names

| here | ncu |
|---|---|
| `sectors` | `l1tex__t_sectors_pipe_lsu_mem_global_op_{ld,st}` |
| `wavefronts` | `l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{ld,st}` |
| `wavefronts - least_wavefronts` | `l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{ld,st}` |

Sources: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (a warp's accesses
become as many 32-byte transactions as are needed to serve it) and "Shared Memory and Memory Banks"
(32 banks, successive 32-bit words in successive banks, lanes that read one word share it); Nsight
Compute's "Memory Tables" for requests, wavefronts and sectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LANES = 32
SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
# All banks together, once: what one wavefront can move at most.
WAVEFRONT_BYTES = BANKS * BANK_BYTES

Integers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def sectors(addresses: Integers, active: Mask, size: int) -> Integers:
    """Sectors of global memory that each access touches.

    Args:
        addresses: bytes, (n_accesses, 32), each a multiple of `size`.
        active: which lanes take part, (n_accesses, 32).
        size: bytes of each lane, at most 16.

    Returns:
        Distinct sectors of each access, (n_accesses,).

    Example:
        >>> lanes, everyone = np.arange(32)[None, :], np.ones((1, 32), bool)
        >>> int(sectors(4 * lanes, everyone, 4)[0])  # floats beside each other: 128 bytes
        4
        >>> int(sectors(4 * 32 * lanes, everyone, 4)[0])  # a column of a row-major matrix
        32
    """
    rows = np.broadcast_to(np.arange(len(addresses))[:, None], addresses.shape)
    touched = _distinct(rows[active], addresses[active] // SECTOR_BYTES)
    # A lane that is not aligned to its size can reach into one more sector.
    last = (addresses + size - 1) // SECTOR_BYTES
    if not np.array_equal(last[active], (addresses // SECTOR_BYTES)[active]):
        both = np.concatenate([rows[active], rows[active]])
        parts = np.concatenate([addresses[active] // SECTOR_BYTES, last[active]])
        touched = _distinct(both, parts)
    return np.bincount(touched[0], minlength=len(addresses))


def least_sectors(active: Mask, size: int) -> Integers:
    """Sectors that would do, were the active lanes' bytes beside each other and none twice.

    Example:
        >>> least_sectors(np.ones((1, 32), bool), 16).tolist()
        [16]
    """
    asked: Integers = active.sum(1) * size
    return -(-asked // SECTOR_BYTES)


def wavefronts(addresses: Integers, active: Mask, size: int) -> Integers:
    """Turns that shared memory takes to serve each access.

    Within a turn each bank serves one 4-byte word, to any number of lanes. Accesses of 8 bytes are
    served by half-warps and those of 16 by quarter-warps, one after the other.

    Args:
        addresses: bytes from the start of shared memory, (n_accesses, 32), each a multiple of
            `size`.
        active: which lanes take part, (n_accesses, 32).
        size: bytes of each lane: 1, 2, 4, 8 or 16.

    Returns:
        Wavefronts of each access, (n_accesses,).

    Example:
        >>> lanes, everyone = np.arange(32)[None, :], np.ones((1, 32), bool)
        >>> [int(wavefronts(4 * stride * lanes, everyone, 4)[0]) for stride in (0, 1, 2, 32, 33)]
        [1, 1, 2, 32, 1]
        >>> int(wavefronts(16 * lanes, everyone, 16)[0])  # four quarter-warps
        4
    """
    n_words = max(size // BANK_BYTES, 1)
    n_groups = max(LANES * size // WAVEFRONT_BYTES, 1)
    words = addresses[:, :, None] // BANK_BYTES + np.arange(n_words)
    lane = np.arange(LANES) // (LANES // n_groups)
    turns = (np.arange(len(addresses))[:, None] * n_groups + lane)[:, :, None]
    taking = np.broadcast_to(active[:, :, None], words.shape)
    turn, word = _distinct(np.broadcast_to(turns, words.shape)[taking], words[taking])
    n_turns = len(addresses) * n_groups
    by_bank = np.bincount(turn * BANKS + word % BANKS, minlength=n_turns * BANKS)
    most: Integers = by_bank.reshape(len(addresses), n_groups, BANKS).max(2)
    found: Integers = most.sum(1)
    return found


def least_wavefronts(active: Mask, size: int) -> Integers:
    """Wavefronts of an access without conflicts: one for each group of lanes served together.

    Example:
        >>> least_wavefronts(np.ones((1, 32), bool), 8).tolist()
        [2]
    """
    n_groups = max(LANES * size // WAVEFRONT_BYTES, 1)
    taking: Integers = active.reshape(len(active), n_groups, -1).any(2).sum(1)
    return taking


def turns(addresses: Integers, active: Mask) -> Integers:
    """The most lanes of each access that meet at one address: an atomic takes so many turns.

    Example:
        >>> everyone = np.ones((1, 32), bool)
        >>> turns(4 * (np.arange(32)[None, :] % 8), everyone).tolist()
        [4]
    """
    rows = np.broadcast_to(np.arange(len(addresses))[:, None], addresses.shape)[active]
    (row, _), counts = np.unique(np.stack([rows, addresses[active]]), axis=1, return_counts=True)
    most = np.zeros(len(addresses), np.int64)
    np.maximum.at(most, row, counts)
    return most


def _distinct(rows: Integers, values: Integers) -> tuple[Integers, Integers]:
    """The pairs (row, value) that occur, each once."""
    if not rows.size:
        return rows, values
    low = values.min()
    span = int(values.max() - low) + 1
    pairs = np.unique(rows * span + (values - low))
    return pairs // span, pairs % span + low

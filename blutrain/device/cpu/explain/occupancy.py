"""How many blocks of a kernel one multiprocessor holds at a time, and which resource says so.

    blocks = min(warps, blocks, registers, shared memory): what the multiprocessor has
             of each, over what a block takes in the hardware's units of allocation

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (the limits);
`cuda_occupancy.h` of the CUDA toolkit (the units of allocation), with which a test compares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from blutrain.errors import KernelError, message

WARP = 32
# Registers go to warps in units of 256, from four partitions with a quarter of the registers each.
REGISTER_UNIT = 256
PARTITIONS = 4
REGISTERS = 65536
MAX_THREADS = 1024
SHARED_UNIT = 128
# The driver keeps 1 KiB of shared memory of every block for itself.
SHARED_RESERVED = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor of an architecture holds.

    Attributes:
        threads: at most so many at a time.
        blocks: at most so many at a time.
        shared: bytes of shared memory for all of its blocks.
    """

    threads: int
    blocks: int
    shared: int

    @property
    def shared_per_block(self) -> int:
        """Bytes of shared memory that one block can ask for."""
        return self.shared - SHARED_RESERVED


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(2048, 32, 164 << 10),
    "sm_86": Multiprocessor(1536, 16, 100 << 10),
    "sm_87": Multiprocessor(1536, 16, 164 << 10),
    "sm_89": Multiprocessor(1536, 24, 100 << 10),
    "sm_90": Multiprocessor(2048, 32, 228 << 10),
    "sm_100": Multiprocessor(2048, 32, 228 << 10),
    "sm_103": Multiprocessor(2048, 32, 228 << 10),
    "sm_120": Multiprocessor(1536, 24, 100 << 10),
    "sm_121": Multiprocessor(1536, 24, 100 << 10),
}


@dataclass(frozen=True)
class Occupancy:
    """How full a kernel keeps a multiprocessor.

    Attributes:
        architecture: such as "sm_90".
        threads: of a block.
        blocks: that a multiprocessor holds at a time.
        limits: blocks that each resource alone would allow: "threads", "blocks", "registers",
            "shared memory".
        warps: that are resident at a time.
        max_warps: that the multiprocessor could hold.
    """

    architecture: str
    threads: int
    blocks: int
    limits: dict[str, int]
    warps: int
    max_warps: int

    @property
    def fraction(self) -> float:
        """Resident warps over those that the multiprocessor could hold."""
        return self.warps / self.max_warps

    @property
    def limited_by(self) -> str:
        """The resource that allows no further block; several that agree are joined by "and"."""
        return " and ".join(name for name, n in self.limits.items() if n == self.blocks)


def occupancy(threads: int, registers: int, shared: int, architecture: str = "sm_90") -> Occupancy:
    """Blocks that one multiprocessor holds at a time.

    Args:
        threads: of a block.
        registers: of a thread.
        shared: bytes of a block's shared memory, static and dynamic together.
        architecture: such as "sm_90"; "sm_90a" counts as that.

    Raises:
        KernelError: the architecture is not known, or the block has no thread or more than 1024.

    Example:
        >>> seen = occupancy(threads=256, registers=64, shared=48 << 10)
        >>> seen.blocks, seen.limited_by, seen.fraction
        (4, 'registers and shared memory', 0.5)
    """
    limit = multiprocessor(architecture)
    if not 1 <= threads <= MAX_THREADS:
        wrong = f"a block must have 1 to {MAX_THREADS} threads"
        raise KernelError(message("occupancy", wrong, threads, "use more blocks"))
    warps = -(-threads // WARP)
    limits = {
        "threads": limit.threads // WARP // warps,
        "blocks": limit.blocks,
        "registers": _by_registers(warps, registers),
        "shared memory": _by_shared(shared, limit),
    }
    blocks = min(limits.values())
    return Occupancy(architecture, threads, blocks, limits, blocks * warps, limit.threads // WARP)


def multiprocessor(architecture: str) -> Multiprocessor:
    """The limits of an architecture.

    Raises:
        KernelError: it is not known.
    """
    found = MULTIPROCESSORS.get(re.sub(r"[af]$", "", architecture))
    if found is None:
        known = "use one of " + ", ".join(MULTIPROCESSORS)
        raise KernelError(message("occupancy", "unknown architecture", architecture, known))
    return found


def _by_registers(warps: int, registers: int) -> int:
    of_a_warp = _round_up(max(registers, 1) * WARP, REGISTER_UNIT)
    # A launch is refused unless the block fits with its warps rounded up to all four partitions.
    if of_a_warp * _round_up(warps, PARTITIONS) > REGISTERS:
        return 0
    return REGISTERS // PARTITIONS // of_a_warp * PARTITIONS // warps


def _by_shared(shared: int, limit: Multiprocessor) -> int:
    if shared > limit.shared_per_block:
        return 0
    return limit.shared // _round_up(shared + SHARED_RESERVED, SHARED_UNIT)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit

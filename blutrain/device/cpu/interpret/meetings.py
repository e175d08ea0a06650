"""What threads get from each other where they meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blutrain.device.cpu.interpret.machine import WARP
from blutrain.device.cpu.interpret.numbers import CASTS

FULL = (1 << WARP) - 1
# From which lane a shuffle takes its value: (own lane, the operand) -> lane.
_SOURCES: dict[str, Callable[[int, int], int]] = {
    "shfl_sync": lambda lane, source: source % WARP,
    "shfl_xor_sync": lambda lane, mask: lane ^ mask,
    "shfl_up_sync": lambda lane, delta: lane - delta,
    "shfl_down_sync": lambda lane, delta: lane + delta,
}


def mask_of(what: str, operands: tuple[Any, ...]) -> int:
    """The lanes that a thread wants to meet."""
    if what == "syncwarp" and not operands:
        return FULL
    return int(operands[0]) & FULL


def source_lane(what: str, lane: int, operands: tuple[Any, ...]) -> int | None:
    """The lane that a shuffle reads; None where it reads no other."""
    if what not in _SOURCES:
        return None
    source = _SOURCES[what](lane, int(operands[2]))
    return source if 0 <= source < WARP else None


def block_answer(what: str, operands: list[tuple[Any, ...]]) -> Any:
    """What every thread gets at a barrier of the block."""
    if what == "syncthreads":
        return None
    votes = [bool(given[0]) for given in operands]
    return {
        "syncthreads_count": sum(votes),
        "syncthreads_and": int(all(votes)),
        "syncthreads_or": int(any(votes)),
    }[what]


def warp_answers(what: str, given: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
    """What each lane gets that meets others.

    Args:
        what: the function of `numba.cuda`.
        given: its operands by lane.
    """
    if what == "syncwarp":
        return dict.fromkeys(given)
    if what in _SOURCES:
        answers = {}
        for lane, operands in given.items():
            source = source_lane(what, lane, operands)
            answers[lane] = given.get(lane if source is None else source, operands)[1]
        return answers
    ballot = CASTS["uint32"]
    if what in ("match_any_sync", "match_all_sync"):
        same = {
            lane: ballot(sum(1 << k for k, o in given.items() if o[1] == operands[1]))
            for lane, operands in given.items()
        }
        if what == "match_any_sync":
            return same
        everyone = sum(1 << lane for lane in given)
        return {
            lane: (m, True) if m == everyone else (ballot(0), False) for lane, m in same.items()
        }
    votes = {lane: bool(operands[1]) for lane, operands in given.items()}
    answer: Any = {
        "any_sync": any(votes.values()),
        "all_sync": all(votes.values()),
        "eq_sync": len(set(votes.values())) == 1,
        "uni_sync": len(set(votes.values())) == 1,
        "ballot_sync": ballot(sum(1 << lane for lane, vote in votes.items() if vote)),
    }[what]
    return dict.fromkeys(given, answer)

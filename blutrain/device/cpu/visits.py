"""The loops in which a region visits the threads of a block, in the order that is asked for."""

from __future__ import annotations

import math
import random

from blutrain.device.cpu.options import Options
from blutrain.device.cpu.program import WARP, Program
from blutrain.device.cpu.ranges import Bound


def loops(
    program: Program, options: Options, bound: Bound | None, used: set[str]
) -> tuple[list[str], int]:
    """The lines that open the loops and give the thread's names values, and how deep they go.

    Args:
        program: the compilation.
        options: the order of the threads.
        bound: where the innermost loop may end early.
        used: names that the body reads.
    """
    lines: list[str] = []
    depth = 0

    def write(at: int, text: str) -> None:
        lines.append("    " * at + text)

    bx, by, bz = program.block
    limit = {bound.place: bound.limit} if bound else {}

    def loop(place: str, n: int) -> None:
        nonlocal depth
        if options.shuffle:
            factor, first = _permutation(options.shuffle, n)
            write(depth, f"for _turn{place} in range({n}):")
            write(depth + 1, f"{place} = (_turn{place} * {factor} + {first}) % {n}")
        elif options.reverse:
            write(depth, f"for {place} in range({n - 1}, -1, -1):")
        else:
            end = f"_minimum({n}, {limit[place]})" if place in limit else str(n)
            write(depth, f"for {place} in range({end}):")
        depth += 1

    if not program.is_flat:
        for place, n in (("_tz", bz), ("_ty", by), ("_tx", bx)):
            if n > 1 or place == "_tx":
                loop(place, n)
        terms = "_tx" if by == 1 else f"_ty * {bx} + _tx"
        terms = terms if bz == 1 else f"(_tz * {by} + {'0' if by == 1 else '_ty'}) * {bx} + _tx"
        write(depth, f"_t = {terms}")
        write(depth, "_lane = _t & 31")
        write(depth, "_warp = _t >> 5")
        return lines, depth
    by_warp = program.has_warp_loops and used & {"_lane", "_warp"}
    if (by_warp and "_t" not in limit) or "_lane" in limit:
        loop("_warp", program.n_threads // WARP)
        loop("_lane", WARP)
        write(depth, f"_t = _warp * {WARP} + _lane")
        return lines, depth
    loop("_t", bx)
    if used & {"_lane", "_warp"}:
        write(depth, "_lane = _t & 31")
        write(depth, "_warp = _t >> 5")
    return lines, depth


def _permutation(seed: int, n: int) -> tuple[int, int]:
    """(a, b) such that i -> (a i + b) mod n goes over n threads in some other order."""
    draw = random.Random(seed * 1031 + n)
    return draw.choice([a for a in range(1, n + 1) if math.gcd(a, n) == 1]), draw.randrange(n)

"""Barriers in shared memory, and the register budgets of warpgroups.

An mbarrier is eight bytes of shared memory that count arrivals, and bytes that a copy engine has
still to deliver. When both counts are complete its phase flips; a thread waits for the phase of a
parity, 0 first, then 1, 0, ... Addresses are 32-bit addresses in the shared window
(`shared_address`). sm_90.

Source: PTX ISA 9.0, sections 9.7.13.15 (mbarrier), 9.7.13.4 (fence) and 9.7.19.5 (setmaxnreg).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.cuda import types

from blutrain.cuda_kernels.ptx.instruction import instruction

_i32 = types.int32

mbarrier_init = instruction(
    "mbarrier_init",
    "mbarrier.init.shared::cta.b64 [$0], $1;",
    "r,r,~{memory}",
    types.void,
    (_i32, _i32),
    doc="(barrier, count): make the barrier, whose phases each take `count` arrivals.",
)
mbarrier_init_fence = instruction(
    "mbarrier_init_fence",
    "fence.mbarrier_init.release.cluster;",
    "~{memory}",
    types.void,
    (),
    doc="Let the copy engine see barriers that were just made.",
)
mbarrier_arrive = instruction(
    "mbarrier_arrive",
    "mbarrier.arrive.shared::cta.b64 _, [$0];",
    "r,~{memory}",
    types.void,
    (_i32,),
    doc="(barrier): arrive; what this thread did before is seen by those who wait.",
)
mbarrier_expect = instruction(
    "mbarrier_expect",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;",
    "r,r,~{memory}",
    types.void,
    (_i32, _i32),
    doc="(barrier, nbytes): arrive, and let the phase also wait for that many bytes of copies.",
)
# The label is local to the braces. A wait suspends the thread for a while by itself, so the loop
# turns seldom.
mbarrier_wait = instruction(
    "mbarrier_wait",
    "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
    "@!done bra again; }",
    "r,r,~{memory}",
    types.void,
    (_i32, _i32),
    doc="(barrier, parity): wait until the phase of this parity is complete.",
)
fence_async_shared = instruction(
    "fence_async_shared",
    "fence.proxy.async.shared::cta;",
    "~{memory}",
    types.void,
    (),
    doc="Order this thread's shared-memory accesses before wgmma's and the copy engine's.",
)

warpgroup_barrier = instruction(
    "warpgroup_barrier",
    "bar.sync $0, 128;",
    "r,~{memory}",
    types.void,
    (_i32,),
    doc="(number): wait for the 128 threads that use this barrier, 1 to 15.",
)


@cache
def set_registers(n: int, grow: bool) -> Any:
    """A function that changes the register budget of each thread of a warpgroup. sm_90a.

    Args:
        n: registers a thread, a multiple of 8 between 24 and 256.
        grow: whether the warpgroup has fewer now; it then waits until others have given theirs up.
    """
    change = "inc" if grow else "dec"
    return instruction(
        f"set_registers_{n}",
        f"setmaxnreg.{change}.sync.aligned.u32 {n};",
        "~{memory}",
        types.void,
        (),
        doc=f"Have {n} registers a thread from here on.",
    )

"""Why some instructions cannot run on the CPU, in a few words each."""

from __future__ import annotations

from blutrain.device.cpu.ptx.parse import NotOnTheCpu

# By what an opcode begins with.
_WHY = {
    "wgmma": "it is a product of a warpgroup, which runs beside the threads",
    "cp.async.bulk": "it hands a box to the copy engine (TMA), which runs beside the threads",
    "cp.reduce.async.bulk": "it hands a box to the copy engine, which runs beside the threads",
    "mbarrier": "threads wait there for others that are elsewhere in the kernel",
    "bar": "only some threads of the block meet there",
    "barrier": "only some threads of the block, or those of a cluster, meet there",
    "setmaxnreg": "it moves registers from one warpgroup to another",
    "tensormap": "it changes what the copy engine is told",
    "bra": "it is a jump",
    "stmatrix": "only mma.sync, ldmatrix and redux.sync of those for a whole warp can",
    "shfl": "write cuda.shfl_sync and its kin instead",
    "vote": "write cuda.ballot_sync and its kin instead",
    "mma": "it stands within a larger intrinsic, or is no m16n8 of TF32 or halves into float32",
    "ldmatrix": "it stands within a larger intrinsic, or is no m8n8 of 16 bits",
    "redux": "it stands within a larger intrinsic, or is none of integers",
}


def refusal(opcode: str) -> NotOnTheCpu:
    """The exception for an opcode that is not known."""
    for prefix in sorted(_WHY, key=len, reverse=True):
        if opcode == prefix or opcode.startswith(prefix + "."):
            return NotOnTheCpu(f"`{opcode}`: {_WHY[prefix]}")
    return NotOnTheCpu(f"`{opcode}`")

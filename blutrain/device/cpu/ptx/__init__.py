"""Inline PTX on the CPU: statements of one thread as LLVM code, those of a warp as exchanges.

A kernel's intrinsics (`blutrain.cuda_kernels.ptx`, or anybody's own) are inline assembly. Where
one is lowered for the CPU, its text is read (`parse.py`) and each statement becomes LLVM code
(`statements.py`, `operations.py`, `memory.py`). An instruction of a whole warp (`lanes.py`:
mma.sync, ldmatrix, redux.sync) is a meeting, like a shuffle: every lane's operands go to arrays,
from which each lane computes its results. What a processor has no counterpart for is refused by
name (`refused.py`).

Source: PTX ISA 9.0.
"""

"""Debug mode: kernels run thread by thread, and what CUDA leaves undefined is an error.

| file | finds |
|---|---|
| the interpreter | indices out of bounds or overflowed, misaligned accesses |
| | lanes that a shuffle lacks, barriers to which not all threads come |
| `uninitialised.py` | reads of shared and local memory that nobody wrote |
| `order.py`, `races.py` | races, in a block and between blocks |
| `barriers.py` | barriers in different places |
| `mode.py` | switches it on |
"""

from blutrain.device.cpu.debug.mode import check, debug

__all__ = ["check", "debug"]

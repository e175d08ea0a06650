"""Numba `@cuda.jit` kernels, unmodified, as compiled code on the CPU.

A kernel is rewritten as one function (after Stratton, Stone and Hwu, "MCUDA", 2008): a loop over
blocks around the kernel's text, which is cut at barriers into regions, each of which is a loop over
the threads of a block. That function is compiled by LLVM, and cached on disk. The
passes, in the order in which they run:

| file | does |
|---|---|
| `source.py` | parses a function, finds what its names mean |
| `normalise.py`, `returns.py` | one flat list of plain statements, structured control flow |
| `expressions.py`, `evaluation.py` | settles names, inlines device functions, in Python's order |
| `uniformity.py` | finds what is the same for all threads of a block |
| `tree.py`, `regions.py`, `strips.py` | cuts the kernel into regions, strided loops inside out |
| `storage.py` | decides where each variable lives |
| `ranges.py`, `visits.py`, `emit.py` | writes the program: loops over threads, exchanges, arrays |
| `distribution.py` | splits loops, so that what lies before an inner loop is vectorised |
| `shuffles.py`, `bounds.py` | shuffles by a constant; bounds checks, if asked for |
| `webs.py`, `kinds.py`, `signatures.py` | splits variables; infers types |
| `lower.py`, `values.py`, `elements.py`, `conversions.py` | LLVM code |
| `hints.py`, `native.py` | what LLVM is told; machine code |
| `cache.py`, `executable.py`, `cooperative.py` | keeps it; runs it, blocks that meet in turns |
| `vocabulary.py`, `vectors.py`, `printing.py` | what `cuda.*` and `print` mean on the CPU |
| `math.py`, `formulas.py`, `reals.py` | what `math.*` means |
| `arrays.py`, `atomics.py`, `votes.py`, `integers.py` | what Python text cannot say, as LLVM code |
| `ptx/` | what inline PTX means |

Example:
    >>> import numpy as np
    >>> from numba import cuda
    >>> from blutrain.device import cpu
    >>> from blutrain.device.cpu import examples
    >>> x, y = np.arange(1000, dtype=np.float32), np.empty(1000, np.float32)
    >>> cpu.run(examples.double, 4, 256, x, y)
    >>> bool((y == 2 * x).all())
    True
"""

from blutrain.device.cpu.compile import compile_kernel
from blutrain.device.cpu.executable import CompiledKernel
from blutrain.device.cpu.options import Options
from blutrain.device.cpu.run import run

__all__ = ["CompiledKernel", "Options", "compile_kernel", "run"]

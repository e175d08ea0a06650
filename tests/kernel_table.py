"""What every kernel needs of a GPU: the committed table `docs/kernels.tsv`, and how it is made.

    python tests/kernel_table.py        # writes it anew, after kernels have changed

The kernels are those that the ops' samples launch, forward and backward, on whatever target this
runs; no GPU is needed to compile and assemble them. A change of registers or shared memory shows in
the diff of the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import blutrain as bt
from blutrain.autograd import registry
from blutrain.autograd.registry import OPS, Op
from blutrain.cuda_kernels.attention import sm90 as attention_sm90
from blutrain.cuda_kernels.matmul import sm90 as matmul_sm90
from blutrain.device import Launched, recording
from blutrain.device.cuda.compile import ComputeCapability
from blutrain.device.cuda.ptxas import Assembled, check

TABLE = Path(__file__).parent.parent / "docs" / "kernels.tsv"
HEADER = "op\tkernel\targuments\tarchitecture\tthreads\tregisters\tshared bytes\tstack bytes"
SM_90A: ComputeCapability = (9, 0, "a")
ARCHITECTURES = {"float32": [(8, 0), (9, 0)], "bfloat16": [(9, 0)]}


class Entry(NamedTuple):
    """One kernel, compiled for one architecture."""

    op: str
    launched: Launched
    architecture: ComputeCapability
    seen: Assembled

    @property
    def line(self) -> str:
        """The entry as it stands in the table."""
        kinds = ", ".join(str(k) for k in self.launched.types)
        n_threads = int(np.prod(self.launched.block))
        name = getattr(self.launched.kernel, "__name__", "kernel")
        sm = "sm_" + "".join(map(str, self.architecture))
        cells = (self.op, name, kinds, sm, n_threads)
        return "\t".join(map(str, (*cells, self.seen.registers, self.seen.shared, self.seen.stack)))


def launched_by(op: Op, dtype: bt.DType) -> list[Launched]:
    """What the samples of an op launch in one dtype, with the portable kernels."""
    import op_checks

    with registry.portable_only(), recording() as launched:
        for sample in op.samples(np.random.default_rng(0)):
            if dtype not in (sample.dtypes or op.dtypes):
                continue
            if op.differentiable:
                op_checks.gradients(op, sample, dtype, "dense")
            else:
                op_checks.call(op, sample, dtype)
    return list(launched)


def entries(name: str, dtype: str) -> list[Entry]:
    """Compile what an op launches in one dtype for that dtype's architectures."""
    found = launched_by(OPS[name], bt.dtypes.as_dtype(dtype))
    return [
        Entry(name, launched, architecture, check(launched.kernel, launched.types, architecture))
        for launched in found
        for architecture in ARCHITECTURES[dtype]
    ]


def lines(name: str, dtype: str) -> list[str]:
    """The table's lines of an op in one dtype."""
    return sorted({entry.line for entry in entries(name, dtype)})


def tuned_kernels() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """(op, kernel, argument types) of what is made for sm_90a alone."""
    for op, module in (("attention", attention_sm90), ("matmul", matmul_sm90)):
        for kernel, argument_types in module.kernels():
            yield op, kernel, argument_types


def tuned(op: str, kernel: Any, argument_types: tuple[Any, ...]) -> Entry:
    """One of the tuned kernels, which no sample launches here."""
    launched = Launched(kernel, (kernel.threads, 1, 1), argument_types)
    seen = check(kernel, argument_types, SM_90A)
    return Entry(f"{op}: {kernel.case}", launched, SM_90A, seen)


def main() -> None:
    """Write the table."""
    rows = [tuned(*kernel).line for kernel in tuned_kernels()]
    with ProcessPoolExecutor() as pool:
        for dtype in ARCHITECTURES:
            for found in pool.map(lines, OPS, repeat(dtype)):
                rows += found
    TABLE.write_text("\n".join([HEADER, *sorted(set(rows))]) + "\n")
    print(f"{len(rows)} rows in {TABLE.name}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()

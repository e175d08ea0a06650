"""Every kernel that an op launches also compiles for GPUs: no spills, no unmeant float64, and the
registers and shared memory that the committed table says."""

import kernel_table
import numpy as np
import pytest
from numba import types

from blutrain.autograd.registry import OPS
from blutrain.device.geometry import MAX_SHARED

REGISTERS = 65536  # of a multiprocessor, so what one block can have
# libdevice reduces large arguments of sin and cos with float64 and a small table in local memory.
TRIGONOMETRIC = {"sin", "cos", "randn"}
TUNED = list(kernel_table.tuned_kernels())
# Bytes of stack. This kernel has 160 registers of tiles; what it spills are two numbers that the
# tiles' loop does not touch.
SPILLED = {("attention_dkv_sm90_kernel", "float32, f16, 3 products"): 8}


def is_float64(kind: types.Type) -> bool:
    return types.float64 in (kind, getattr(kind, "dtype", None))


@pytest.fixture(scope="module")
def table():
    """The committed lines."""
    return set(kernel_table.TABLE.read_text().splitlines())


@pytest.mark.parametrize(
    ("op", "kernel", "argument_types"),
    [pytest.param(*t, id=f"{t[0]}-{t[1].__name__}-{t[1].case}") for t in TUNED],
)
def test_tuned_kernels_assemble_well(op, kernel, argument_types, table):
    entry = kernel_table.tuned(op, kernel, argument_types)
    seen = entry.seen
    assert seen.stack == SPILLED.get((kernel.__name__, kernel.case), 0)
    assert not seen.uses_float64
    assert kernel.shared <= MAX_SHARED
    assert entry.line in table, f"not in the table; see tests/kernel_table.py:\n{entry.line}"


@pytest.mark.parametrize("dtype", kernel_table.ARCHITECTURES)
@pytest.mark.parametrize("op", OPS)
def test_kernels_assemble_well(op, dtype, table):
    for entry in kernel_table.entries(op, dtype):
        launched, seen = entry.launched, entry.seen
        assert seen.spill_stores == seen.spill_loads == 0, entry.line
        assert seen.registers * int(np.prod(launched.block)) <= REGISTERS, entry.line
        assert entry.line in table, f"not in the table; see tests/kernel_table.py:\n{entry.line}"
        if op in TRIGONOMETRIC or any(map(is_float64, launched.types)):
            continue
        assert not seen.uses_float64, entry.line
        assert seen.stack == 0, entry.line

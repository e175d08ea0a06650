"""Every kernel that an op launches also compiles for GPUs, without spills and unmeant float64.

The kernels are those that the op's samples launch, forward and backward, on whatever target the
tests run on; no GPU is needed to compile and assemble them.
"""

import numpy as np
import op_checks
import pytest
from numba import types

import blutrain as bt
from blutrain.autograd import registry
from blutrain.autograd.registry import OPS, Op
from blutrain.device import Launched, recording
from blutrain.device.cuda.ptxas import check

ARCHITECTURES = {bt.float32: [(8, 0), (9, 0)], bt.bfloat16: [(9, 0)]}
REGISTERS = 65536  # of a multiprocessor, so what one block can have
# libdevice reduces large arguments of sin and cos with float64 and a small table in local memory.
TRIGONOMETRIC = {"sin", "cos", "randn"}


def launched_by(op: Op, dtype: bt.DType) -> list[Launched]:
    """What the samples of an op launch in one dtype, with the portable kernels."""
    with registry.portable_only(), recording() as launched:
        for sample in op.samples(np.random.default_rng(0)):
            if dtype not in (sample.dtypes or op.dtypes):
                continue
            if op.differentiable:
                op_checks.gradients(op, sample, dtype, "dense")
            else:
                op_checks.call(op, sample, dtype)
    return list(launched)


def is_float64(kind: types.Type) -> bool:
    return types.float64 in (kind, getattr(kind, "dtype", None))


@pytest.mark.parametrize("dtype", list(ARCHITECTURES), ids=lambda d: d.name)
@pytest.mark.parametrize("op", list(OPS.values()), ids=lambda op: op.name)
def test_kernels_assemble_well(op, dtype):
    for launched in launched_by(op, dtype):
        n_threads = int(np.prod(launched.block))
        for architecture in ARCHITECTURES[dtype]:
            seen = check(launched.kernel, launched.types, architecture)
            what = f"{launched.kernel.__name__}{launched.types} for {architecture}: {seen}"
            assert seen.spill_stores == seen.spill_loads == 0, what
            assert seen.registers * n_threads <= REGISTERS, what
            if op.name in TRIGONOMETRIC or any(map(is_float64, launched.types)):
                continue
            assert not seen.uses_float64, what
            assert seen.stack == 0, what

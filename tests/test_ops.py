"""Every registered op against its float64 reference: values, gradients, layouts, errors."""

from __future__ import annotations

import numpy as np
import op_checks
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blutrain as bt
from blutrain.autograd import registry
from blutrain.autograd.registry import OPS, Op

ALL = pytest.mark.parametrize("op", list(OPS.values()), ids=lambda op: op.name)
DIFFERENTIABLE = pytest.mark.parametrize(
    "op", [op for op in OPS.values() if op.differentiable], ids=lambda op: op.name
)
seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(op_checks.LAYOUTS)


@pytest.fixture(autouse=True, params=["portable", "tuned"])
def variants(request):
    """Run each test on the portable kernels alone, and with the tuned variants."""
    if request.param == "portable":
        with registry.portable_only():
            yield
    elif has_tuned(request.node.callspec.params["op"]):
        yield
    else:
        pytest.skip("has no tuned variant on this target")


def has_tuned(op: Op) -> bool:
    """Whether the op, or a launcher that it uses, has a tuned variant on this target."""
    return registry.has_tuned(op.name)


@ALL
def test_forward_of_every_sample(op):
    for sample in op.samples(np.random.default_rng(0)):
        for dtype in sample.dtypes or op.dtypes:
            op_checks.check_forward(op, sample, dtype, "dense")


@ALL
@settings(max_examples=20)
@given(seeds, seeds, st.sampled_from(bt.dtypes.FLOATING), layouts)
def test_forward_of_drawn_samples(op, seed, pick, dtype, layout):
    samples = list(op.samples(np.random.default_rng(seed)))
    sample = samples[pick % len(samples)]
    if dtype in (sample.dtypes or op.dtypes):
        op_checks.check_forward(op, sample, dtype, layout)


@DIFFERENTIABLE
def test_gradient_of_every_sample(op):
    rng = np.random.default_rng(1)
    for sample in op.samples(np.random.default_rng(0)):
        op_checks.check_backward(op, sample, "dense", rng)


@DIFFERENTIABLE
@settings(max_examples=10)
@given(seeds, seeds, layouts)
def test_gradient_of_drawn_samples(op, seed, pick, layout):
    samples = list(op.samples(np.random.default_rng(seed)))
    op_checks.check_backward(op, samples[pick % len(samples)], layout, np.random.default_rng(seed))


@DIFFERENTIABLE
@settings(max_examples=10)
@given(seeds, seeds, st.sampled_from(["float32", "float16", "bfloat16"]), layouts)
def test_gradient_in_lesser_dtypes(op, seed, pick, name, layout):
    samples = list(op.samples(np.random.default_rng(seed)))
    sample = samples[pick % len(samples)]
    dtype = bt.dtypes.as_dtype(name)
    if dtype in (sample.dtypes or op.dtypes):
        op_checks.check_precision(op, sample, dtype, layout)


@DIFFERENTIABLE
def test_gradients_accumulate(op):
    for sample in op.samples(np.random.default_rng(2)):
        op_checks.check_reuse(op, sample)


@ALL
def test_errors(op):
    cases = list(op.errors())
    assert cases, f"{op.name} has no error cases"
    for case in cases:
        inputs = [op_checks.map_arrays(a, bt.from_numpy) for a in case.inputs]
        with pytest.raises(case.error) as caught:
            op.call(*inputs, **case.params)
        assert str(caught.value).startswith(case.says), str(caught.value)

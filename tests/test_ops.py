"""Every registered op against its float64 reference: values, gradients, layouts, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import op_checks
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import blutrain as bt
from blutrain.autograd import registry
from blutrain.autograd.registry import OPS, Op

# Every op on its portable kernels alone, and again where this target has tuned variants.
CASES = [(op, "portable") for op in OPS.values()]
CASES += [(op, "tuned") for op in OPS.values() if registry.has_tuned(op)]


def over(cases: list[tuple[Op, str]]) -> Callable[[Any], Any]:
    """Run a test for each (op, which variants)."""
    names = [f"{op.name}-{mode}" for op, mode in cases]
    return pytest.mark.parametrize("op, variants", cases, ids=names, indirect=["variants"])


ALL = over(CASES)
DIFFERENTIABLE = over([case for case in CASES if case[0].differentiable])
seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(op_checks.LAYOUTS)


@pytest.fixture
def variants(request):
    """Switch tuned variants off where the case is about the portable kernels."""
    if request.param == "portable":
        with registry.portable_only():
            yield
    else:
        yield


@ALL
def test_forward_of_every_sample(op, variants):
    for sample in op.samples(np.random.default_rng(0)):
        for dtype in sample.dtypes or op.dtypes:
            op_checks.check_forward(op, sample, dtype, "dense")


@ALL
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seeds, seeds, st.sampled_from(bt.dtypes.FLOATING), layouts)
def test_forward_of_drawn_samples(op, variants, seed, pick, dtype, layout):
    samples = list(op.samples(np.random.default_rng(seed)))
    sample = samples[pick % len(samples)]
    if dtype in (sample.dtypes or op.dtypes):
        op_checks.check_forward(op, sample, dtype, layout)


@DIFFERENTIABLE
def test_gradient_of_every_sample(op, variants):
    rng = np.random.default_rng(1)
    for sample in op.samples(np.random.default_rng(0)):
        op_checks.check_backward(op, sample, "dense", rng)


@DIFFERENTIABLE
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seeds, seeds, layouts)
def test_gradient_of_drawn_samples(op, variants, seed, pick, layout):
    samples = list(op.samples(np.random.default_rng(seed)))
    op_checks.check_backward(op, samples[pick % len(samples)], layout, np.random.default_rng(seed))


@DIFFERENTIABLE
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seeds, seeds, st.sampled_from(["float32", "float16", "bfloat16"]), layouts)
def test_gradient_in_lesser_dtypes(op, variants, seed, pick, name, layout):
    samples = list(op.samples(np.random.default_rng(seed)))
    sample = samples[pick % len(samples)]
    dtype = bt.dtypes.as_dtype(name)
    if dtype in (sample.dtypes or op.dtypes):
        op_checks.check_precision(op, sample, dtype, layout)


@DIFFERENTIABLE
def test_gradients_accumulate(op, variants):
    for sample in op.samples(np.random.default_rng(2)):
        op_checks.check_reuse(op, sample)


@ALL
def test_errors(op, variants):
    cases = list(op.errors())
    assert cases, f"{op.name} has no error cases"
    for case in cases:
        inputs = [op_checks.map_arrays(a, bt.from_numpy) for a in case.inputs]
        with pytest.raises(case.error) as caught:
            op.call(*inputs, **case.params)
        assert str(caught.value).startswith(case.says), str(caught.value)

"""Attention on sm_90's tensor cores: order of work, shared memory, and on such a GPU results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blutrain as bt
from blutrain.cuda_kernels.attention import dkv_sm90, dq_sm90, forward_sm90, sm90
from blutrain.cuda_kernels.attention.attention import reference
from blutrain.cuda_kernels.attention.operands_sm90 import (
    DEEP,
    SLOTS,
    WIDE,
    Shared,
)
from blutrain.cuda_kernels.common import sm90_multiprocessors
from blutrain.device.launch import MAX_SHARED

on_sm90 = pytest.mark.skipif(not sm90_multiprocessors(), reason="needs a GPU of sm_90")
# Relative, in the Frobenius norm: what each way of multiplying loses, with some room.
LIMITS = {"tf32x3": 8e-7, "tf32": 7e-4, "bf16": 6e-3, "float16": 6e-4, "bfloat16": 5e-3}


@pytest.mark.parametrize("name", sm90.FORMS)
@pytest.mark.parametrize("kernel", [forward_sm90, dq_sm90, dkv_sm90])
def test_shared_memory_is_laid_out_without_overlap_and_fits(kernel, name):
    shared: Shared = kernel.shared_of(sm90.FORMS[name])
    tile = shared.form.tile_bytes
    regions = [
        (0, shared.buffers * shared.n_resident * shared.groups * tile),
        (shared.stream, shared.stages * 2 * tile),
        (shared.raw_tiles, shared.raw * 64 * 64 * 4),
        (shared.vector, shared.stages * 2 * 64 * 4 if shared.vectors else 0),
        (shared.resident_exponents, shared.buffers * shared.n_resident * shared.groups * 4),
        (shared.stream_exponents, shared.stages * 2 * 4),
        (shared.vector_magnitudes, shared.stages * 2 * 4),
        (shared.magnitudes, 2 * 2 * 4 * 4),
        (shared.resident_full, shared.buffers * shared.groups * 8),
        (shared.resident_empty, shared.buffers * shared.groups * 8),
        (shared.stream_full, shared.stages * 2 * 8),
        (shared.stream_empty, shared.stages * 2 * 8),
        (shared.raw_full, shared.raw * 8),
    ]
    for (start, size), (following, _) in zip(regions, regions[1:], strict=False):
        assert start + size <= following
    assert shared.raw in (0, 2 * SLOTS)
    assert all(start % 1024 == 0 for start, _ in regions[:3])  # swizzled boxes repeat so
    assert all(start % 8 == 0 for start, _ in regions[8:])
    assert sum(regions[-1]) + 1024 <= shared.n_bytes <= MAX_SHARED


def test_the_warpgroups_share_the_registers_of_a_multiprocessor():
    for crew in (WIDE, DEEP):
        at_start = 65536 // crew.threads // 8 * 8
        dealt = (crew.first + crew.last) * crew.load_registers
        dealt += 128 * crew.groups * crew.multiply_registers
        # A block starts with equal shares, and deals out no more than it has.
        assert dealt <= crew.threads * at_start
        assert crew.first % 128 == 0  # warpgroups that multiply begin at multiples of 128


def attention_and_gradients(shape, n_keys, causal, dtype, seed, scale=1.0, packed=True):
    """(y, dq, dk, dv) and the same of a float64 reference by its formulas."""
    b, h, t, d = shape
    rng = np.random.default_rng(seed)

    def tensor(n):
        x = bt.from_numpy(rng.standard_normal((b, n, h, d)).astype(np.float32)).to(dtype)
        return x.transpose(1, 2) if packed else bt.from_numpy(x.numpy().swapaxes(1, 2)).to(dtype)

    q, k, v = tensor(t), tensor(n_keys), tensor(n_keys)
    dy = tensor(t) * scale
    for x in (q, k, v):
        x.requires_grad = True
    y = bt.attention(q, k, v, causal=causal)
    y.backward(dy)
    found = [y, q.grad, k.grad, v.grad]
    q64, k64, v64, dy64 = (x.detach().numpy().astype(np.float64) for x in (q, k, v, dy))
    scores = q64 @ k64.swapaxes(-1, -2) * d**-0.5
    if causal:
        seen = np.tril(np.ones(scores.shape[-2:], bool), n_keys - t)
        scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = dy64 @ v64.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * d**-0.5
    expected = [
        reference(q64, k64, v64, causal),
        ds @ k64,
        ds.swapaxes(-1, -2) @ q64,
        p.swapaxes(-1, -2) @ dy64,
    ]
    return [x.detach().numpy().astype(np.float64) for x in found], expected


def assert_close(found, expected, limit):
    for ours, exact in zip(found, expected, strict=True):
        error = np.linalg.norm(ours - exact) / max(np.linalg.norm(exact), 1e-30)
        assert error <= limit


@on_sm90
@settings(max_examples=60, deadline=None)
@given(
    heads=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    t=st.integers(16, 400),
    more_keys=st.sampled_from([0, 0, 1, 63, 130]),
    d=st.sampled_from([8, 32, 48, 64]),
    causal=st.booleans(),
    name=st.sampled_from(list(LIMITS)),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape_gives_the_result(heads, t, more_keys, d, causal, name, packed, seed):
    dtype = {"float16": bt.float16, "bfloat16": bt.bfloat16}.get(name, bt.float32)
    precision = name if dtype is bt.float32 else "tf32"
    with bt.using_matmul_precision(precision):
        results = attention_and_gradients(
            (*heads, t, d), t + more_keys, causal, dtype, seed, packed=packed
        )
    assert_close(*results, LIMITS[name])


@on_sm90
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("t", [1, 2, 5])
def test_few_positions(t, name):
    dtype = {"float16": bt.float16, "bfloat16": bt.bfloat16}.get(name, bt.float32)
    with bt.using_matmul_precision(name if dtype is bt.float32 else "tf32"):
        found, expected = attention_and_gradients((2, 2, t, 64), t, True, dtype, 0)
    # dp and delta nearly cancel here: dq and dk are as exact as those are, not as themselves.
    assert_close(found[::3], expected[::3], LIMITS[name])
    for ours, exact in zip(found[1:3], expected[1:3], strict=True):
        assert np.abs(ours - exact).max() <= 100 * LIMITS[name]


@on_sm90
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize("scale", [1e-9, 1e12])
def test_gradients_keep_their_precision_at_any_magnitude(precision, scale):
    with bt.using_matmul_precision(precision):
        results = attention_and_gradients((1, 2, 300, 64), 300, True, bt.float32, 0, scale)
    assert_close(*results, LIMITS[precision])


@on_sm90
@pytest.mark.parametrize("precision", ["tf32x3", "tf32", "bf16"])
def test_tiles_of_zeros_and_growing_scales(precision):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 1, 1, 256, 64)).astype(np.float32)
    x[:, :, :, :64] = 0
    x[:, :, :, 128:] *= 30.0  # larger in later tiles: older sums must shrink to their scale
    q, k, v = (bt.from_numpy(a) for a in x)
    with bt.using_matmul_precision(precision):
        y = bt.attention(q, k, v, causal=False).numpy()
    exact = reference(*x.astype(np.float64), causal=False)
    # Scores reach the thousands here, so a rounding error of an operand is one of many units.
    limit = {"tf32x3": 1e-4, "tf32": 0.3, "bf16": 1.0}[precision]
    assert np.linalg.norm(y - exact) / np.linalg.norm(exact) <= limit
    assert not np.isnan(y).any()


@on_sm90
def test_an_infinite_input_is_not_passed_over_in_silence():
    q = np.zeros((1, 1, 64, 64), np.float32)
    q[0, 0, 3, 5] = np.inf
    k = np.ones_like(q)
    with bt.using_matmul_precision("tf32x3"):
        y = bt.attention(*(bt.from_numpy(a) for a in (q, k, k)), causal=False).numpy()
    assert np.isnan(y[0, 0, 3]).all()


@on_sm90
def test_the_same_inputs_give_the_same_bits():
    with bt.using_matmul_precision("tf32x3"):
        first, second = (
            attention_and_gradients((2, 3, 333, 64), 333, True, bt.float32, 7)[0] for _ in range(2)
        )
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a, b)

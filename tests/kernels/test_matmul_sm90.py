"""The tensor-core products of sm_90: their plans, and on such a GPU their results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blutrain as bt
from blutrain.autograd.registry import portable_only
from blutrain.cuda_kernels.common import sm90_multiprocessors
from blutrain.cuda_kernels.matmul import sm90
from blutrain.cuda_kernels.matmul.matmul import multiply
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.cuda_kernels.matmul.transposed import transpose

N_MULTIPROCESSORS = 132
FORMS = [(False, True), (False, False), (True, False), (True, True)]
on_sm90 = pytest.mark.skipif(not sm90_multiprocessors(), reason="needs a GPU of sm_90")


def plan(a_shape, b_shape, transpose_a, transpose_b, dtype=bt.float32, precision="tf32"):
    a, b = bt.zeros(a_shape, dtype=dtype), bt.zeros(b_shape, dtype=dtype)
    m, n = a_shape[-1 if transpose_a else -2], b_shape[-2 if transpose_b else -1]
    out = bt.zeros((*a_shape[:-2], m, n), dtype=dtype)
    problem = Problem(a, b, out, None, transpose_a, transpose_b)
    return sm90._make_plan(problem, precision, N_MULTIPROCESSORS)


def test_a_product_whose_b_runs_across_k_is_swapped_not_turned():
    made = plan((256, 64), (64, 512), False, False)
    assert made.swapped
    assert made.sizes == (512, 256, 64, 1)
    a, b, out = made.maps
    assert a.extents == (512, 64, 1)  # of what was b: n runs fast
    assert b.extents == (64, 256, 1)
    assert out.extents == (512, 256, 1)


def test_few_tiles_of_a_long_sum_are_shared_by_blocks_at_the_same_k():
    made = plan((16384, 3072), (16384, 768), True, False, bt.bfloat16)
    cut, grid, n_shared = made.choice
    assert n_shared * cut.m * cut.n >= 3072 * 768  # all tiles
    assert grid % n_shared == 0
    assert N_MULTIPROCESSORS * 0.9 < grid <= N_MULTIPROCESSORS


def test_every_block_has_a_share_or_flags_would_be_awaited_for_ever():
    for k in (32, 160, 4096):
        for m, n in ((64, 64), (512, 512), (3072, 768), (4096, 4096)):
            for dtype, precision in (
                (bt.float32, "tf32"),
                (bt.float32, "tf32x3"),
                (bt.float16, ""),
            ):
                made = plan((m, k), (n, k), False, True, dtype, precision)
                share, extra = made.shares
                steps = -(-k // (64 if dtype is bt.float16 else 32))
                assert share * made.choice.grid + extra == made.choice.n_shared * steps
                assert share > 0 or made.choice.n_shared == 0


def test_what_is_transposed_is_read_where_it_lies():
    memory = bt.zeros((3, 5, 256, 64))
    a, b = memory[:, 1:2], bt.zeros((3, 1, 256, 96))  # a's matrices are 5 × 256 × 64 apart
    problem = Problem(a, b, bt.zeros((3, 1, 64, 96)), None, True, False)
    made = sm90._make_plan(problem, "tf32", N_MULTIPROCESSORS)
    assert made.swapped  # so that B is a, the smaller
    assert made.transposed.batch_pitch == 5 * 256 * 64 * 4
    assert made.transposed.pitch == 64 * 4
    assert made.maps[1].strides == (256 * 4, 64 * 256 * 4)


def test_of_two_float32_operands_across_k_the_smaller_is_transposed():
    made = plan((16384, 768), (16384, 3072), True, False)
    assert made.transposed and made.swapped  # the first operand is the smaller
    assert made.maps[1].extents == (16384, 768, 1)
    assert not plan((16384, 768), (16384, 3072), True, False, bt.bfloat16).transposed


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ((64, 5), (5, 64), "rows of 20 bytes"),
        ((64, 64), (64, 66), "rows of 264 bytes"),
        ((64, 0), (0, 64), "an empty sum"),
    ],
)
def test_what_the_copy_engine_cannot_take_is_left_to_the_portable_kernel(a, b, why):
    assert plan(a, b, False, False) is None, why


def test_a_single_row_may_have_any_stride():
    made = plan((1, 5), (5, 64), False, False)
    assert made.maps[1].strides[0] % 16 == 0  # of a, whose place is B's here
    assert made.maps[1].extents == (5, 1, 1)


def test_a_broadcast_operand_is_left_to_the_portable_kernel():
    a = bt.zeros((1, 64, 64)).expand((3, 64, 64))
    problem = Problem(a, bt.zeros((3, 64, 64)), bt.zeros((3, 64, 64)))
    assert sm90._make_plan(problem, "tf32", N_MULTIPROCESSORS) is None


# Relative to the norms of what is multiplied: what each way of multiplying loses.
LIMITS = {"tf32x3": 1e-6, "tf32": 1e-3, "bf16": 8e-3}


@on_sm90
@settings(max_examples=150, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 300)] * 3),
    form=st.sampled_from(FORMS),
    batch=st.sampled_from([(), (1,), (3,)]),
    precision=st.sampled_from(["tf32x3", "tf32", "bf16"]),
    dtype=st.sampled_from([bt.float32, bt.bfloat16, bt.float16]),
    offset=st.sampled_from([0, 0, 1, 4]),
    with_bias=st.booleans(),
    whole=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape_gives_the_portable_kernels_result(
    sizes, form, batch, precision, dtype, offset, with_bias, whole, seed
):
    if whole:  # extents that the copy engine takes
        sizes = tuple(-(-size // 8) * 8 for size in sizes)
    m, n, k = sizes
    transpose_a, transpose_b = form
    rng = np.random.default_rng(seed)

    def matrix(rows, cols):
        """One whose first element is `offset` elements into its memory."""
        values = rng.standard_normal((*batch, rows, cols)).astype(np.float32)
        flat = np.concatenate([np.zeros(offset, np.float32), values.reshape(-1)])
        memory = bt.from_numpy(flat).to(dtype)
        return bt.Tensor(memory.storage, values.shape, None, offset, dtype)

    a = matrix(k, m) if transpose_a else matrix(m, k)
    b = matrix(n, k) if transpose_b else matrix(k, n)
    bias = bt.from_numpy(rng.standard_normal(n).astype(np.float32)).to(dtype) if with_bias else None
    poisoned = [bt.full((*batch, m, n), float("nan"), dtype=dtype) for _ in range(2)]
    with bt.using_matmul_precision(precision):
        multiply(a, b, poisoned[0], bias, transpose_a, transpose_b)
    with portable_only():
        multiply(a, b, poisoned[1], bias, transpose_a, transpose_b)
    ours, expected = (t.numpy().astype(np.float64) for t in poisoned)
    limit = LIMITS[precision] if dtype is bt.float32 else 8e-3
    scale = np.sqrt(k) + 1.0
    assert np.abs(ours - expected).max() <= limit * 8 * scale


@on_sm90
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize("form", FORMS)
def test_long_sums_are_as_exact_as_the_precision_says(precision, form):
    rng = np.random.default_rng(0)
    m, n, k = 256, 384, 8192
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    exact = a.astype(np.float64) @ b
    inputs = [bt.from_numpy(np.ascontiguousarray(x.T if t else x)) for x, t in zip((a, b), form)]
    out = bt.full((m, n), float("nan"))
    with bt.using_matmul_precision(precision):
        multiply(*inputs, out, None, *form)
    error = np.linalg.norm(out.numpy() - exact) / np.linalg.norm(exact)
    assert error < {"tf32x3": 5e-7, "tf32": 3.2e-4}[precision]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 65, 130), (1, 200, 7), (3, 64, 64)])
def test_transposed_copy(shape):
    n_batch, n_rows, n_cols = shape
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    source = bt.from_numpy(values)
    target = bt.full((n_batch, n_cols, n_rows), float("nan"))
    transpose(source.array(), target.array())
    assert np.array_equal(target.numpy(), values.swapaxes(1, 2))

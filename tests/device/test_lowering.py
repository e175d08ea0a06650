"""Loops over ranges mean the same in kernels as in Python, and are lean in the GPU's code."""

import re

import pytest
from numba import cuda, float32, types

import blutrain as bt
from blutrain.cuda_kernels.reduction.sum import SUM
from blutrain.cuda_kernels.reduction.template import rows_kernel
from blutrain.device import launch
from blutrain.device.cuda.compile import compile_kernel


@cuda.jit
def range_kernel(
    bounds,  # (n, 3): start, stop, step
    seen,  # (n, 3): turns, weighted sum of the values, the last value
):
    i = cuda.grid(1)
    if i >= bounds.shape[0]:
        return
    turns = 0
    total = 0
    last = -99
    for value in range(bounds[i, 0], bounds[i, 1], bounds[i, 2]):
        turns += 1
        if turns == 3:
            continue
        if turns > 7:
            break
        total += turns * value
        last = value
    seen[i, 0] = turns
    seen[i, 1] = total
    seen[i, 2] = last


@cuda.jit
def last_kernel(
    x,  # (n,)
    y,  # (2,)
):
    y[0] = x[-1]
    y[1] = x[cuda.threadIdx.x - 2]


def in_python(start, stop, step):
    turns, total, last = 0, 0, -99
    for value in range(start, stop, step):
        turns += 1
        if turns == 3:
            continue
        if turns > 7:
            break
        total += turns * value
        last = value
    return [turns, total, last]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_ranges_mean_what_they_mean_in_python(dtype):
    starts, stops, steps = (-7, 0, 3, 5), (-8, 0, 4, 40), (1, 2, 7, -1, -3)
    bounds = [[a, b, c] for a in starts for b in stops for c in steps]
    seen = bt.zeros((len(bounds), 3), "int64")
    launch(range_kernel, len(bounds), 32, bt.tensor(bounds, dtype), seen)
    assert seen.tolist() == [in_python(*b) for b in bounds]


def test_a_strided_sum_is_a_load_and_an_add_an_element():
    kernel = rows_kernel(SUM, float32)
    text = compile_kernel(kernel, (float32[:, ::1], float32[:, ::1], types.int64), (9, 0)).text
    # Loads at fixed offsets from one address: the loop was unrolled and strength-reduced.
    assert len(re.findall(r"ld\.global\.f32\s+%f\d+, \[%rd\d+\+-?\d+\]", text)) >= 3


def test_a_negative_index_of_a_users_kernel_counts_from_the_end():
    y = bt.zeros(2)
    launch(last_kernel, 1, 1, bt.tensor([1.0, 2.0, 3.0]), y)
    assert y.tolist() == [3.0, 2.0]


def test_an_index_of_any_integer_type_compiles():
    for kind in (types.int64, types.int32, types.uint32, types.uint64):
        compile_kernel(pick_kernel, (kind[::1], float32[::1]), (9, 0))


@cuda.jit
def pick_kernel(indices, x):
    i = cuda.grid(1)
    x[i] = x[indices[i]]

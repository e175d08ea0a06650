"""Threads that are interpreted one by one give what the compiled executor gives."""

import numpy as np
import pytest
from cpu_executor import fuzz, kernels
from cpu_executor.writer import Writer
from numba import float32, float64

from blutrain.device import cpu
from blutrain.device.cpu.interpret import interpret

ORDERS = ("ascending", "reversed", 3)
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*shape, top=100):
    return RNG.integers(0, top, shape)


def zeros(*shape, kind=np.float32):
    return np.zeros(shape, kind)


# (kernel, grid, block, arguments, bytes of dynamic shared memory)
CASES = {
    "gelu_strided": (kernels.gelu_strided, 2, 64, (normal(300), zeros(300)), 0),
    "matmul_tiled": (
        kernels.matmul_tiled, (2, 2), (16, 16), (normal(20, 18), normal(18, 30), zeros(20, 30)), 0,
    ),
    "softmax_by_warp": (kernels.softmax_by_warp, 2, 64, (normal(5, 40), zeros(5, 40)), 0),
    "layer_norm": (
        kernels.layer_norm, 2, 64, (normal(2, 70), normal(70), normal(70), zeros(2, 70), 1e-5), 0,
    ),
    "column_sums": (kernels.column_sums, 3, 32, (normal(3, 50), zeros(50)), 0),
    "matmul_in_registers": (
        kernels.matmul_in_registers, 1, 256, (normal(128, 8), normal(8, 128), zeros(128, 128)), 0,
    ),
    "tree_sum": (kernels.tree_sum, 2, 256, (normal(400), zeros(2)), 0),
    "scan": (kernels.scan, 1, 128, (whole(128), zeros(128, kind=np.int64)), 0),
    "votes": (
        kernels.votes, 1, 64, (RNG.integers(-3, 4, 64), *(zeros(64, kind=np.int64),) * 1,
                               *(zeros(64, kind=np.int64) for _ in range(3))), 0,
    ),
    "bitonic_sort": (kernels.bitonic_sort, 1, 256, (normal(256),), 0),
    "histogram": (
        kernels.histogram, (2, 1), (8, 8), (whole(20, 30, top=64), zeros(64, kind=np.int32)), 0,
    ),
    "collatz_by_warp": (
        kernels.collatz_by_warp, 1, 64, (whole(64) + 1, zeros(64, kind=np.int64)), 0,
    ),
    "find_first": (
        kernels.find_first, 1, 32, (normal(20, 6), zeros(20, kind=np.int64), zeros(20)), 0,
    ),
    "last_block_sums": (
        kernels.last_block_sums, 4, 32,
        (normal(100), zeros(4), zeros(1, kind=np.int32), zeros(1)), 0,
    ),
    "reverse_dynamic": (kernels.reverse_dynamic, 1, 64, (normal(64),), 256),
    "rows_of_neighbours": (kernels.rows_of_neighbours, 1, 64, (normal(64, 4), zeros(64)), 0),
    "hashed": (kernels.hashed, 2, 64, (zeros(100, kind=np.uint32), 12345), 0),
    "atomics": (
        kernels.atomics, 2, 64,
        (whole(100), whole(1), whole(1), zeros(2, kind=np.int64), zeros(1, kind=np.int64)), 0,
    ),
    "polynomial": (kernels.polynomial(3, float32), 1, 64, (normal(50), zeros(50)), 0),
    "polynomial64": (
        kernels.polynomial(4, float64), 1, 64, (RNG.standard_normal(50), np.zeros(50)), 0,
    ),
    "table_lookup": (kernels.table_lookup, 1, 64, (zeros(50),), 0),
    "shifted": (kernels.shifted, 1, 32, (normal(64), zeros(32), -32), 0),
    "typed": (kernels.typed, 1, 64, (normal(50), zeros(50)), 0),
    "typed_half": (
        kernels.typed, 1, 64, (normal(50).astype(np.float16), zeros(50, kind=np.float16)), 0,
    ),
    "flags": (kernels.flags, 1, 64, (normal(50), zeros(50, kind=np.bool_), 0.5), 0),
    "large_local": (kernels.large_local, 1, 4, (normal(10), zeros(4)), 0),
    "returns_to_stores": (
        kernels.returns_to_stores, 1, 128, (whole(128), zeros(128, 2, kind=np.int64)), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_as_compiled(name, order):
    kernel, grid, block, arguments, shared = CASES[name]
    want = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    got = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    cpu.run(kernel, grid, block, *want, shared=shared)
    interpret(kernel, grid, block, *got, shared=shared, order=order)
    for a, b in zip(got, want, strict=True):
        if isinstance(a, np.ndarray):
            tolerance = 0 if a.dtype.kind in "iub" else 2e-5
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(12))
def test_random_kernels(seed):
    """Integers to the last bit."""
    writer = Writer(seed)
    kernel = fuzz.module_of(writer.text(), f"<interpreted {seed}>")["kernel"]
    data = np.random.default_rng(seed).integers(0, 100, writer.n_threads)
    shapes = ((2, writer.n_threads, 7), (2, 300), (2, writer.n_threads, 4), (8,))
    kinds = (np.int64, np.int64, np.float64, np.int64)
    want, got = ([np.zeros(s, k) for s, k in zip(shapes, kinds, strict=True)] for _ in range(2))
    cpu.run(kernel, writer.grid, writer.block, data, seed % 5 + 1, *want)
    order = ORDERS[seed % 3]
    interpret(kernel, writer.grid, writer.block, data, seed % 5 + 1, *got, order=order)
    for a, b in zip(got, want, strict=True):
        tolerance = 1e-4 if a.dtype == np.float64 else 0
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

"""Kernels as they are written for CUDA give what they should, in every way of running them."""

import threading

import numpy as np
import pytest
from cpu_executor import kernels
from numba import float32, float64

from blutrain.device import cpu
from blutrain.errors import KernelError

WAYS = {
    "plain": cpu.Options(),
    "last thread first": cpu.Options(reverse=True),
    "poisoned memory": cpu.Options(poison=True),
}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=list(WAYS))
def run(request):
    def run_it(*arguments, **options):
        cpu.run(*arguments, **options, options=WAYS[request.param])

    return run_it


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [1, 255, 1000, 5000])
def test_strided_over_grid(run, rng, n):
    x = normal(rng, n)
    y = np.empty_like(x)
    run(kernels.gelu_strided, 2, 128, x, y)
    close(y, 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))))


@pytest.mark.parametrize("shape", [(70, 50, 90), (16, 16, 16), (1, 3, 2)])
def test_shared_tiles_in_two_dimensions(run, rng, shape):
    m, k, n = shape
    a, b, c = normal(rng, m, k), normal(rng, k, n), np.zeros((m, n), np.float32)
    run(kernels.matmul_tiled, (-(-n // 16), -(-m // 16)), (16, 16), a, b, c)
    close(c, a @ b, 1e-4)


def test_strides_of_arguments(run, rng):
    a, b = normal(rng, 40, 30)[:, ::-1], normal(rng, 20, 30).T
    c = np.zeros((40, 20), np.float32)
    run(kernels.matmul_tiled, (2, 3), (16, 16), a, b, c)
    close(c, a @ b, 1e-4)


@pytest.mark.parametrize("n_cols", [1, 31, 100])
def test_warp_shuffles_under_a_mask(run, rng, n_cols):
    x = normal(rng, 37, n_cols)
    y = np.empty_like(x)
    run(kernels.softmax_by_warp, 3, 128, x, y)
    e = np.exp(x - x.max(1, keepdims=True))
    close(y, e / e.sum(1, keepdims=True))


def test_reductions_over_a_block(run, rng):
    x, g, b = normal(rng, 20, 300), normal(rng, 300), normal(rng, 300)
    y = np.empty_like(x)
    run(kernels.layer_norm, 20, 128, x, g, b, y, 1e-5)
    scale = np.sqrt(x.var(1, keepdims=True) + 1e-5)
    close(y, (x - x.mean(1, keepdims=True)) / scale * g + b, 1e-4)


def test_register_blocked_matmul(run, rng):
    a, b, c = normal(rng, 256, 64), normal(rng, 64, 128), np.zeros((256, 128), np.float32)
    run(kernels.matmul_in_registers, (1, 2), 256, a, b, c)
    close(c, a @ b, 1e-3)


def test_barriers_in_while_loops(run, rng):
    x, out = normal(rng, 1000), np.zeros(4, np.float32)
    run(kernels.tree_sum, 4, 256, x, out)
    close(out.sum(), x.sum(), 1e-3)
    x = normal(rng, 256)
    expected = np.sort(x)
    run(kernels.bitonic_sort, 1, 256, x)
    assert (x == expected).all()


def test_scan(run, rng):
    x, y = rng.integers(0, 9, 256), np.zeros(256, np.int64)
    run(kernels.scan, 1, 256, x, y)
    assert (y == np.cumsum(x)).all()


def test_votes(run, rng):
    x = normal(rng, 64)
    ballot, some, every, count = (np.zeros(64, np.int64) for _ in range(4))
    run(kernels.votes, 1, 64, x, ballot, some, every, count)
    for warp in (slice(0, 32), slice(32, 64)):
        assert (ballot[warp] == (x[warp] > 0).sum()).all()
        assert (some[warp] == (x[warp] > 2).any()).all()
        assert (every[warp] == (x[warp] > -2).all()).all()
    assert (count == (x > 0).sum()).all()


def test_atomics(run, rng):
    x, h = rng.integers(0, 64, (50, 70)), np.zeros(64, np.int32)
    run(kernels.histogram, (2, 2), (16, 8), x, h)
    assert (h == np.bincount(x.ravel(), minlength=64)).all()
    x = normal(rng, 1000)
    largest, smallest = np.zeros(1, np.float32), np.zeros(1, np.float32)
    cell, bits = np.zeros(2, np.int32), np.zeros(1, np.int64)
    run(kernels.atomics, 4, 256, x, largest, smallest, cell, bits)
    assert (largest[0], smallest[0]) == (x.max(), x.min())
    assert list(cell) == [1, 7]
    assert bits[0] == 2**40 - 1
    x, total = normal(rng, 30, 100), np.zeros(100, np.float32)
    run(kernels.column_sums, 30, 64, x, total)
    close(total, x.sum(0), 1e-4)


def test_warps_that_leave_a_loop_at_different_times(run, rng):
    x, y = rng.integers(1, 50, 64), np.zeros(64, np.int64)
    run(kernels.collatz_by_warp, 1, 64, x, y)

    def steps(v):
        return 0 if v == 1 else 1 + steps(v // 2 if v % 2 == 0 else 3 * v + 1)

    for warp in (slice(0, 32), slice(32, 64)):
        assert (y[warp] == max(steps(int(v)) for v in x[warp])).all()


def test_returns_in_loops_and_tuples(run, rng):
    x = normal(rng, 40, 10)
    out, value = np.zeros(40, np.int64), np.zeros(40, np.float32)
    run(kernels.find_first, 1, 64, x, out, value)
    for i in range(40):
        first = next((j for j in range(10) if x[i, j] > 1), -1)
        assert out[i] == first
        assert value[i] == (x[i, first] if first >= 0 else 0)


def test_last_block_done(run, rng):
    x, part = normal(rng, 1000), np.zeros(5, np.float32)
    arrived, out = np.zeros(1, np.int32), np.zeros(1, np.float32)
    run(kernels.last_block_sums, 5, 64, x, part, arrived, out)
    close(out[0], x.sum(), 1e-3)


def test_dynamic_shared_memory(run, rng):
    x = normal(rng, 64)
    expected = x[::-1].copy()
    run(kernels.reverse_dynamic, 1, 64, x, shared=256)
    assert (x == expected).all()


def test_arrays_handed_to_device_functions(run, rng):
    x, y = normal(rng, 64, 4), np.zeros(64, np.float32)
    run(kernels.rows_of_neighbours, 1, 64, x, y)
    close(y, ((x + 1) * np.roll(x, -1, 0)).sum(1))


def test_unsigned_arithmetic_wraps(run):
    y = np.zeros(500, np.uint32)
    run(kernels.hashed, 2, 256, y, 7)

    def mix(x):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
        return x ^ (x >> 16)

    assert y.tolist() == [mix(i ^ 7) for i in range(500)]


@pytest.mark.parametrize(("real", "dtype"), [(float32, np.float32), (float64, np.float64)])
@pytest.mark.parametrize("degree", [1, 4])
def test_kernels_made_by_a_factory(run, rng, real, dtype, degree):
    x = rng.standard_normal(100).astype(dtype)
    y = np.empty_like(x)
    run(kernels.polynomial(degree, real), 1, 128, x, y)
    close(y, np.polyval(np.arange(1, degree + 1), x))


def test_global_arrays_are_constants(run):
    y = np.zeros(12, np.float32)
    run(kernels.table_lookup, 1, 32, y)
    assert (y == np.resize(kernels.TABLE, 12)).all()


def test_scalars_that_are_negative_after_all(run):
    x, y = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    for offset in (0, 5, -32, -40):
        run(kernels.shifted, 1, 32, x, y, offset)
        assert (y == [x[offset + i] for i in range(32)]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compute_type_follows_the_argument(run, rng, dtype):
    x = rng.standard_normal(50).astype(dtype)
    y = np.empty_like(x)
    run(kernels.typed, 1, 64, x, y)
    assert (y == x * dtype(0.5) + dtype(1)).all()


def test_bool_arrays(run, rng):
    x, above = normal(rng, 100), np.zeros(100, bool)
    run(kernels.flags, 1, 128, x, above, 0.5)
    assert (above == ((x > 0.5) & ~(x > 1))).all()


def test_more_local_memory_than_the_stack_has(run, rng):
    x, y = normal(rng, 2000), np.zeros(1024, np.float32)
    run(kernels.large_local, 1, 1024, x, y)
    close(y, [np.resize(np.roll(x, -t), 512).sum() for t in range(1024)], 1e-3)


def test_threads_give_what_one_thread_gives(rng, monkeypatch):
    x = normal(rng, 600, 700)
    one, many = np.empty_like(x), np.empty_like(x)
    monkeypatch.setenv("BLUTRAIN_CPU_THREADS", "1")
    cpu.run(kernels.softmax_by_warp, 150, 128, x, one)
    monkeypatch.setenv("BLUTRAIN_CPU_THREADS", "3")
    for _ in range(4):
        cpu.run(kernels.softmax_by_warp, 150, 128, x, many)
    assert (one == many).all()


def test_launches_from_several_threads(rng):
    x = normal(rng, 64, 100)
    outs = [np.empty_like(x) for _ in range(4)]
    threads = [
        threading.Thread(target=cpu.run, args=(kernels.softmax_by_warp, 8, 128, x, y)) for y in outs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((y == outs[0]).all() for y in outs)


def test_divergent_barrier_is_found(rng):
    with pytest.raises(KernelError, match="kernel divergent: raised .*only some threads reach a"):
        cpu.run(kernels.divergent, 1, 64, normal(rng, 64), options=cpu.Options(check_barriers=True))


@pytest.mark.parametrize(
    ("kernel", "arrays", "says"),
    [
        (
            kernels.one_too_far,
            (np.zeros(100, np.float32), np.zeros(100, np.float32)),
            r"kernel one_too_far: index 100 is out of bounds for axis 0 of x, which has 100 "
            r"elements, in block \(3, 0, 0\), thread 3 "
            r"\(in `return v\[i \+ 1\]`, .*kernels.py:\d+\)",
        ),
        (
            kernels.before_the_start,
            (np.zeros((4, 32), np.float32),),
            r"index -33 is out of bounds for axis 1 of s, .* in block \(0, 0, 0\), thread 0 ",
        ),
    ],
)
def test_index_out_of_bounds_is_found(kernel, arrays, says):
    with pytest.raises(KernelError, match=says):
        cpu.run(kernel, 4, 32, *arrays, options=cpu.Options(check_bounds=True))


def test_what_a_kernel_raises():
    x = np.arange(4.0)
    with pytest.raises(KernelError, match=r"kernel raises: raised ValueError\('too large'\)"):
        cpu.run(kernels.raises, 1, 4, x)
    cpu.run(kernels.raises, 1, 2, x)


def test_a_thread_finds_what_it_stored(run, rng):
    # Vectorised, strided stores once went past a load of the same elements.
    x, y, t = rng.integers(0, 100, 128), np.zeros((128, 2), np.int64), np.arange(128)
    run(kernels.returns_to_stores, 1, 128, x, y)
    assert (y[:, 0] == ((x & 3) * t)[::-1]).all()
    assert (y[:, 1] == x).all()

"""What kernels may say beyond blutrain's own: records, tuples, loops over arrays, float16, ..."""

import collections
import enum
import math

import numba.cuda.random  # also as cuda.random, which kernels below call
import numpy as np
import pytest
from numba import cuda, float32, int32, literal_unroll
from numba.np.numpy_support import from_dtype
from numba.types import float16

from blutrain.device import cpu
from blutrain.errors import KernelError

Pair = collections.namedtuple("Pair", ["first", "second"])
PARTICLE = np.dtype([("mass", np.float32), ("steps", np.int32)])
_PARTICLE = from_dtype(PARTICLE)


@cuda.jit(device=True)
def _same(x):
    return x


@cuda.jit(device=True)
def _in_shared(y, shape, dtype, update, convert):
    t = cuda.threadIdx.x
    s = cuda.shared.array(shape, dtype)
    s[t] = t
    cuda.syncthreads()
    update(s, convert(t // 2), 10)
    cuda.syncthreads()
    y[t] = s[t]


@cuda.jit
def _passes_functions(y):
    _in_shared(y, 32, int32, cuda.atomic.add, _same)


def test_functions_types_and_shapes_are_passed_to_device_functions():
    y = np.zeros(32, np.int32)
    cpu.run(_passes_functions, 1, 32, y)
    assert (y == np.arange(32) + 20 * (np.arange(32) < 16)).all()


@cuda.jit
def _records(r, one, y):
    i = cuda.grid(1)
    p = r[i]
    p.mass = p["mass"] * float32(2)
    r[i]["steps"] = i
    y[i] = r[i].mass + one.mass


def test_records():
    r = np.zeros(8, PARTICLE)
    r["mass"] = np.arange(8)
    y = np.empty(8, np.float32)
    cpu.run(_records, 2, 4, r, np.array([(0.5, 1)], PARTICLE)[0], y)
    assert (r["mass"] == 2 * np.arange(8)).all()
    assert (r["steps"] == np.arange(8)).all()
    assert (y == 2 * np.arange(8) + 0.5).all()


@cuda.jit
def _tuples(pair, nested, nothing, y):
    if nothing is None:
        y[0] = pair.first + pair.second[1]
    y[1] = nested[0] + nested[1][0] + len(nested)


def test_tuples():
    y = np.zeros(2)
    x = np.array([1.0, 2.5])
    cpu.run(_tuples, 1, 1, Pair(3, x), (1, (np.float64(0.25), 7)), None, y)
    assert y.tolist() == [5.5, 3.25]


@cuda.jit
def _loops(a, b, y):
    total = 0
    for x in a:
        total += x
    for k, (u, v) in enumerate(zip(a, b), 1):
        total += k * u * v
    y[0] = total


def test_loops_over_arrays():
    a, b, y = np.arange(1, 5), np.arange(2, 9), np.zeros(1, np.int64)
    cpu.run(_loops, 1, 1, a, b, y)
    assert y[0] == a.sum() + sum(k * u * v for k, (u, v) in enumerate(zip(a, b), 1))


@cuda.jit
def _halves(x, a, y):
    i = cuda.threadIdx.x
    s = cuda.shared.array(32, float16)
    s[i] = x[i]
    cuda.syncthreads()
    y[i] = cuda.fp16.hfma(s[31 - i], a, float16(0.1))


def test_float16():
    x = np.linspace(-3, 3, 32).astype(np.float16)
    y = np.zeros(32, np.float16)
    a = np.float16(1.7)
    cpu.run(_halves, 1, 32, x, a, y)
    exact = x[::-1].astype(np.float64) * float(a) + float(np.float16(0.1))
    assert (y == exact.astype(np.float16)).all()


@cuda.jit
def _complex(z, w, y):
    i = cuda.threadIdx.x
    y[i] = (z[i] * w).conjugate() + abs(z[i])


def test_complex():
    z = np.array([1 + 2j, -0.5j])
    y = np.zeros(2, np.complex128)
    cpu.run(_complex, 1, 2, z, np.complex128(2 - 1j), y)
    np.testing.assert_allclose(y, np.conj(z * (2 - 1j)) + abs(z))


@cuda.jit
def _methods(x, y):
    rows = x.reshape(2, 3)
    bits = x[0].bit_count()
    y[0] = rows[1, 0] * 100 + bits
    y[1] = x.view(int32)[2]


def test_methods():
    x, y = np.array([7, 1, 2, 3, 4, 5]), np.zeros(2, np.int64)
    cpu.run(_methods, 1, 1, x, y)
    assert y.tolist() == [303, 1]


@cuda.jit
def _warps(x, y):
    t = cuda.threadIdx.x
    y[0, t] = cuda.match_any_sync(0xFFFFFFFF, x[t])
    same, agree = cuda.match_all_sync(0xFFFFFFFF, x[t] // 100)
    y[1, t] = same if agree else 0
    y[2, t] = cuda.eq_sync(0xFFFFFFFF, x[t] == 5)
    y[3, t] = cuda.lanemask_lt()
    y[4, t] = cuda.all_sync(0xFFFFFFFF, x[t] < 100)
    if t % 2 == 0:
        y[5, t] = cuda.activemask()


@pytest.mark.parametrize("n", [32, 40, 64])
def test_warps_also_when_the_last_is_not_full(n):
    x, y = np.arange(n) % 3, np.zeros((6, n), np.uint32)
    cpu.run(_warps, 1, n, x, y)
    for t in range(n):
        lanes = range(t // 32 * 32, min(t // 32 * 32 + 32, n))
        there = sum(1 << (u % 32) for u in lanes)
        even = sum(1 << (u % 32) for u in lanes if u % 2 == 0)
        same = sum(1 << (u % 32) for u in lanes if x[u] == x[t])
        expected = [same, there, 1, (1 << t % 32) - 1, 1, even if t % 2 == 0 else 0]
        assert y[:, t].tolist() == expected


@cuda.jit
def _libm(x, y):
    i = cuda.threadIdx.x
    y[0, i] = cuda.cbrt(x[i])
    y[1, i], y[2, i] = math.modf(x[i])
    y[3, i] = math.fmod(x[i], float32(0.75))
    y[4, i] = math.remainder(x[i], float32(0.75))
    y[5, i] = math.nextafter(x[i], float32(9))


def test_more_of_math():
    x = np.array([-8.5, -0.25, 0.0, 1.0, 27.0, math.inf], np.float32)
    y = np.empty((6, 6), np.float32)
    cpu.run(_libm, 1, 6, x, y)
    np.testing.assert_allclose(y[0], np.cbrt(x), rtol=1e-6)
    np.testing.assert_array_equal(y[1:3], np.modf(x))
    assert np.signbit(y[1:3]).tolist() == np.signbit(np.modf(x)).tolist()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(y[3], np.fmod(x, np.float32(0.75)))
    np.testing.assert_array_equal(y[4, :-1], [math.remainder(v, 0.75) for v in x[:-1].tolist()])
    np.testing.assert_array_equal(y[5], np.nextafter(x, np.float32(9)))


@cuda.jit
def _else(x, y):
    t = cuda.threadIdx.x
    for i in range(4):
        if x[i] == t:
            y[t] = i
            break
    else:
        y[t] = -1
    cuda.syncthreads()
    k = 0
    while k < t:
        k += 1
        cuda.syncthreads()
        if y[k] > 100:
            break
    else:
        y[t] += 10


def test_else_of_a_loop():
    y = np.zeros(6, np.int64)
    cpu.run(_else, 1, 6, np.array([3, 5, 0, 9]), y)
    assert y.tolist() == [12, 9, 9, 10, 9, 11]


@cuda.jit
def _windows(y):
    n = 8
    s = cuda.shared.array((4, n), int32)
    t = cuda.threadIdx.x
    row = s[t // n, :]
    row[t % n] = t
    cuda.syncthreads()
    backwards = row[::-1]
    y[t] = backwards[t % n]


def test_windows_across_a_barrier():
    y = np.zeros(32, np.int64)
    cpu.run(_windows, 1, 32, y)
    assert (y == np.arange(32).reshape(4, 8)[:, ::-1].ravel()).all()


@cuda.jit
def _shared_records(r, y):
    s = cuda.shared.array(8, _PARTICLE)
    t = cuda.threadIdx.x
    s[t].mass = r[t].mass
    s[t].steps = t
    cuda.syncthreads()
    y[t] = s[7 - t].mass + s[t].steps


def test_records_in_shared_memory():
    r, y = np.zeros(8, PARTICLE), np.zeros(8)
    r["mass"] = 10 * np.arange(8)
    cpu.run(_shared_records, 1, 8, r, y)
    assert (y == 70 - 9 * np.arange(8)).all()


_twice = cuda.jit(device=True)(lambda x: 2 * x)


@cuda.jit
def _calls_lambda(y):
    y[0] = _twice(y[0])
    for k, v in enumerate((0.5, 1.5)):
        y[0] += k * v
    for k, v in enumerate(range(9, 3, -2)):
        y[0] += 100 * k * v


def test_lambdas_and_loops_over_tuples_and_ranges():
    y = np.ones(1)
    cpu.run(_calls_lambda, 1, 1, y)
    assert y[0] == 3.5 + 100 * (7 + 2 * 5)


@cuda.jit
def _steps(first, last, step, y):
    for i in range(first, last, step):
        y[0] += i
    for _ in range(cuda.threadIdx.x, last, step):
        cuda.syncwarp()
        y[1] += 1


@pytest.mark.parametrize("step", [2, -2, 0])
def test_a_step_may_be_positive_negative_or_zero(step):
    y = np.zeros(2, np.int64)
    first, last = (9, -9) if step < 0 else (-9, 9)
    cpu.run(_steps, 1, 1, first, last, step, y)
    turns = range(first, last, step) if step else ()
    assert y.tolist() == [sum(turns), len(range(0, last, step)) if step else 0]


_CASES = (np.arange(3.0), np.ones((2, 2), np.int32))


@cuda.jit
def _unrolled(y):
    k = 0
    for case in literal_unroll(_CASES):
        y[k] = np.sum(case) + case.ndim
        k += 1  # noqa: SIM113 (the loop is unrolled)


def test_loop_over_values_of_several_types():
    y = np.zeros(2)
    cpu.run(_unrolled, 1, 1, y)
    assert y.tolist() == [4, 6]


class Colour(enum.IntEnum):
    RED = 3
    BLUE = 4


@cuda.jit
def _enums(c, y):
    if c == Colour.BLUE:
        y[0] = int32(c) + 1


def test_enums():
    y = np.zeros(1, np.int32)
    cpu.run(_enums, 1, 1, Colour.BLUE, y)
    assert y[0] == 5


@cuda.jit
def _raises(x):
    if x[0] > 0:
        raise ValueError("too large")


def test_what_a_kernel_raised_is_the_cause():
    with pytest.raises(KernelError, match="too large") as caught:
        cpu.run(_raises, 1, 1, np.ones(1))
    assert isinstance(caught.value.__cause__, ValueError)


@cuda.jit
def _extremes(x, y):
    cuda.atomic.max(y, 0, x[0])
    cuda.atomic.nanmax(y, 1, x[0])


def test_a_nan_stays_in_max_and_goes_in_nanmax():
    y = np.full(2, np.nan)
    cpu.run(_extremes, 1, 1, np.ones(1), y)
    assert np.isnan(y[0])
    assert y[1] == 1


@cuda.jit
def _loops_over_a_number(y):
    for x in y[0]:
        y[0] = x


def test_loop_over_what_has_no_elements():
    with pytest.raises(KernelError, match="_loops_over_a_number"):
        cpu.run(_loops_over_a_number, 1, 1, np.zeros(1))


@cuda.jit
def _tuple_across_barriers(x, y):
    t = cuda.threadIdx.x
    pair = (x[t], 2) if t % 2 else (x[t] + float32(0.5), 3)
    for _ in range(3):
        cuda.syncthreads()
        pair = (pair[0] + pair[1], pair[1] + t)
    y[t] = pair[0] * pair[1]


def test_tuples_live_across_barriers():
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    cpu.run(_tuple_across_barriers, 1, 64, x, y)
    t = np.arange(64)
    first, second = np.where(t % 2, x, x + 0.5), np.where(t % 2, 2, 3)
    for _ in range(3):
        first, second = first + second, second + t
    np.testing.assert_array_equal(y, first * second)


@cuda.jit
def _random_numbers(states, y):
    i = cuda.grid(1)
    y[i] = cuda.random.xoroshiro128p_uniform_float32(states, i)


def test_functions_of_cuda_random():
    states = np.zeros(64, numba.cuda.random.xoroshiro128p_dtype)
    numba.cuda.random.init_xoroshiro128p_states_cpu(states, 3, 0)
    y = np.full(64, -1, np.float32)
    cpu.run(_random_numbers, 1, 64, states, y)
    assert (y >= 0).all() and (y < 1).all() and len(set(y)) > 60

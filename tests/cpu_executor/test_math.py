"""float32 functions against float64, over samples of all float32 and at the corners."""

import math

import numpy as np
import pytest
from numba import cuda

from blutrain.device import cpu

CORNERS = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 88.72283, 88.72284, 89.5, -87.4, -103.97,
     -104.5, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 0.625, 0.927734375, 10.0],
    np.float32,
)  # fmt: skip
# Every 20011th float32: both signs, all exponents.
EVERYWHERE = np.arange(0, 2**32, 20011, dtype=np.uint64).astype(np.uint32).view(np.float32)
SAMPLES = np.concatenate([EVERYWHERE, CORNERS, np.linspace(-12, 12, 40001, dtype=np.float32)])

# The largest error allowed, in units in the last place.
BOUNDS = {
    "exp": 1.5, "expm1": 2, "exp2": 1.5, "log": 1, "log2": 1, "log10": 1, "log1p": 2, "tanh": 2,
    "erf": 1.5, "sin": 1, "cos": 1, "tan": 2.5, "sqrt": 0.5, "floor": 0, "ceil": 0, "fabs": 0,
}  # fmt: skip


def kernel_of(name):
    function = getattr(math, name)

    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i])

    return kernel


def exact(name, x):
    if name == "erf":
        return np.array([math.erf(v) for v in x])
    return getattr(np, name)(x)


def errors(got, expected):
    """Errors in units in the last place; infinite where special values are not the same."""
    rounded = expected.astype(np.float32)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    finite = np.isfinite(got) & np.isfinite(rounded)
    ulp = np.spacing(np.abs(np.where(finite, rounded, np.float32(1)))).astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(got.astype(np.float64) - expected) / ulp
    return np.where(finite, distance, np.where(same, 0.0, np.inf))


@pytest.mark.parametrize("name", BOUNDS)
def test_accuracy(name):
    x = SAMPLES
    if name in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) > 2.0**30) | np.isinf(x)]
    y = np.empty_like(x)
    cpu.run(kernel_of(name), -(-x.size // 256), 256, x, y)
    with np.errstate(all="ignore"):
        found = errors(y, exact(name, x.astype(np.float64)))
    worst = int(np.argmax(found))
    assert found[worst] <= BOUNDS[name], f"{name}({x[worst]!r}) = {y[worst]!r}"


def test_signed_zeros():
    x = np.array([0.0, -0.0], np.float32)
    for name in ("tanh", "erf", "sin", "expm1", "log1p", "floor", "sqrt"):
        y = np.empty_like(x)
        cpu.run(kernel_of(name), 1, 2, x, y)
        assert list(np.signbit(y)) == [False, True], name


@cuda.jit
def power(x, y, z):
    i = cuda.grid(1)
    if i < x.size:
        z[i] = math.pow(x[i], y[i])


def test_power():
    rng = np.random.default_rng(0)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, 3, -3], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    x = np.concatenate([x, np.exp(rng.uniform(-30, 30, 50000)), -np.exp(rng.uniform(-9, 9, 5000))])
    y = np.concatenate([y, rng.uniform(-8, 8, 50000), np.round(rng.uniform(-9, 9, 5000))])
    x, y = x.astype(np.float32), y.astype(np.float32)
    z = np.empty_like(x)
    cpu.run(power, -(-x.size // 256), 256, x, y, z)
    with np.errstate(all="ignore"):
        assert errors(z, x.astype(np.float64) ** y.astype(np.float64)).max() <= 1


@cuda.jit
def extremes(x, y, low, high):
    i = cuda.grid(1)
    if i < x.size:
        low[i] = min(x[i], y[i])
        high[i] = max(x[i], y[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_min_and_max(dtype):
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0, 100, 300).astype(dtype) for _ in range(2))
    if np.issubdtype(dtype, np.floating):
        x[0] = y[1] = np.nan  # of a number and a NaN, CUDA gives the number
    low, high = np.empty_like(x), np.empty_like(x)
    cpu.run(extremes, 2, 256, x, y, low, high)
    np.testing.assert_array_equal(low, np.fmin(x, y))
    np.testing.assert_array_equal(high, np.fmax(x, y))


@cuda.jit
def bits(x, popc, clz, brev):
    i = cuda.grid(1)
    if i < x.size:
        popc[i] = cuda.popc(x[i])
        clz[i] = cuda.clz(x[i])
        brev[i] = cuda.brev(x[i])


def test_bits():
    x = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x00F0], np.uint32)
    popc, clz, brev = (np.zeros(5, np.uint32) for _ in range(3))
    cpu.run(bits, 1, 32, x, popc, clz, brev)
    assert popc.tolist() == [0, 1, 1, 32, 4]
    assert clz.tolist() == [32, 31, 0, 0, 24]
    assert brev.tolist() == [0, 0x80000000, 1, 0xFFFFFFFF, 0x0F000000]


@cuda.jit
def integers(x, y, quotient, remainder, cube):
    i = cuda.grid(1)
    if i < x.size:
        quotient[i] = x[i] // y[i]
        remainder[i] = x[i] % y[i]
        cube[i] = x[i] ** 3


def test_integers_divide_as_in_python():
    x, y = np.array([7, -7, 7, -7, 0]), np.array([3, 3, -3, -3, 5])
    quotient, remainder, cube = (np.zeros(5, np.int64) for _ in range(3))
    cpu.run(integers, 1, 32, x, y, quotient, remainder, cube)
    assert quotient.tolist() == (x // y).tolist()
    assert remainder.tolist() == (x % y).tolist()
    assert cube.tolist() == (x**3).tolist()

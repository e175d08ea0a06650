"""Half arrays: every bit pattern, every tie, on the CPU compiler; the PTX for CUDA."""

import numpy as np
import pytest
from numba import cuda, njit, types

from blutrain import dtypes
from blutrain.device.half import HalfArray
from tests.device.half_views import reader, viewer, writer

HALVES = ("float16", "bfloat16")
PATTERNS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def expected_float32(half: str, bits: np.ndarray) -> np.ndarray:
    stored = bits.view(np.float16) if half == "float16" else bits
    return dtypes.from_storage(stored, dtypes.as_dtype(half)).astype(np.float32)


def expected_bits(half: str, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return dtypes.to_storage(values, dtypes.as_dtype(half)).view(np.uint16)


def is_nan(half: str, bits: np.ndarray) -> np.ndarray:
    return np.isnan(expected_float32(half, bits))


def interesting_float32(half: str) -> np.ndarray:
    """Every half, the midpoints between neighbours, and the float32s beside both."""
    halves = expected_float32(half, PATTERNS)
    finite = np.unique(halves[np.isfinite(halves)])
    middles = (finite[:-1].astype(np.float64) + finite[1:].astype(np.float64)) / 2
    around = np.concatenate([finite, middles.astype(np.float32)])
    up, down = np.nextafter(around, np.float32(np.inf)), np.nextafter(around, np.float32(-np.inf))
    special = np.array([np.inf, -np.inf, np.nan, 65519, 65520, 65521, 3.4028235e38, 1e-45, -0.0])
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000], np.uint32).view(np.float32)
    return np.concatenate([around, up, down, special.astype(np.float32), nans])


@pytest.mark.parametrize("half", HALVES)
def test_every_pattern_is_read(half):
    got, want = reader(half)(PATTERNS), expected_float32(half, PATTERNS)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(got.view(np.uint32)[numbers], want.view(np.uint32)[numbers])


@pytest.mark.parametrize("half", HALVES)
def test_reading_and_writing_back_changes_nothing(half):
    back = writer(half)(reader(half)(PATTERNS))
    numbers = ~is_nan(half, PATTERNS)
    np.testing.assert_array_equal(back[numbers], PATTERNS[numbers])
    assert is_nan(half, back)[~numbers].all()


@pytest.mark.parametrize("half", HALVES)
def test_float32_is_rounded_to_nearest_even(half):
    values = interesting_float32(half)
    got, want = writer(half)(values), expected_bits(half, values)
    nan = np.isnan(values)
    np.testing.assert_array_equal(got[~nan], want[~nan])
    assert is_nan(half, got)[nan].all()


@pytest.mark.parametrize("half", HALVES)
def test_random_float32_bits(half):
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint64)
    values = bits.astype(np.uint32).view(np.float32)
    got, nan = writer(half)(values), np.isnan(values)
    np.testing.assert_array_equal(got[~nan], expected_bits(half, values)[~nan])
    assert is_nan(half, got)[nan].all()


@pytest.mark.parametrize("half", HALVES)
def test_float64_is_rounded_once(half):
    """Just above a midpoint, but by less than float32 can tell: to nearest is up, not to even."""
    halves = expected_float32(half, PATTERNS)
    finite = np.unique(halves[np.isfinite(halves)]).astype(np.float64)
    lower, upper = finite[:-1], finite[1:]
    middle = (lower + upper) / 2
    write = writer(half)
    numbers = lambda values: expected_float32(half, write(values)).astype(np.float64)  # noqa: E731
    np.testing.assert_array_equal(numbers(np.nextafter(middle, np.inf)), upper)
    np.testing.assert_array_equal(numbers(np.nextafter(middle, -np.inf)), lower)
    np.testing.assert_array_equal(write(middle), write(middle.astype(np.float32)))
    special = np.array([np.inf, -np.inf, 1e300, -1e300, 1e-300, 0.0])
    want = np.array([np.inf, -np.inf, np.inf, -np.inf, 0, 0])
    np.testing.assert_array_equal(numbers(special), want)
    assert np.isnan(numbers(np.array([np.nan]))).all()
    if half == "float16":
        values = np.random.default_rng(1).normal(size=1 << 16) * 2.0 ** np.arange(-32, 32).repeat(
            1024
        )
        with np.errstate(over="ignore"):
            want = values.astype(np.float16).astype(np.float64)
        np.testing.assert_array_equal(numbers(values), want)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "uint64"])
def test_integers_are_stored(half, dtype):
    info = np.array([0, 1, 3, 100, 127]).astype(dtype)
    want = expected_bits(half, info.astype(np.float32))
    np.testing.assert_array_equal(writer(half)(info), want)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["C", "A"])
def test_indexing(half, ndim, layout):
    shape = (3, 4, 5, 6)[:ndim]
    steps = {
        1: "x[i] = x[i] + x[-1]",
        2: "x[i, j] = x[i, j] + x[-1, -1]",
        3: "x[i, j, k] = x[i, j, k] + x[-1, -1, -1]",
        4: "x[i, j, k, m] = x[(i, j, k, m)] + x[-1, -1, -1, -1]",
    }[ndim]
    names = "ijkm"[:ndim]
    text = "def add(address, shape, strides):\n x = view(address, shape, strides)\n"
    for depth, name in enumerate(names):
        text += " " * (depth + 1) + f"for {name} in range(x.shape[{depth}]):\n"
    text += " " * (ndim + 1) + steps + "\n return x.size, x.ndim, x.itemsize, len(x), x.strides\n"
    scope = {"view": viewer(half, ndim, layout)}
    exec(text, scope)
    whole = np.arange(1, 1 + np.prod(shape) * (1 if layout == "C" else 2), dtype=np.float32)
    stored = expected_bits(half, whole)
    array = stored.reshape(shape) if layout == "C" else stored.reshape(*shape[:-1], -1)[..., ::-2]
    want = array.view(np.float16) if half == "float16" else array
    want = dtypes.from_storage(want, dtypes.as_dtype(half)).astype(np.float32)
    expected = want + want.flat[-1]
    expected.flat[-1] = want.flat[-1] * 2
    got = njit(scope["add"])(array.ctypes.data, array.shape, array.strides)
    assert got == (array.size, ndim, 2, shape[0], array.strides)
    rounded = expected_bits(half, expected).reshape(shape)
    np.testing.assert_array_equal(array, rounded)


@pytest.mark.parametrize("half", HALVES)
def test_unsigned_and_narrow_indices(half):
    view = viewer(half, 1, "C")

    @njit
    def read(address, i):
        return view(address, (4,), (2,))[i]

    stored = expected_bits(half, np.array([1, 2, 3, 4], np.float32))
    for i in (np.uint8(2), np.uint64(2), np.int16(2), np.int32(-2), 2):
        assert read(stored.ctypes.data, i) == 3


@pytest.mark.parametrize("half", HALVES)
def test_both_ways_vectorise(half):
    assert_vectorised(reader(half).jitted, (types.int64, types.int64, types.float32[::1]))
    assert_vectorised(writer(half).jitted, (types.int64, types.int64, types.float32[::1]))


def assert_vectorised(function, signature):
    function.compile(signature)
    text = function.inspect_llvm(signature)
    assert " x i16>" in text or " x half>" in text


def add_third_kernel(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i, 0] = x[i] + type(x[i])(1 / 3)
        y[i, 1] = True


@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
@pytest.mark.parametrize("half", HALVES)
def test_ptx_converts_in_hardware_and_without_float64(half, cc):
    signature = types.void(HalfArray(half, 1, "C"), HalfArray(half, 2, "A"))
    ptx, _ = cuda.compile_ptx(add_third_kernel, signature, cc=cc)
    assert ".f64" not in ptx
    assert ("cvt.rn.f16.f32" if half == "float16" else "cvt.rn.bf16.f32") in ptx


def test_wrong_number_of_indices_is_a_typing_error():
    def kernel(x):
        x[0, 0] = 1.0

    with pytest.raises(Exception, match="setitem"):
        cuda.compile_ptx(kernel, types.void(HalfArray("float16", 1, "C")), cc=(8, 0))

"""Threads that are interpreted one by one give what the compiled executor gives."""

import numpy as np
import pytest
from cpu_executor import fuzz, kernels
from cpu_executor.writer import Writer
from numba import cuda, float32, float64, int8, int32, uint32

from blutrain.device import cpu
from blutrain.device.cpu.interpret import KernelFault, Observer, interpret
from blutrain.errors import KernelError

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


# Where blocks meet -------------------------------------------------------------------------------


@cuda.jit
def sum_over_grid(x, part, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        total = float32(0)
        for k in range(cuda.blockDim.x):
            total += x[i + k]
        part[cuda.blockIdx.x] = total
    grid.sync()
    if i == 0:
        total = float32(0)
        for b in range(cuda.gridDim.x):
            total += part[b]
        out[0] = total


@cuda.jit
def not_all_blocks(x):
    if cuda.blockIdx.x < 2:
        cuda.cg.this_grid().sync()
    x[cuda.blockIdx.x] = 1


@pytest.mark.parametrize("order", ORDERS)
def test_grid_barrier(order):
    x, part, out = np.arange(96, dtype=np.float32), zeros(3), zeros(1)
    cpu.run(sum_over_grid, 3, 32, x, part, out, debug=True, order=order)
    assert out[0] == x.sum()


def test_grid_barrier_that_a_block_misses():
    with pytest.raises(KernelFault, match="waits for the grid, but block 2 has ended") as caught:
        interpret(not_all_blocks, 3, 32, zeros(3))
    assert caught.value.kind == "deadlock"


# Observers ---------------------------------------------------------------------------------------


class Everything(Observer):
    """Notes all that it is told."""

    def begin(self, launch):
        self.launch, self.told = launch, []

    def block_begin(self, block):
        self.told.append(("begin", block))

    def block_end(self, block):
        self.told.append(("end", block))

    def allocate(self, memory, place):
        self.told.append(("allocate", memory.space, memory.name, memory.size))

    def access(self, site, kind, array, index, offset, place, value):
        self.told.append((kind, site.source, array.name, index, offset, tuple(place), value))

    def barrier(self, what, sites, places):
        self.told.append((what, len(places)))

    def warp(self, what, mask, sites, places):
        self.told.append((what, mask, [p.thread for p in places]))

    def fence(self, site, place):
        self.told.append(("fence", tuple(place)))

    def branch(self, site, place, taken):
        self.told.append(("branch", site.source, place.thread, taken))


@cuda.jit
def of_everything(x):
    s = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    s[t] = x[t, 1]
    cuda.syncthreads()
    if t == 0:
        cuda.threadfence()
        cuda.atomic.add(x, (t, 0), s[1])
    cuda.syncwarp(3)


def test_observer_is_told_of_everything():
    seen = Everything()
    interpret(of_everything, 1, 2, np.array([[1, 2], [3, 4]], np.float32), observers=[seen])
    assert tuple(seen.launch) == ("of_everything", (1, 1, 1), (2, 1, 1))
    assert seen.told == [
        ("begin", 0),
        ("allocate", "shared", "s", 8),
        ("load", "x[t, 1]", "x", (0, 1), 4, (0, 0), None),
        ("store", "s[t]", "s", 0, 0, (0, 0), 2.0),
        ("load", "x[t, 1]", "x", (1, 1), 12, (0, 1), None),
        ("store", "s[t]", "s", 1, 4, (0, 1), 4.0),
        ("syncthreads", 2),
        ("branch", "t == 0", 0, True),
        ("fence", (0, 0)),
        ("load", "s[1]", "s", 1, 4, (0, 0), None),
        ("atomic", "cuda.atomic.add(x, (t, 0), s[1])", "x", (0, 0), 0, (0, 0), None),
        ("branch", "t == 0", 1, False),
        ("syncwarp", 3, [0, 1]),
        ("end", 0),
    ]


# Numbers -----------------------------------------------------------------------------------------


@cuda.jit
def of_integers(x, y):
    """Where Python's integers and Numba's part."""
    a, b = x[0], x[1]
    y[0] = a * b
    y[1] = (a * b) % 1000003
    y[2] = int32(a)
    y[3] = (uint32(a) * uint32(b)) >> 7
    y[4] = ~uint32(a)
    y[5] = uint32(3) - uint32(5)
    y[6] = -7 // 2
    y[7] = -7 % 3
    y[8] = a << 40
    y[9] = uint32(a) & 255
    y[10] = int8(200)


def test_integers_are_numbas():
    x = np.array([(1 << 40) + 12345, (1 << 33) - 77], np.int64)
    want, got = zeros(11, kind=np.int64), zeros(11, kind=np.int64)
    cpu.run(of_integers, 1, 1, x, want)
    interpret(of_integers, 1, 1, x, got)
    assert got.tolist() == want.tolist()


# Bad input ---------------------------------------------------------------------------------------


@cuda.jit
def divides(x):
    x[0] = 1 // x[1]


@pytest.mark.parametrize("call, text", [
    (lambda: interpret(kernels.typed, 1, 32, zeros(3)), "takes 2 arguments (x, y), got 1"),
    (lambda: interpret(kernels.typed, 0, 32, zeros(3), zeros(3)), "grid"),
    (lambda: interpret(kernels.typed, 1, 32, zeros(3), zeros(3), order="random"), "order must be"),
    (lambda: interpret(divides, 1, 1, zeros(2, kind=np.int64)), "`x[0] = 1 // x[1]`"),
    (lambda: interpret(lambda x, y: x, 1, 1, zeros(1), zeros(1)), "lambda"),
])  # fmt: skip
def test_bad_input(call, text):
    with pytest.raises(KernelError) as caught:
        call()
    assert text in str(caught.value)

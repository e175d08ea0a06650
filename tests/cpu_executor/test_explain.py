"""bt.explain: what it counts of kernels whose costs are known, and what it says of bad ones."""

import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, float64, int32

import blutrain as bt
from blutrain.device.cpu.explain.costs import (
    Atomics,
    Branches,
    GlobalTraffic,
    SharedTraffic,
)
from blutrain.device.cuda import ptxas
from blutrain.device.pointer import array_at
from blutrain.errors import DeviceError, DTypeError, KernelError

N = 1024
FULL = 0xFFFFFFFF


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@cuda.jit
def copy_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i]


@cuda.jit
def strided_kernel(x, y, stride):
    i = cuda.grid(1)
    y[i] = x[stride * i]


@cuda.jit
def transpose_kernel(x, y):
    tile = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(0, 32, 8):
        tile[ty + k, tx] = x[ty + k, tx]
    cuda.syncthreads()
    for k in range(0, 32, 8):
        y[ty + k, tx] = tile[tx, ty + k]


@cuda.jit
def padded_kernel(x, y):
    tile = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(0, 32, 8):
        tile[ty + k, tx] = x[ty + k, tx]
    cuda.syncthreads()
    for k in range(0, 32, 8):
        y[ty + k, tx] = tile[tx, ty + k]


@cuda.jit
def divergent_kernel(x):
    i = cuda.threadIdx.x
    if i % 2 == 0:
        x[i] = 1
    if i // 32 == 0:
        x[i] = 2
    k = 0
    while k < i % 4:
        k += 1


@cuda.jit(device=True)
def first_multiple(i):
    for k in range(10):
        if (i + k) % 4 == 0:
            return k
    return 0


@cuda.jit
def turns_kernel(y):
    i = cuda.threadIdx.x
    for k in range(4):
        if (i + k) % 2 == 0:
            y[k, i] = 1
        for j in range(10):
            if j == i % 4:
                break
        y[4 + k, i] = 2
        found = first_multiple(i)
        y[k if found < 10 else 0, i] = 3


@cuda.jit
def straight_kernel(y):
    i = cuda.threadIdx.x
    found = first_multiple(i)
    y[i] = found
    k = 0
    while True:
        if k == i % 3:
            break
        k += 1
    y[32 + i] = k


@cuda.jit
def histogram_kernel(x, counts):
    s = cuda.shared.array(4, int32)
    i = cuda.grid(1)
    cuda.atomic.add(s, i % 4, 1)
    cuda.atomic.add(counts, x[i], 1)


@cuda.jit(device=True)
def load_twice(x, i):
    return x[i] + x[i + 1]


@cuda.jit
def calling_kernel(x, y):
    i = cuda.grid(1)
    y[i] = load_twice(x, i)


@cuda.jit
def lanes_kernel(y):
    t = cuda.threadIdx.x
    y[8 * cuda.shfl_sync(FULL, t, 3)] = 0
    y[8 * cuda.shfl_xor_sync(FULL, t, 5)] = 1
    y[8 * cuda.shfl_up_sync(FULL, t, 2)] = 2
    y[8 * cuda.shfl_down_sync(FULL, t, 4)] = 3
    y[8 * cuda.popc(cuda.ballot_sync(FULL, t > 6)) + t] = 4
    y[32 if cuda.any_sync(FULL, t == 40) else 8 * t] = 5
    y[8 * t if cuda.all_sync(FULL, t < 32) else 0] = 6


@cuda.jit(device=True)
def warp_sum(v):
    for k in (16, 8, 4, 2, 1):
        v += cuda.shfl_xor_sync(FULL, v, k)
    return v


@cuda.jit
def block_sum_kernel(x, y, factor):
    partial = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    total = warp_sum(x[cuda.grid(1)])
    if t % 32 == 0:
        partial[t // 32] = total
    n = cuda.syncthreads_count(1 if x[cuda.grid(1)] > 0 else 0)
    if t < 32:
        total = warp_sum(partial[t] if t < cuda.blockDim.x // 32 else float32(0))
        if t == 0:
            y[cuda.blockIdx.x] = total * factor + n


@cuda.jit
def cooperative_kernel(x):
    grid = cuda.cg.this_grid()
    x[cuda.blockIdx.x] = 1
    grid.sync()
    x[cuda.blockIdx.x] = x[3] + 1


@cuda.jit
def indexed_kernel(y, places):
    mine = cuda.local.array(64, float64)
    i = cuda.grid(1)
    for k in range(64):
        mine[k] = y[i] * k
    y[i] = mine[places[i]]


WIDTH = 32


@cuda.jit
def wide_kernel(x):
    tile = cuda.shared.array((1, WIDTH + 1), float32)
    tile[0, cuda.threadIdx.x] = 1
    x[cuda.threadIdx.x] = tile[0, cuda.threadIdx.x]


@cuda.jit
def local_kernel(y):
    mine = cuda.local.array(4, float32)
    for k in range(4):
        mine[k] = k
    y[cuda.grid(1)] = mine[3]


@cuda.jit
def half_kernel(x, y):
    y[cuda.grid(1)] = x[cuda.grid(1)]


@cuda.jit
def through_kernel(x, y, z):
    i = cuda.grid(1)
    x[i] = 8 * i
    z[y[i]] = 1


@cuda.jit
def stuck_kernel(x):
    if cuda.threadIdx.x < 32:
        cuda.syncthreads()
    else:
        cuda.syncthreads_count(1)


@cuda.jit
def outside_kernel(x):
    x[cuda.grid(1) + 1] = 0


@cuda.jit
def corners_kernel(x, y):
    i = cuda.grid(1)
    y[i] = math.log(x[i]) / x[i] + math.exp(x[i] * 1000)


@cuda.jit
def wrong_kernel(x):
    x[0] = int("7" + x[1])


@cuda.jit
def unknown_kernel(x):
    x[0] = cuda.vectorized_nonsense(1)


@cuda.jit(device=True)
def from_address(table, like):
    return array_at(table[0], 0, 4, like)


@cuda.jit
def address_kernel(table, like):
    from_address(table, like)[cuda.grid(1)] = 0


# What is counted ---------------------------------------------------------------------------------


def test_coalesced_copy():
    seen = bt.explain(copy_kernel, 4, 256, zeros(N), zeros(N))
    whole = GlobalTraffic(requests=8, bytes_asked=1024, sectors=32, least_sectors=32)
    assert seen.total.global_loads == seen.total.global_stores == whole
    assert seen.total.branches == Branches(executed=8, divergent=0, lanes=256)
    assert seen.grid_total.global_loads == whole * 4
    assert seen.line("y[i] = x[i]").cost.global_loads == whole
    assert not seen.line("cuda.grid").cost
    assert "!" not in str(seen)


@pytest.mark.parametrize(("stride", "sectors"), [(2, 64), (8, 256), (32, 256)])
def test_strided_copy(stride, sectors):
    seen = bt.explain(strided_kernel, 4, 256, zeros(N * stride), zeros(N), stride)
    assert seen.total.global_loads == GlobalTraffic(8, 1024, sectors, 32)
    assert seen.total.global_loads.efficiency == 32 / sectors
    assert "let neighbouring threads load neighbouring elements" in str(seen)


@pytest.mark.parametrize(("kernel", "ways"), [(transpose_kernel, 32), (padded_kernel, 1)])
def test_bank_conflicts_of_a_transpose(kernel, ways):
    seen = bt.explain(kernel, 1, (32, 8), zeros(32, 32), zeros(32, 32))
    assert seen.total.shared_stores == SharedTraffic(32, 4096, 32, 32)
    assert seen.total.shared_loads == SharedTraffic(32, 4096, 32 * ways, 32)
    assert seen.total.barriers == 8
    assert ("32-way bank conflicts" in str(seen)) == (ways == 32)
    assert seen.resources.shared == 4 * 32 * (32 if ways == 32 else 33)


def test_a_view_is_where_it_would_be_on_the_device():
    x = zeros(N + 1)
    assert bt.explain(copy_kernel, 4, 256, x[1:], zeros(N)).total.global_loads.sectors == 8 * 5
    assert bt.explain(copy_kernel, 4, 256, x[:-1], zeros(N)).total.global_loads.sectors == 8 * 4
    shifted = bt.explain(copy_kernel, 4, 256, x[1:], zeros(N))
    assert "let rows begin at multiples of 32 bytes" in str(shifted)
    wide = zeros(N, 2)
    assert bt.explain(copy_kernel, 4, 256, wide[:, 1], zeros(N)).total.global_loads.sectors == 64


def test_divergence():
    seen = bt.explain(divergent_kernel, 1, 64, zeros(64))
    assert seen.line("i % 2").cost.branches == Branches(executed=2, divergent=2, lanes=64)
    assert seen.line("i // 32").cost.branches == Branches(executed=2, divergent=0, lanes=64)
    # Lanes leave after 0, 1, 2 and 3 turns: 32, 24, 16 and 8 come to the question.
    assert seen.line("while").cost.branches == Branches(8, divergent=6, lanes=2 * 80)
    assert seen.line("= 1").cost.global_stores.bytes_asked == 32 * 4
    assert "100% of the warps that come here go both ways" in str(seen)


def test_lanes_meet_in_the_same_turn_of_a_loop():
    seen = bt.explain(turns_kernel, 1, 32, zeros(8, 32))
    # In each of four turns half of the lanes store, to 16 places of one row.
    assert seen.line("= 1").cost.global_stores == GlobalTraffic(4, 256, 16, 8)
    # The second loop ends after 0 to 3 turns; behind it all lanes are together again.
    assert seen.line("= 2").cost.global_stores == GlobalTraffic(4, 4 * 128, 16, 16)
    assert seen.line("= 3").cost.global_stores == GlobalTraffic(4, 4 * 128, 16, 16)
    # Behind loops that lanes left in different turns: by `return` in a function, by `break`.
    seen = bt.explain(straight_kernel, 1, 32, zeros(64))
    for store in ("= found", "= k"):
        assert seen.line(store).cost.global_stores == GlobalTraffic(1, 128, 4, 4)


def test_atomics():
    x, counts = zeros(N, dtype=np.int32), zeros(8, dtype=np.int32)
    seen = bt.explain(histogram_kernel, 4, 256, x, counts)
    assert seen.total.shared_atomics == Atomics(requests=8, lanes=256, turns=8 * 8)
    assert seen.total.global_atomics == Atomics(requests=8, lanes=256, turns=8 * 32)
    assert "32 lanes of a warp meet at one address" in str(seen)
    x[:] = np.arange(N) % 8
    assert bt.explain(histogram_kernel, 4, 256, x, counts).total.global_atomics.contention == 4


def test_lines_of_device_functions():
    seen = bt.explain(calling_kernel, 1, 32, zeros(33), zeros(32))
    line = seen.line("x[i] + x[i + 1]")
    assert line.cost.global_loads == GlobalTraffic(2, 256, 4 + 5, 8)
    assert seen.lines[-1] is line  # behind the kernel's own
    assert seen.total.global_stores.requests == 1


def test_threads_exchange_values():
    x, y = np.arange(1, N + 1, dtype=np.float32), zeros(4)
    seen = bt.explain(block_sum_kernel, 4, 256, x, y, 0.5, shared=32, blocks="all")
    assert not y.any()  # the arguments are as they were
    assert len(seen.blocks) == 4
    assert seen.total.shared_stores.requests == 8
    assert seen.total.barriers == 8
    assert seen.line("y[cuda.blockIdx.x]").cost.global_stores == GlobalTraffic(1, 4, 1, 1)
    assert seen.occupancy.blocks == 8


def test_lanes_exchange_values():
    seen = bt.explain(lanes_kernel, 1, 32, zeros(256))
    found = [seen.line(f"] = {k}").cost.global_stores.sectors for k in range(7)]
    # Of the lanes that take another's value, these many take different ones.
    assert found == [1, 32, 30, 28, 4, 32, 32]


def test_the_blocks_that_are_executed():
    x, y = zeros(N), zeros(1000)
    assert bt.explain(copy_kernel, 4, 256, x, y).blocks == [(1, 0, 0)]
    last = bt.explain(copy_kernel, 4, 256, x, y, blocks=[3, (3, 0)])
    assert last.blocks == [(3, 0, 0)]
    assert last.total.global_stores.bytes_asked == 4 * (1000 - 768)
    every = bt.explain(copy_kernel, 4, 256, x, y, blocks="all")
    assert every.grid_total.global_stores == GlobalTraffic(32, 4000, 125, 125)
    assert every.total.branches.divergent == 0.25  # one warp of one block of four


def test_a_barrier_of_the_grid():
    for blocks in (None, [0, 3], "all"):
        seen = bt.explain(cooperative_kernel, 4, 64, zeros(4), blocks=blocks)
        assert seen.total.barriers == 2
        assert seen.total.global_loads == GlobalTraffic(2, 256, 2, 8)
    # Its barrier is in a library that is linked when the kernel is loaded.
    assert "not known: cooperative_kernel: ptxas must accept the PTX" in str(seen)


def test_advice_on_resources():
    text = str(bt.explain(indexed_kernel, 1, 32, zeros(32), zeros(32, dtype=np.int32)))
    assert "bytes a thread lie in local memory" in text
    assert "computes with float64" in text
    text = str(bt.explain(copy_kernel, 4, 32, zeros(N), zeros(N), shared=100 << 10))
    assert "2 of 64 warps are resident, limited by shared memory" in text


def test_what_does_not_compile_for_a_gpu():
    with pytest.raises(KernelError, match="wide_kernel: the kernel must compile for the GPU"):
        bt.explain(wide_kernel, 1, 32, zeros(32))


def test_local_arrays_are_no_traffic():
    seen = bt.explain(local_kernel, 1, 32, zeros(32))
    assert seen.total.global_stores.requests == 1
    assert not seen.total.shared_loads
    assert not seen.total.global_loads


def test_tensors_and_halves():
    seen = bt.explain(copy_kernel, 4, 256, bt.zeros((N,)), bt.zeros((N,)))
    assert seen.total.global_loads.sectors == 32
    for x in (zeros(N, dtype=np.float16), bt.zeros((N,), "float16"), bt.zeros((N,), "bfloat16")):
        seen = bt.explain(half_kernel, 4, 256, x, zeros(N))
        assert seen.total.global_loads.sectors == 16
        assert seen.total.global_stores.sectors == 32
        assert bt.explain(half_kernel, 4, 256, zeros(N), x).total.global_stores.sectors == 16


def test_a_tensor_is_read_where_it_lies():
    t = bt.from_numpy(np.arange(2 * N, dtype=np.int32) % 2).reshape(N, 2)
    t = t[1:, 1]  # ones, from the fourth on
    counts = bt.zeros((8,), "int32")
    seen = bt.explain(histogram_kernel, 1, 256, t, counts)
    assert seen.total.global_atomics.contention == 32
    assert seen.total.global_loads.sectors == 8 * 9
    w = bt.ones((N,)).requires_grad_()
    assert bt.explain(copy_kernel, 4, 256, w, zeros(N)).total.global_loads.sectors == 32
    assert bt.explain(copy_kernel, 1, 32, w[1:], w).total.global_loads.sectors == 5
    assert float(w.detach().sum().item()) == N


def test_two_names_of_one_memory():
    for same in (zeros(32, dtype=np.int32), bt.zeros((32,), "int32")):
        seen = bt.explain(through_kernel, 1, 32, same, same, zeros(256))
        assert seen.line("z[y[i]]").cost.global_stores.sectors == 32


def test_numbers_beyond_a_functions_domain():
    for value in (0, -1, 1, 1000):
        x = np.full(32, value, np.float32)
        assert bt.explain(corners_kernel, 1, 32, x, zeros(32)).total.global_stores.requests == 1


def test_the_text_is_the_source_with_figures():
    text = str(bt.explain(transpose_kernel, 1, (32, 8), zeros(32, 32), zeros(32, 32)))
    for line in (
        "transpose_kernel: grid (1, 1, 1), block (32, 8, 1)",
        "|         y[ty + k, tx] = tile[tx, ty + k]",
        "global stores   32 requests, 4.0 KiB asked, 4.0 KiB moved in 128 sectors (100%)",
        "shared loads    32 requests, 1,024 wavefronts, 992 bank conflicts",
        "of shared memory a block",
        "occupancy:",
    ):
        assert line in text, text


# Resources ---------------------------------------------------------------------------------------


def test_resources_of_an_architecture():
    on_90 = bt.explain(copy_kernel, 4, 1024, zeros(N), zeros(N))
    on_86 = bt.explain(copy_kernel, 4, 1024, zeros(N), zeros(N), architecture="sm_86")
    assert on_90.resources.registers > 0
    assert on_90.resources.spill_stores == 0
    assert (on_90.occupancy.blocks, on_86.occupancy.blocks) == (2, 1)
    assert on_86.occupancy.fraction == 32 / 48


def test_without_an_assembler_the_rest_is_counted(monkeypatch):
    def assemble(*arguments):
        raise DeviceError("ptxas: no assembler was found; install one")

    monkeypatch.setattr(ptxas, "assemble", assemble)
    seen = bt.explain(copy_kernel, 4, 256, zeros(N), zeros(N))
    assert seen.resources is None
    assert seen.occupancy is None
    assert seen.total.global_loads.sectors == 32
    assert "registers and occupancy are not known: ptxas: no assembler was found" in str(seen)


# Bad input ---------------------------------------------------------------------------------------

X = zeros(64)


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (
            (copy_kernel, 0, 32, X, X),
            {},
            "copy_kernel: grid must be between 1 and .*launch nothing",
        ),
        ((copy_kernel, 1, 2048, X, X), {}, "copy_kernel: block must be between 1"),
        ((copy_kernel, 1, 32, X), {}, r"kernel copy_kernel: takes 2 arguments \(x, y\), got 1"),
        ((copy_kernel, 2, 32, X, X), {"blocks": [2]}, r"indices within grid \(2, 1, 1\), got 2"),
        ((copy_kernel, 2, 32, X, X), {"blocks": [0.5]}, r"indices within grid .*, got 0.5"),
        ((copy_kernel, 2, 32, X, X), {"blocks": "some"}, r'list of indices or "all", got .some.'),
        ((copy_kernel, 2, 32, X, X), {"blocks": 1}, r'list of indices or "all", got 1'),
        ((copy_kernel, 2, 32, X, X), {"blocks": []}, r"at least one block, got \[\]"),
        ((copy_kernel, 2, 32, X, X), {"architecture": "sm_3"}, "unknown architecture, got sm_3"),
        ((copy_kernel, 2, 32, X, X), {"shared": 1 << 20}, "shared must be at most 232448 bytes"),
        ((outside_kernel, 1, 64, X), {}, r"out of bounds: thread \(63, 0, 0\) of.* x\[64\]"),
        ((stuck_kernel, 1, 64, X), {}, "divergent barrier: thread .0, 0, 0. of block"),
        ((wrong_kernel, 1, 64, X), {}, r"`x\[0\] = int.*failure: thread \(0, 0, 0\).*TypeError"),
        ((unknown_kernel, 1, 64, X), {}, "cuda.vectorized_nonsense"),
    ],
)
def test_bad_input(arguments, options, says):
    with pytest.raises(KernelError, match=says):
        bt.explain(*arguments, **options)
    assert not X.any()


def test_addresses_have_no_copies():
    x = zeros(4)
    table = np.array([x.ctypes.data])
    says = "address_kernel: explain works on copies of the arguments, .*, got array_at"
    with pytest.raises(KernelError, match=says):
        bt.explain(address_kernel, 1, 4, table, x)


def test_bad_arguments():
    with pytest.raises(DTypeError, match="must be a NumPy array or a scalar, got list"):
        bt.explain(copy_kernel, 1, 32, [1.0], X)
    with pytest.raises(KernelError, match="a kernel must be a @cuda.jit function, got int"):
        bt.explain(3, 1, 32, X)


# The guide ---------------------------------------------------------------------------------------

GUIDE = Path(__file__).parents[2] / "docs" / "explain.md"


def blocks_of(text, kind):
    """(first line, text) of each fenced block of a kind."""
    found = re.finditer(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in found]


def counted(text):
    """The lines that do not depend on the compiler's version."""
    return [line for line in text.splitlines() if not line.startswith(("sm_", "occupancy:"))]


def test_the_guide_shows_what_is_printed(tmp_path, capsys):
    text = GUIDE.read_text()
    script = [""] * len(text.splitlines())
    for first, code in blocks_of(text, "python"):
        lines = code.splitlines()
        script[first : first + len(lines)] = lines  # where they stand, for the line numbers
    file = tmp_path / "guide.py"
    file.write_text("\n".join(script))
    runpy.run_path(str(file))
    shown = "".join(output for _, output in blocks_of(text, "text"))
    assert counted(capsys.readouterr().out) == counted(shown)

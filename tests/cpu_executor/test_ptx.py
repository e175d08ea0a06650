"""PTX intrinsics in kernels that run on the CPU, against NumPy."""

import importlib
import pkgutil
import re

import numpy as np
import pytest
from numba import cuda, float32, int32, int64, types

from blutrain.cuda_kernels import ptx
from blutrain.cuda_kernels.ptx import copy, half_pairs, mma
from blutrain.cuda_kernels.ptx.address import global_address, shared_address
from blutrain.cuda_kernels.ptx.barrier import (
    mbarrier_init,
    mbarrier_wait,
    set_registers,
    warpgroup_barrier,
)
from blutrain.cuda_kernels.ptx.instruction import instruction
from blutrain.cuda_kernels.ptx.tma import tma_load
from blutrain.cuda_kernels.ptx.wgmma import wgmma_wait
from blutrain.device import cpu
from blutrain.device.cpu.cache import describe
from blutrain.device.cpu.ptx.instructions import meaning_of
from blutrain.device.cpu.ptx.lanes import of_warp
from blutrain.device.cpu.ptx.parse import NotOnTheCpu, parse
from blutrain.errors import KernelError

mma_tf32, mma_bf16, mma_f16 = mma.mma_tf32, mma.mma_bf16, mma.mma_f16
round_tf32, pack_bf16, pack_f16 = mma.round_tf32, mma.pack_bf16, mma.pack_f16
bits_of = instruction("bits_of", "mov.b32 $0, $1;", "=r,f", int32, (float32,))
float_of = instruction("float_of", "mov.b32 $0, $1;", "=f,r", float32, (int32,))
larger_magnitude = instruction(
    "larger_magnitude", "{ .reg .f32 a; abs.f32 a, $2; max.f32 $0, $1, a; }", "=f,f,f", float32,
    (float32, float32),
)  # fmt: skip
load_quad_if = instruction(
    "load_quad_if",
    "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.f32 $0, 0f3F800000; mov.f32 $1, 0f00000000; "
    "mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; "
    "@p ld.global.v4.f32 {$0, $1, $2, $3}, [$4]; }",
    "=&f,=&f,=&f,=&f,l,r", types.UniTuple(float32, 4), (int64, int32),
)  # fmt: skip
largest_of_warp = instruction(
    "largest_of_warp", "redux.sync.max.s32 $0, $1, 0xffffffff;", "=r,r", int32, (int32,)
)
load_4, load_4_turned = mma.ldmatrix(4), mma.ldmatrix(4, turned=True)
copy_16, copy_4 = copy.cp_async(16), copy.cp_async(4)
commit, wait_0 = copy.cp_async_commit, copy.cp_async_wait(0)
K = 32


@cuda.jit
def product_tf32(
    a,  # (16, K)
    b,  # (K, 8)
    d,  # (16, 8)
):
    """A warp's product of TF32, its sums carried from one instruction to the next."""
    lane = cuda.threadIdx.x & 31
    g, t = lane // 4, lane % 4
    c = (float32(0), float32(0), float32(0), float32(0))
    for k in range(0, K, 8):
        a0, a1 = round_tf32(a[g, k + t]), round_tf32(a[g + 8, k + t])
        a2, a3 = round_tf32(a[g, k + t + 4]), round_tf32(a[g + 8, k + t + 4])
        b0, b1 = round_tf32(b[k + t, g]), round_tf32(b[k + t + 4, g])
        c = mma_tf32(a0, a1, a2, a3, b0, b1, c[0], c[1], c[2], c[3])
    for h in range(2):
        d[g + 8 * h, 2 * t] = c[0] if h == 0 else c[2]
        d[g + 8 * h, 2 * t + 1] = c[1] if h == 0 else c[3]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def rounded_tf32(x):
    bits = x.view(np.uint32).astype(np.uint64) + 0x1000
    return (bits & 0xFFFFE000).astype(np.uint32).view(np.float32)


def rounded_bf16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("block", [32, (32, 2), 64])
def test_mma_tf32(rng, block):
    a, b = rng.standard_normal((16, K), np.float32), rng.standard_normal((K, 8), np.float32)
    d = np.full((16, 8), np.nan, np.float32)
    cpu.run(product_tf32, 1, block, a, b, d)
    exact = rounded_tf32(a).astype(np.float64) @ rounded_tf32(b)
    np.testing.assert_allclose(d, exact, rtol=1e-6, atol=1e-6)


def halves_kernel(pack, multiply):
    @cuda.jit
    def product(
        a,  # (16, 16)
        b,  # (16, 8)
        d,  # (16, 8)
    ):
        lane = cuda.threadIdx.x
        g, t = lane // 4, lane % 4
        a0 = pack(a[g, 2 * t], a[g, 2 * t + 1])
        a1 = pack(a[g + 8, 2 * t], a[g + 8, 2 * t + 1])
        a2 = pack(a[g, 2 * t + 8], a[g, 2 * t + 9])
        a3 = pack(a[g + 8, 2 * t + 8], a[g + 8, 2 * t + 9])
        b0 = pack(b[2 * t, g], b[2 * t + 1, g])
        b1 = pack(b[2 * t + 8, g], b[2 * t + 9, g])
        x, y, z, w = multiply(a0, a1, a2, a3, b0, b1, d[g, 2 * t], d[g, 2 * t + 1],
                              d[g + 8, 2 * t], d[g + 8, 2 * t + 1])  # fmt: skip
        d[g, 2 * t], d[g, 2 * t + 1] = x, y
        d[g + 8, 2 * t], d[g + 8, 2 * t + 1] = z, w

    return product


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_mma_of_halves(rng, kind):
    a, b = rng.standard_normal((16, 16), np.float32), rng.standard_normal((16, 8), np.float32)
    c = rng.standard_normal((16, 8), np.float32)
    pack, multiply = (pack_bf16, mma_bf16) if kind == "bf16" else (pack_f16, mma_f16)
    rounded = rounded_bf16 if kind == "bf16" else lambda x: x.astype(np.float16).astype(np.float32)
    d = c.copy()
    cpu.run(halves_kernel(pack, multiply), 1, 32, a, b, d)
    exact = c + rounded(a).astype(np.float64) @ rounded(b)
    np.testing.assert_allclose(d, exact, rtol=1e-6, atol=1e-6)


@cuda.jit
def through_ldmatrix(
    x,  # (32, 4) int32: four matrices of 8 rows of 16 bytes
    y,  # (32, 4) int32
    z,  # (32, 4) int32
):
    """Copied to shared memory by cp.async, and read from it as it is and turned."""
    s = cuda.shared.array(32 * 4, int32)
    t = cuda.threadIdx.x
    source = global_address(x) + 16 * t
    copy_16(shared_address(s, 4 * t), source, 16)
    commit()
    wait_0()
    cuda.syncthreads()
    place = shared_address(s, 4 * t)
    plain = load_4(place)
    turned = load_4_turned(place)
    y[t, 0], y[t, 1], y[t, 2], y[t, 3] = plain[0], plain[1], plain[2], plain[3]
    z[t, 0], z[t, 1], z[t, 2], z[t, 3] = turned


def test_ldmatrix():
    halves = np.arange(256, dtype=np.uint16)  # (matrix, row, column) of 4 x 8 x 8
    x = halves.view(np.int32).reshape(32, 4)
    y, z = np.zeros_like(x), np.zeros_like(x)
    cpu.run(through_ldmatrix, 1, 32, x, y, z)
    matrices = halves.reshape(4, 8, 8)
    for got, m in ((y, matrices), (z, matrices.transpose(0, 2, 1))):
        pairs = np.ascontiguousarray(m).view(np.int32).reshape(4, 32)  # [matrix, 4 g + t]
        np.testing.assert_array_equal(got, pairs.T)


@cuda.jit
def partial_copies(x, y, n):
    """The first n bytes of each four words, the rest zeros."""
    s = cuda.shared.array(64 * 4, float32)
    t = cuda.threadIdx.x
    for k in range(4):
        s[4 * t + k] = 7
    copy_16(shared_address(s, 4 * t), global_address(x) + 16 * t, n)
    wait_0()
    a, b, c, d = copy.load_shared_quad(shared_address(s, 4 * t))
    copy.store_shared_quad(shared_address(s, 4 * t), b, a, d, c)
    for k in range(4):
        y[4 * t + k] = s[4 * t + k]


@pytest.mark.parametrize("n", [0, 4, 8, 16])
def test_copies_fill_with_zeros(rng, n):
    x = rng.standard_normal(256, np.float32)
    y = np.full(256, np.nan, np.float32)
    cpu.run(partial_copies, 1, 64, x, y, np.int32(n))
    expected = x.reshape(-1, 4).copy()
    expected[:, n // 4 :] = 0
    np.testing.assert_array_equal(y, expected[:, [1, 0, 3, 2]].ravel())


@cuda.jit
def conversions(
    x,  # (n,)
    y,  # (8, n) int32
):
    i = cuda.grid(1)
    y[0, i] = round_tf32(x[i])
    y[1, i] = pack_bf16(x[i], x[i] * float32(0.1))
    y[2, i] = pack_f16(x[i], x[i] * float32(0.1))
    y[3, i] = bits_of(half_pairs.low_of_f16(y[2, i]))
    y[4, i] = bits_of(half_pairs.high_of_bf16(y[1, i]))
    y[5, i] = bits_of(larger_magnitude(float_of(int32(0x3F800000)), x[i]))
    y[6, i] = mma.permute_bytes(y[0, i], y[1, i], int32(0x7610))
    y[7, i] = bits_of(mma.exp2_approx(x[i]))


def test_conversions(rng):
    x = np.concatenate([rng.standard_normal(60, np.float32),
                        np.float32([np.inf, -np.inf, np.nan, 0])])  # fmt: skip
    y = np.zeros((8, 64), np.int32)
    cpu.run(conversions, 2, 32, x, y)
    tenth = x * np.float32(0.1)
    some = slice(60)
    np.testing.assert_array_equal(y[0, some].view(np.float32), rounded_tf32(x)[some])
    assert np.isinf(y[0, 60:62].view(np.float32)).all() and np.isnan(y[0, 62:63].view(np.float32))
    low, high = (y[1] << 16).view(np.float32), (y[1] & -65536).view(np.float32)
    np.testing.assert_array_equal(low[some], rounded_bf16(x)[some])
    np.testing.assert_array_equal(high[some], rounded_bf16(tenth)[some])
    halves = y[2].view(np.float16).reshape(64, 2)
    np.testing.assert_array_equal(halves, np.stack([x, tenth], 1).astype(np.float16))
    np.testing.assert_array_equal(y[3].view(np.float32), x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(y[4, some].view(np.float32), rounded_bf16(tenth)[some])
    np.testing.assert_array_equal(y[5].view(np.float32), np.fmax(1, np.abs(x)))
    np.testing.assert_array_equal(y[6], (y[0] & 0xFFFF) | (y[1] & -65536))
    np.testing.assert_allclose(y[7].view(np.float32), np.exp2(x), rtol=3e-7)


@cuda.jit
def guarded(x, y):
    t = cuda.threadIdx.x
    place = global_address(x) + 16 * (t // 2)
    a, b, c, d = load_quad_if(place, int32(t % 2))
    y[t] = a + b + c + d
    y[32 + t] = largest_of_warp(int32((t * 7) % 32 - 40))


def test_guards_and_redux():
    x, y = np.arange(64, dtype=np.float32), np.full(64, np.nan, np.float32)
    cpu.run(guarded, 1, 32, x, y)
    sums = np.repeat(x.reshape(16, 4).sum(1), 2)
    np.testing.assert_array_equal(y[:32], np.where(np.arange(32) % 2, sums, 1))
    assert (y[32:] == -9).all()


# Refused -----------------------------------------------------------------------------------------

registers_40, wait = set_registers(40, grow=False), wgmma_wait(0)
skips = instruction(
    "skips", "{ mov.b32 $0, $1; bra done; add.s32 $0, $0, 1; done: }", "=r,r", int32, (int32,)
)
unheard_of = instruction("unheard_of", "frobnicate.b32 $0, $1;", "=r,r", int32, (int32,))


@cuda.jit
def warpgroups(x):
    wait()


@cuda.jit
def copy_engine(x):
    tma_load(int32(0), 0, int32(0), int32(0), int32(0), int32(0))


@cuda.jit
def phases(x):
    mbarrier_init(int32(0), int32(1))


@cuda.jit
def waits(x):
    mbarrier_wait(int32(0), int32(1))


@cuda.jit
def jumps(x):
    x[0] = skips(int32(1))


@cuda.jit
def budgets(x):
    registers_40()


@cuda.jit
def some_threads(x):
    warpgroup_barrier(int32(1))


@cuda.jit
def unknown_instruction(x):
    x[0] = unheard_of(int32(1))


REFUSED = {
    warpgroups: r"`wgmma.wait_group.*`: it is a product of a warpgroup",
    copy_engine: r"`cp.async.bulk.tensor.3d.*`: it hands a box to the copy engine \(TMA\)",
    phases: r"`mbarrier.init.*`: threads wait there for others",
    waits: r"`mbarrier.try_wait.*`: threads wait there for others",
    jumps: r"`bra`: it is a jump",
    budgets: r"`setmaxnreg.dec.*`: it moves registers",
    some_threads: r"`bar.sync`: only some threads of the block meet there",
    unknown_instruction: r"`frobnicate.b32`; run it on a GPU",
}


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.py_func.__name__)
def test_refused(kernel):
    where = (
        rf"kernel {kernel.py_func.__name__} \(.*test_ptx.py:\d+\): an instruction has no meaning"
    )
    with pytest.raises(KernelError, match=f"{where} on the CPU, {REFUSED[kernel]}"):
        cpu.run(kernel, 1, 32, np.zeros(64, np.float32))


def test_instructions_of_one_name_are_kept_apart():
    described = {describe(f) for f in (mma_bf16, mma_f16, mma_tf32, load_4, load_4_turned)}
    lanes = {describe(of_warp(f)) for f in (mma_bf16, mma_f16, mma_tf32, load_4, load_4_turned)}
    assert len(described) == len(lanes) == 5
    assert of_warp(round_tf32) is None


def all_instructions():
    for module in pkgutil.iter_modules(ptx.__path__):
        members = vars(importlib.import_module(f"{ptx.__name__}.{module.name}"))
        yield from ((n, f) for n, f in members.items() if hasattr(f, "ptx"))


def test_every_instruction_has_a_meaning_or_a_reason_for_none():
    known, refused = set(), {}
    for name, function in all_instructions():
        if of_warp(function) is not None:
            known.add(name)
            continue
        try:
            for statement in parse(function.ptx[0])[1]:
                meaning_of(statement)
            known.add(name)
        except NotOnTheCpu as error:
            refused[name] = str(error)
    assert {"mma_tf32", "round_tf32", "pack_bf16", "load_shared_quad"} <= known
    assert {"tma_load", "mbarrier_wait", "warpgroup_barrier"} <= set(refused)
    assert [r for r in refused.items() if not re.match(r"`[\w.:]+`: [a-z]", r[1])] == []

"""Compiling for GPUs that are not there: the cache on disk, its keys, the assembler's report."""

import math

import numpy as np
import pytest
from numba import cuda, float32, float64, int64, types
from numba.cuda.extending import intrinsic

from blutrain.device.cuda import compile as compiling
from blutrain.device.cuda.compile import Ptx, compile_kernel
from blutrain.device.cuda.fingerprint import fingerprint
from blutrain.device.cuda.ptxas import assemble, check, uses_float64
from blutrain.device.half import HalfArray
from blutrain.errors import KernelError

ARCHITECTURES = [(8, 0), (9, 0), (9, 0, "a")]
WIDTH = 128
ADD_ONE = "kernel(x):\n    i = cuda.grid(1)\n    if i < x.size:\n        x[i] += 1\n"


@cuda.jit(device=True)
def _square(x):
    return x * x


@cuda.jit
def square_kernel(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = _square(x[i])


@cuda.jit
def shared_kernel(x):
    shared = cuda.shared.array(WIDTH, float32)
    i = cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncthreads()
    x[i] = shared[WIDTH - 1 - i]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLUTRAIN_CACHE", str(tmp_path))
    return tmp_path / "ptx"


@pytest.fixture
def compilations(monkeypatch):
    """Counts how often Numba really compiles."""
    names = []
    real = compiling._compile

    def counting(kernel, *rest):
        names.append(kernel.__name__)
        return real(kernel, *rest)

    monkeypatch.setattr(compiling, "_compile", counting)
    return names


def kernel_of(body: str, **names):
    scope = {"cuda": cuda, "math": math, **names}
    exec("def " + body, scope)
    return cuda.jit(scope["kernel"])


@pytest.mark.parametrize("cc", ARCHITECTURES)
def test_kernels_with_device_functions_compile_and_assemble(cache, cc):
    halves = HalfArray("float16", 1, "C")
    for kinds in [(float32[::1], float32[::1]), (halves, halves), (halves, types.float64[::1])]:
        seen = check(square_kernel, kinds, cc)
        assert 0 < seen.registers < 40
        assert (seen.spill_stores, seen.spill_loads, seen.stack, seen.shared) == (0, 0, 0, 0)


def test_shared_memory_and_float64_are_seen(cache):
    assert check(shared_kernel, (float32[::1],), (8, 0)).shared == 4 * WIDTH
    assert not check(square_kernel, (float32[::1], float32[::1]), (8, 0)).uses_float64
    assert check(square_kernel, (float64[::1], float64[::1]), (8, 0)).uses_float64


def test_spills_are_seen(cache):
    """Sixty-four values that live at once do not fit into sixteen registers."""
    names = [f"v{k}" for k in range(64)]
    lines = ["kernel(x, y):", "    i = 64 * cuda.grid(1)"]
    lines += [f"    {name} = x[i + {k}]" for k, name in enumerate(names)]
    lines += ["    cuda.syncthreads()"]
    lines += [f"    y[i + {63 - k}] = {name}" for k, name in enumerate(names)]
    kernel = kernel_of("\n".join(lines))
    limited = cuda.jit(max_registers=16)(kernel.py_func)
    kinds = (float32[::1], float32[::1])
    assert check(kernel, kinds, (8, 0)).spill_stores == 0
    assert check(limited, kinds, (8, 0)).spill_stores > 0


def test_float64_in_text():
    assert uses_float64("\t@%p1 mul.f64 \t%fd1, %fd2, %fd3;")
    assert uses_float64("\tcvt.f64.f32 \t%fd1, %f1;")
    assert not uses_float64(".reg .f64 %fd<4>;\n// mul.f64\nmov.u32 %r1, 5;")


def test_bad_ptx_is_refused():
    with pytest.raises(KernelError, match=r"ptx: ptxas must accept the PTX for sm_80, got .*"):
        assemble(Ptx(".version 8.0\n.target sm_80\nnonsense", "kernel"), (8, 0))


def test_a_kernel_that_does_not_compile(cache):
    kernel = kernel_of("kernel(x):\n    x[0] = no_such_name\n")
    with pytest.raises(KernelError, match="kernel: the kernel must compile for the GPU, got "):
        compile_kernel(kernel, (float32[::1],), (8, 0))
    with pytest.raises(KernelError, match=r"array\(float32, 1d, C\)"):
        compile_kernel(square_kernel, (float32[::1], float32), (8, 0))
    assert not cache.exists()


@pytest.mark.filterwarnings("ignore:Could not find source")  # of a function made by exec
def test_launch_bounds_lineinfo_and_fastmath_reach_the_ptx(cache):
    function = kernel_of("kernel(x):\n    x[0] = math.exp(x[0]) / x[1]\n").py_func
    plain = compile_kernel(cuda.jit(function), (float32[::1],), (8, 0)).text
    bounds = compile_kernel(cuda.jit(launch_bounds=256)(function), (float32[::1],), (8, 0)).text
    fast = compile_kernel(cuda.jit(fastmath=True)(function), (float32[::1],), (8, 0)).text
    lines = compile_kernel(cuda.jit(lineinfo=True)(function), (float32[::1],), (8, 0)).text
    assert ".maxntid" in bounds and ".maxntid" not in plain
    assert "div.rn.f32" in plain and "div.rn.f32" not in fast
    assert ".loc" in lines and ".loc" not in plain


def test_the_second_process_compiles_nothing(cache, compilations):
    kinds = (float32[::1], float32[::1])
    first = compile_kernel(square_kernel, kinds, (8, 0))
    assert compile_kernel(square_kernel, kinds, (8, 0)) == first
    assert compilations == ["square_kernel"]
    for other in [(9, 0), (9, 0, "a")]:
        compile_kernel(square_kernel, kinds, other)
    compile_kernel(square_kernel, (float32[:], float32[::1]), (8, 0))
    assert len(compilations) == len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damage", [b"", b"// sha256 0\n.version 9.0", b"\xff\xfe\x00", None])
def test_a_damaged_file_is_compiled_again(cache, compilations, damage):
    kinds = (float32[::1], float32[::1])
    compile_kernel(square_kernel, kinds, (8, 0))
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-20] if damage is None else damage)
    again = compile_kernel(square_kernel, kinds, (8, 0))
    assert len(compilations) == 2
    assert assemble(again, (8, 0)).registers > 0
    assert compile_kernel(square_kernel, kinds, (8, 0)) == again
    assert len(compilations) == 2


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, monkeypatch, compilations):
    file = tmp_path / "a file"
    file.write_text("")
    monkeypatch.setenv("BLUTRAIN_CACHE", str(file))
    for _ in range(2):
        compile_kernel(shared_kernel, (float32[::1],), (8, 0))
    assert len(compilations) == 2


# Fingerprints ------------------------------------------------------------------------------------


def test_equal_kernels_have_equal_fingerprints():
    assert fingerprint(kernel_of(ADD_ONE)) == fingerprint(kernel_of(ADD_ONE))


@pytest.mark.parametrize(
    "other",
    [
        ADD_ONE.replace("+= 1", "+= 2"),
        ADD_ONE.replace("+= 1", "+= 1.0"),
        ADD_ONE.replace("+=", "-="),
        ADD_ONE.replace("cuda.grid", "cuda.gridsize"),
    ],
)
def test_another_text_has_another_fingerprint(other):
    assert fingerprint(kernel_of(ADD_ONE)) != fingerprint(kernel_of(other))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ((1, 2), (2, 1)),
        ("a", "b"),
        (float32, float64),
        (np.float32(1), np.float64(1)),
        (np.arange(3), np.arange(3) + 1),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (math.exp, math.log),
    ],
    ids=str,
)
def test_the_values_of_globals_and_closures_count(one, two):
    body = "kernel(x):\n    x[0] = value\n"
    prints = [fingerprint(kernel_of(body, value=v)) for v in (one, one, two)]
    assert prints[0] == prints[1] != prints[2]

    def closure(value):
        return cuda.jit(lambda x: value)

    prints = [fingerprint(closure(v)) for v in (one, one, two)]
    assert prints[0] == prints[1] != prints[2]


def test_what_device_functions_use_counts():
    def make(step, fast):
        inner = cuda.jit(device=True, fastmath=fast)(lambda x: x + step)
        outer = cuda.jit(device=True)(lambda x: inner(inner(x)))
        return kernel_of("kernel(x):\n    x[0] = outer(x[0])\n", outer=outer)

    assert fingerprint(make(1, False)) == fingerprint(make(1, False))
    assert fingerprint(make(1, False)) != fingerprint(make(2, False))
    assert fingerprint(make(1, False)) != fingerprint(make(1, True))


def test_what_is_taken_from_a_module_counts():
    class_of_module = type(math)
    first, second = class_of_module("common"), class_of_module("common")
    first.size, second.size = 1, 2
    body = "kernel(x):\n    x[0] = common.size\n"
    assert fingerprint(kernel_of(body, common=first)) != fingerprint(kernel_of(body, common=second))


def test_options_count():
    function = kernel_of(ADD_ONE).py_func
    options = [{}, {"fastmath": True}, {"launch_bounds": 64}, {"max_registers": 32}, {"opt": False}]
    assert len({fingerprint(cuda.jit(**o)(function)) for o in options}) == len(options)


def test_intrinsics_count_with_what_they_close_over():
    def make(text):
        @intrinsic
        def instruction(typing_context, x):
            def codegen(context, builder, signature, arguments):
                return (text, arguments[0])[1]

            return x(x), codegen

        return kernel_of("kernel(x):\n    x[0] = f(x[0])\n", f=instruction)

    assert fingerprint(make("add")) == fingerprint(make("add")) != None  # noqa: E711
    assert fingerprint(make("add")) != fingerprint(make("mul"))


def test_functions_that_call_themselves_end():
    scope = {"cuda": cuda}
    exec("def f(x):\n    return f(x - 1) if x else 0\ndef kernel(x):\n    x[0] = f(3)\n", scope)
    assert fingerprint(cuda.jit(scope["kernel"])) is not None


def test_what_cannot_be_told_apart_is_not_cached(cache, compilations):
    class Thing:
        pass

    kernel = kernel_of(ADD_ONE.replace("+= 1", "+= 1 if value is None else 1"), value=Thing())
    assert fingerprint(kernel) is None
    odd = kernel_of("kernel(x):\n    x[0] = 1\n")
    odd.py_func.__globals__["thing"] = Thing()
    assert fingerprint(odd) is not None
    linked = cuda.jit(link=[])(square_kernel.py_func)
    linked.targetoptions["link"] = ["library.cu"]
    assert compiling._cache_file(linked, (int64,), (8, 0)) is None

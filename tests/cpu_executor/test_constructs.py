"""Python that no kernel can hold: each is one error with kernel, line and construct."""

import numpy as np
import pytest
from numba import cuda, float32

from blutrain.device import cpu
from blutrain.errors import KernelError

TABLE, VALUES = {1: 2.0}, [1.0, 2.0]
ONE_AND_A_HALF = 1.5


@cuda.jit
def dictionary(x):
    d = {1: 2}
    x[0] = d[1]


@cuda.jit
def empty_list(x):
    values = []
    values.append(x[0])


@cuda.jit
def comprehension(x):
    x[0] = sum([2 * i for i in range(3)])


@cuda.jit
def generator(x):
    yield x[0]


@cuda.jit
def formatted(x):
    x[0] = len(f"{x[1]}")


@cuda.jit
def percent(x):
    x[0] = len("%d" % 3)  # noqa: UP031


@cuda.jit
def handles(x):
    try:
        x[0] = 1
    except ZeroDivisionError:
        x[0] = 2


@cuda.jit
def defines(x):
    def inner(v):
        return v

    x[0] = inner(x[1])


@cuda.jit
def anonymous(x):
    f = lambda v: v  # noqa: E731
    x[0] = f(x[1])


@cuda.jit
def names_in_passing(x):
    if (n := x[0]) > 1:
        x[1] = n


@cuda.jit
def global_dictionary(x):
    x[0] = TABLE[1]


@cuda.jit
def global_list(x):
    x[0] = VALUES[1]


@cuda.jit
def allocates(x):
    y = np.zeros(3)
    x[0] = y[0]


@cuda.jit
def whole_arrays(x):
    y = x.copy()
    x[0] = y[0]


@cuda.jit
def matrix_product(x):
    x[0] = x @ x


@cuda.jit
def host_function(x):
    cuda.synchronize()


@cuda.jit
def opens(x):
    open("file")  # noqa: SIM115


@cuda.jit
def no_attribute(x):
    x[0] = x.colour


@cuda.jit
def no_element(x):
    x[0] = None


@cuda.jit
def mixed_tuple(x):
    t = (1, 2.5)
    x[0] = t[int(x[1])]


@cuda.jit
def negative_shape(x):
    s = cuda.shared.array(-3, float32)
    x[0] = s[0]


@cuda.jit
def no_such_dtype(x):
    s = cuda.shared.array(3, "colour")
    x[0] = s[0]


@cuda.jit
def float_range(x):
    for _ in range(ONE_AND_A_HALF):
        x[0] += 1


@cuda.jit
def literal_float_range(x):
    for _ in range(2.5):
        x[0] += 1


@cuda.jit
def range_of_four(x):
    for _ in range(1, 2, 3, 4):
        x[0] += 1


@cuda.jit
def scalar_loop(x):
    for v in x[0]:
        x[1] = v


@cuda.jit
def two_indices(x):
    x[1, 2] = 1


@cuda.jit
def no_mask(x):
    x[0] = cuda.shfl_sync(x[0])


@cuda.jit
def no_axes(x):
    x[0] = cuda.grid()


@cuda.jit
def short_atomic(x):
    cuda.atomic.add(x, 0)


@cuda.jit
def barrier_as_value(x):
    y = cuda.syncthreads()
    x[0] = y


@cuda.jit(device=True)
def _gives_nothing(v):
    v += 1


@cuda.jit
def value_of_nothing(x):
    x[0] = _gives_nothing(x[1])


@cuda.jit
def gives_back(x):
    return x


CONSTRUCTS = {
    dictionary: (2, r"\{1: 2\} cannot be in a kernel"),
    empty_list: (2, r"\[\] cannot be in a kernel"),
    comprehension: (2, r"\[2 \* i for i in range\(3\)\] cannot be in a kernel"),
    generator: (2, r"\(yield x\[0\]\) cannot be in a kernel"),
    formatted: (2, r"f'\{x\[1\]\}' cannot be in a kernel"),
    percent: (2, r"there is no mod\(unicode_type, int64\)"),
    handles: (2, "Try statements cannot be in a kernel"),
    defines: (2, "a kernel cannot define a function"),
    anonymous: (2, "a kernel cannot define a function"),
    names_in_passing: (2, r"\(n := x\[0\]\) cannot be in a kernel"),
    global_dictionary: (2, "TABLE is a dict; a kernel takes numbers, tuples and arrays"),
    global_list: (2, "VALUES is a list; a kernel takes numbers, tuples and arrays"),
    allocates: (2, "np.zeros makes an array; declare it with cuda.local"),
    whole_arrays: (2, "this cannot be compiled for the CPU; write it out"),
    matrix_product: (2, "x @ x cannot be in a kernel; write it as a loop"),
    host_function: (2, "cuda.synchronize has no meaning on the CPU"),
    opens: (2, "open is not known in a kernel"),
    no_attribute: (2, "has no attribute 'colour'"),
    no_element: (2, "an array's element cannot be a none"),
    mixed_tuple: (3, r"Tuple\(int64, float64\) cannot be indexed by int64"),
    negative_shape: (2, "the shape of an array cannot be negative, got -3"),
    no_such_dtype: (2, "data type 'colour' not understood"),
    float_range: (2, "range needs integers, got 1.5"),
    literal_float_range: (2, "range needs integers, got 2.5"),
    range_of_four: (2, r"range takes one to three numbers, got range\(1, 2, 3, 4\)"),
    scalar_loop: (2, r"there is no len\(float32\)"),
    two_indices: (2, r"array\(float32, 1d, C\) cannot be indexed by"),
    no_mask: (2, r"cuda.shfl_sync takes \(mask, value, lane\), got cuda.shfl_sync\(x\[0\]\)"),
    no_axes: (2, r"cuda.grid takes 1, 2 or 3, got cuda.grid\(\)"),
    short_atomic: (2, r"atomic_add does not take \(array\(float32, 1d, C\), int64\)"),
    barrier_as_value: (2, "a barrier gives nothing; make it a statement of its own"),
    value_of_nothing: (2, "the device function that is called gives no value"),
    gives_back: (2, "a kernel returns nothing; store the result in an array"),
}


@pytest.mark.parametrize("kernel", CONSTRUCTS, ids=lambda kernel: kernel.py_func.__name__)
def test_construct(kernel):
    line, says = CONSTRUCTS[kernel]
    function = kernel.py_func
    x = np.zeros(8, np.float32)
    with pytest.raises(KernelError, match=says) as caught:
        cpu.run(kernel, 1, 32, x)
    where = f"test_constructs.py:{function.__code__.co_firstlineno + line})"
    assert str(caught.value).startswith(f"kernel {function.__name__} (")
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)

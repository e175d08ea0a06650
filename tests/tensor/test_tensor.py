"""Tensors: views, promotion, in-place writes, exchange with other libraries, printing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import blutrain as bt
from blutrain import dtypes
from blutrain.tensor import reshaped_strides

NUMPY_DTYPES = [d for d in dtypes.ALL if d is not bt.bfloat16]
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def counted(shape):
    """(array, tensor) with the same distinct elements."""
    a = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return a, bt.from_numpy(a)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_round_trip_through_numpy(dtype):
    values = np.array([[0, 1, 2], [3, 100, 1]])
    t = bt.from_numpy(values, dtype)
    want = values.astype(bool) if dtype is bt.bool_ else values
    assert t.numpy().dtype == (np.float32 if dtype is bt.bfloat16 else dtype.storage)
    np.testing.assert_array_equal(t.numpy(), want)


@pytest.mark.parametrize("a, b", list(itertools.product(NUMPY_DTYPES, repeat=2)), ids=str)
def test_promotion_is_numpys(a, b):
    assert bt.promote(a, b).name == np.result_type(a.storage, b.storage).name


@pytest.mark.parametrize("d", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("scalar", [True, 3, 2.5])
def test_python_scalars_are_weak(d, scalar):
    want = np.result_type(d.storage, scalar)
    # NumPy takes a float beside integers to float64; here it is float32, the default float.
    name = "float32" if want == np.float64 and d is not bt.float64 else want.name
    assert dtypes.promote_scalar(d, scalar).name == name


def test_bfloat16_rounds_to_nearest_even():
    # 1 + 2**-8 lies midway between 1 and 1 + 2**-7: to the even one, 1.
    values = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, -0.0, 3.4e38], np.float32)
    got = bt.from_numpy(values, "bfloat16").numpy()
    np.testing.assert_array_equal(got, np.array([1, 1 + 2.0**-6, np.inf, -0.0, np.inf], np.float32))
    assert np.isnan(bt.from_numpy(np.array([np.nan]), "bfloat16").numpy()).all()


@st.composite
def indexings(draw):
    shape = draw(shapes)
    key = []
    for n in shape:
        kind = draw(st.sampled_from(["int", "slice", "none", "stop"]))
        if kind == "none":
            key.append(None)
        if kind == "int" and n:
            key.append(draw(st.integers(-n, n - 1)))
        elif kind == "stop":
            key.append(Ellipsis)
            break
        else:
            bounds = st.none() | st.integers(-6, 6)
            step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
            key.append(slice(draw(bounds), draw(bounds), step))
    return shape, tuple(key)


@given(indexings())
def test_indexing_is_numpys(case):
    shape, key = case
    a, t = counted(shape)
    view = t[key]
    np.testing.assert_array_equal(view.numpy(), a[key])
    assert view.storage is t.storage


@given(shapes, st.data())
def test_views_compose_like_numpys(shape, data):
    a, t = counted(shape)
    for _ in range(3):
        kind = data.draw(st.sampled_from(["permute", "flip", "expand", "squeeze", "reshape"]))
        if kind == "permute":
            order = data.draw(st.permutations(range(a.ndim)))
            a, t = a.transpose(order), t.permute(*order)
        elif kind == "flip" and a.ndim:
            axis = data.draw(st.integers(0, a.ndim - 1))
            a, t = np.flip(a, axis), t.flip(axis)
        elif kind == "expand":
            a, t = a[None].repeat(2, 0), t.unsqueeze(0).expand(2, *t.shape)
        elif kind == "squeeze":
            a, t = a.squeeze(), t.squeeze()
        elif kind == "reshape":
            a, t = a.reshape(-1), t.reshape(-1)
        np.testing.assert_array_equal(t.numpy(), a)


@given(shapes, st.data())
def test_a_reshape_is_a_view_where_numpy_has_one(shape, data):
    a, t = counted(shape)
    order = data.draw(st.permutations(range(a.ndim)))
    a, t = a.transpose(order), t.permute(*order)
    size = a.size
    new = data.draw(st.sampled_from([(size,), (1, size), (size, 1)]))
    got = reshaped_strides(t.shape, t.strides, new)
    if size:
        view = a.view()
        try:
            view.shape = new
        except AttributeError:
            assert got is None
        else:
            want = tuple(s // a.itemsize for s in view.strides)
            extents = [k for k, n in enumerate(new) if n != 1]
            assert got is not None
            assert [got[k] for k in extents] == [want[k] for k in extents]


def test_views_share_memory_and_versions():
    t = bt.zeros((2, 3))
    view = t.T[1:]
    t[0, 1] = 5.0
    assert view[0, 0].item() == 5.0
    assert view.version == t.version == 1


def test_in_place_operators():
    t = bt.tensor([1.0, 2.0, 3.0])
    same = t
    t += 1
    t *= bt.tensor([2.0])
    t -= 1.0
    t /= 2
    assert same is t
    np.testing.assert_allclose(t.numpy(), [1.5, 2.5, 3.5])
    assert t.version == 4
    t[::2] = 0.0
    np.testing.assert_allclose(t.numpy(), [0.0, 2.5, 0.0])
    t[...] = np.array([7.0, 8.0, 9.0])
    np.testing.assert_allclose(t.numpy(), [7, 8, 9])


def test_in_place_reads_an_overlapping_operand_whole():
    t = bt.arange(6.0)
    t[1:] += t[:-1]
    np.testing.assert_allclose(t.numpy(), [0, 1, 3, 5, 7, 9])
    t = bt.arange(4.0)
    t[:] = t.flip(0)
    np.testing.assert_allclose(t.numpy(), [3, 2, 1, 0])


@pytest.mark.parametrize(
    "write, error, says",
    [
        (lambda t: t.add_(bt.zeros((2, 3))), bt.ShapeError, "add_: y must broadcast to"),
        (lambda t: t.mul_(bt.zeros(3, "float64")), bt.DTypeError, "mul_: the result must be"),
        (lambda t: t.expand(2, 3).add_(1.0), bt.ShapeError, "add_: elements must not share memory"),
        (lambda t: t.requires_grad_().add_(1.0), bt.AutogradError, "add_: a leaf that requires"),
        (lambda t: t.copy_(np.zeros(4)), bt.ShapeError, "copy_: "),
        (lambda t: bt.tensor([1, 2]).div_(2), bt.DTypeError, "div_: x must have a floating dtype"),
    ],
)
def test_bad_writes_leave_the_tensor_as_it_was(write, error, says):
    t = bt.tensor([1.0, 2.0, 3.0])
    with pytest.raises(error, match=says):
        write(t)
    assert t.tolist() == [1.0, 2.0, 3.0]
    assert t.version == 0


@pytest.mark.parametrize(
    "use, error, says",
    [
        (lambda t: t.view(4), bt.ShapeError, "view: shape must hold 6 elements, got"),
        (lambda t: t.T.view(6), bt.ShapeError, "view: .* would need a copy"),
        (lambda t: t.permute(0, 0), bt.ShapeError, "permute: axes must order 2 dimensions"),
        (lambda t: t.expand(2, 4), bt.ShapeError, "expand: shape must be compatible"),
        (lambda t: t.squeeze(0), bt.ShapeError, "squeeze: axis 0 must have extent 1"),
        (lambda t: t[5], bt.ShapeError, "getitem: index must be within extent 2 of axis 0"),
        (lambda t: t[0, 0, 0], bt.ShapeError, "getitem: index must have at most 2 parts"),
        (lambda t: t[[0, 1]], bt.DTypeError, "getitem: unsupported index"),
        (lambda t: t.item(), bt.ShapeError, "item: tensor must have one element"),
        (lambda t: bt.zeros((2, -1)), bt.ShapeError, "empty: extents must not be negative"),
        (lambda t: bt.tensor(["a"]), bt.DTypeError, "dtype: must be one of"),
        (lambda t: bt.tensor([[1], [1, 2]]), bt.ShapeError, "tensor: rows must be even"),
        (lambda t: bt.tensor([1], requires_grad=True), bt.DTypeError, "only floats have gradients"),
        (lambda t: bt.as_tensor([1.0]), bt.DTypeError, "as_tensor: source must be an array"),
        (lambda t: t + "a", bt.DTypeError, "add: y must be a tensor"),
        (lambda t: t + np.ones(3), bt.DTypeError, "add: y must be a tensor, got ndarray"),
        (lambda t: np.ones(3) + t, bt.DTypeError, "add: x must be a tensor, got ndarray"),
    ],
)
def test_errors_have_one_form(use, error, says):
    with pytest.raises(error, match=says):
        use(bt.zeros((2, 3)))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_dlpack_both_ways_without_a_copy(dtype):
    t = bt.from_numpy(np.arange(6).reshape(2, 3), dtype)[:, 1:]
    again = bt.from_dlpack(t)
    assert again.pointer == t.pointer
    assert again.strides == t.strides
    np.testing.assert_array_equal(again.numpy(), t.numpy())
    if bt.TARGET == "cpu":
        theirs = np.from_dlpack(t)
        np.testing.assert_array_equal(theirs, t.numpy())
        mine = np.arange(6).astype(dtype.storage).reshape(2, 3).T
        ours = bt.as_tensor(mine)
        assert ours.pointer == mine.ctypes.data
        np.testing.assert_array_equal(ours.numpy(), mine)


def test_dlpack_keeps_the_memory_until_the_receiver_is_done():
    before = bt.memory.memory_allocated()
    t = bt.zeros(1000)
    other = bt.from_dlpack(t)
    del t
    assert bt.memory.memory_allocated() > before
    assert other.tolist() == [0.0] * 1000
    del other
    unused = bt.ones(10).__dlpack__()
    del unused
    assert bt.memory.memory_allocated() == before


def test_dlpack_refuses_a_tensor_on_the_tape():
    with pytest.raises(bt.DTypeError, match="dlpack: tensor must not require a gradient"):
        bt.zeros(3).requires_grad_().__dlpack__()


@pytest.mark.peer
def test_pytorch_takes_and_gives_dlpack():
    import torch

    t = bt.tensor([[1.5, -2.0]], dtype="bfloat16")
    theirs = torch.from_dlpack(t)
    assert theirs.dtype is torch.bfloat16
    assert theirs.tolist() == [[1.5, -2.0]]
    back = bt.from_dlpack(theirs)
    assert back.dtype is bt.bfloat16
    assert back.pointer == t.pointer


@pytest.mark.gpu
def test_cuda_array_interface_both_ways():
    from numba import cuda

    t = bt.tensor([[1.0, 2.0], [3.0, 4.0]]).T
    np.testing.assert_array_equal(cuda.as_cuda_array(t).copy_to_host(), t.numpy())
    theirs = cuda.to_device(np.arange(5, dtype=np.int32))
    np.testing.assert_array_equal(bt.as_tensor(theirs).numpy(), np.arange(5))


def test_a_kernel_of_ones_own_takes_the_device_array():
    t = bt.arange(3.0)
    assert t.device_array.shape == (3,)
    if bt.TARGET == "cpu":
        t.device_array[1] = 9.0
        assert t.tolist() == [0.0, 9.0, 2.0]


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: bt.tensor([1.0, 2.5]), "tensor([1. , 2.5])"),
        (lambda: bt.tensor(3), "tensor(3)"),
        (lambda: bt.tensor([True]), "tensor([ True])"),
        (lambda: bt.tensor([1.0], dtype="bfloat16"), "tensor([1.], dtype=bfloat16)"),
        (lambda: bt.zeros((0, 3)), "tensor([], shape=(0, 3), dtype=float32)"),
        (
            lambda: bt.ones(1, "float64").requires_grad_() * 2,
            "tensor([2.], dtype=float64, from=mul)",
        ),
    ],
)
def test_printing(make, text):
    assert repr(make()) == text


def test_the_random_stream_depends_on_the_seed_alone():
    bt.manual_seed(3)
    first = bt.randn(1000).numpy()
    state = bt.random.get_state()
    second = bt.rand(10).numpy()
    bt.manual_seed(3)
    np.testing.assert_array_equal(bt.randn(1000).numpy(), first)
    np.testing.assert_array_equal(bt.rand(10).numpy(), second)
    bt.random.set_state(state)
    np.testing.assert_array_equal(bt.rand(10).numpy(), second)
    assert not np.array_equal(bt.rand(10).numpy(), second)


def test_philox_gives_the_published_words():
    # Random123's known-answer test for philox4x32-10: counter and key all zero, and all ones.
    from blutrain.cuda_kernels.random.philox import philox_reference

    zero = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_reference(0, 0, 1)[0].tolist() == zero


def test_normal_numbers_are_normal():
    bt.manual_seed(1)
    x = bt.randn(200_000).numpy().astype(np.float64)
    n = x.size
    assert abs(x.mean()) < 4 / np.sqrt(n)
    assert abs(x.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs((x**3).mean()) < 4 * np.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 4 * np.sqrt(96 / n)

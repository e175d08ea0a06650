"""The functional API, one import an op, and the methods and operators of Tensor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from blutrain import dlpack, dtypes, printing
from blutrain.autograd import engine
from blutrain.cuda_kernels.attention.attention import attention
from blutrain.cuda_kernels.attention.self_attention import self_attention
from blutrain.cuda_kernels.dropout.dropout import dropout
from blutrain.cuda_kernels.elementwise import in_place
from blutrain.cuda_kernels.elementwise.binary import add, div, maximum, minimum, mul, pow, sub
from blutrain.cuda_kernels.elementwise.cast import cast
from blutrain.cuda_kernels.elementwise.clamp import clamp
from blutrain.cuda_kernels.elementwise.compare import eq, ge, gt, le, lt, ne
from blutrain.cuda_kernels.elementwise.copy import clone, contiguous
from blutrain.cuda_kernels.elementwise.fill import all_finite, arange, full, ones
from blutrain.cuda_kernels.elementwise.unary import (
    abs,
    cos,
    erf,
    exp,
    gelu,
    log,
    neg,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    tanh,
)
from blutrain.cuda_kernels.elementwise.view import reshape
from blutrain.cuda_kernels.elementwise.where import where
from blutrain.cuda_kernels.index.cat import cat
from blutrain.cuda_kernels.index.embedding import embedding
from blutrain.cuda_kernels.index.split import split
from blutrain.cuda_kernels.loss.cross_entropy import cross_entropy
from blutrain.cuda_kernels.matmul.linear import linear
from blutrain.cuda_kernels.matmul.matmul import matmul
from blutrain.cuda_kernels.norm.layer_norm import layer_norm
from blutrain.cuda_kernels.norm.rms_norm import rms_norm
from blutrain.cuda_kernels.optimizer.adamw import adamw_step
from blutrain.cuda_kernels.optimizer.grad_norm import grad_norm
from blutrain.cuda_kernels.optimizer.sgd import sgd_step
from blutrain.cuda_kernels.random.sample import rand, randint, randn
from blutrain.cuda_kernels.reduction.extreme import max, min
from blutrain.cuda_kernels.reduction.mean import mean
from blutrain.cuda_kernels.reduction.sum import sum
from blutrain.cuda_kernels.reduction.var import var
from blutrain.cuda_kernels.softmax.log_softmax import log_softmax
from blutrain.cuda_kernels.softmax.softmax import softmax
from blutrain.device import TARGET
from blutrain.errors import AutogradError, DeviceError, DTypeError, ShapeError, message
from blutrain.tensor import Storage, Tensor, empty, empty_like, from_numpy, zeros

__all__ = [
    "abs", "adamw_step", "add", "all_finite", "arange", "as_tensor", "attention", "cast", "cat",
    "clamp", "clone", "contiguous", "cos", "cross_entropy", "div", "dropout", "embedding", "empty",
    "empty_like", "eq", "erf", "exp", "from_dlpack", "from_numpy", "full", "full_like", "ge",
    "gelu", "grad_norm", "gt", "layer_norm", "le", "linear", "log", "log_softmax", "lt", "matmul",
    "max", "maximum", "mean", "min", "minimum", "mul", "ne", "neg", "ones", "ones_like", "pow",
    "rand", "randint", "randn", "relu", "reshape", "rms_norm", "rsqrt", "self_attention",
    "sgd_step", "sigmoid", "silu", "sin", "softmax", "split", "sqrt", "sub", "sum", "tanh",
    "tensor", "var", "where", "zeros", "zeros_like",
]  # fmt: skip


_hook_keys = itertools.count()


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of `data`.

    Args:
        data: a number, nested sequences of them, a NumPy array or a tensor.
        dtype: the element type. When None: an array's or a tensor's own; float32, int64 or bool
            for Python numbers.
        requires_grad: whether gradients accumulate in `.grad`; for floating dtypes only.

    Raises:
        DTypeError: the dtype does not exist, or cannot have a gradient.

    Example:
        >>> import blutrain as bt
        >>> bt.tensor([[1, 2], [3, 4]], dtype="float32").shape
        (2, 2)
    """
    if isinstance(data, Tensor):
        kind = data.dtype if dtype is None else dtypes.as_dtype(dtype)
        out = clone(cast(data.detach(), kind))
    else:
        try:
            values = np.asarray(data)
        except ValueError as error:
            raise ShapeError(message("tensor", "rows must be even", str(error))) from None
        if dtype is None and not isinstance(data, (np.ndarray, np.generic)):
            if values.dtype == np.float64:
                dtype = dtypes.float32
        out = from_numpy(values, dtype)
    return set_requires_grad(out, requires_grad)


def set_requires_grad(t: Tensor, requires_grad: bool = True) -> Tensor:
    """Ask for gradients in a leaf's `.grad`, or no longer.

    Raises:
        DTypeError: the dtype is not floating.
        AutogradError: the tensor is not a leaf.
    """
    if requires_grad and not t.dtype.is_floating:
        do = "use a floating dtype"
        raise DTypeError(message("requires_grad", "only floats have gradients", t.dtype, do))
    if t.node is not None:
        do = "detach() it first"
        raise AutogradError(message("requires_grad", "the tensor must be a leaf", t.node.name, do))
    t.requires_grad = requires_grad
    return t


def as_tensor(source: Any) -> Tensor:
    """A tensor over the memory of `source`, without a copy.

    Args:
        source: a tensor (returned as it is), or, on the target, anything with `__dlpack__` or
            `__cuda_array_interface__`: NumPy, CuPy, Numba and PyTorch arrays among them.

    Raises:
        DeviceError: the memory is not on the target; `bt.tensor` copies.
        DTypeError: it is no array, or of a dtype that blutrain lacks.
    """
    if isinstance(source, Tensor):
        return source
    # DLPack first: the other has no name for bfloat16.
    if hasattr(source, "__dlpack__"):
        return dlpack.take(source)
    if TARGET == "cuda" and hasattr(source, "__cuda_array_interface__"):
        return _from_cuda_interface(source)
    got = type(source).__name__
    do = "pass an array with __dlpack__ or __cuda_array_interface__, or copy with bt.tensor"
    raise DTypeError(message("as_tensor", "source must be an array", got, do))


def _from_cuda_interface(source: Any) -> Tensor:
    facts = source.__cuda_array_interface__
    dtype = dtypes.as_dtype(np.dtype(facts["typestr"]))
    shape = tuple(facts["shape"])
    strides = facts.get("strides")
    if strides is not None:
        if any(s % dtype.itemsize for s in strides):
            raise DeviceError(message("as_tensor", "strides must be whole elements", strides))
        strides = tuple(s // dtype.itemsize for s in strides)
    t = Tensor(Storage.borrowed(facts["data"][0] or 0, 0, source), shape, strides, 0, dtype)
    t.storage.n_bytes = t.n_bytes
    return t


def from_dlpack(source: Any) -> Tensor:
    """A tensor over the memory of anything with `__dlpack__`, without a copy.

    Example:
        >>> import numpy as np, blutrain as bt
        >>> bt.from_dlpack(bt.tensor([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    return dlpack.take(source)


def full_like(t: Tensor, value: Any) -> Tensor:
    """`value` in every element of a new tensor of t's shape and dtype."""
    return full(t.shape, value, t.dtype)


def zeros_like(t: Tensor) -> Tensor:
    """Zeros of t's shape and dtype."""
    return zeros(t.shape, t.dtype)


def ones_like(t: Tensor) -> Tensor:
    """Ones of t's shape and dtype."""
    return ones(t.shape, t.dtype)


def _to(t: Tensor, dtype: Any) -> Tensor:
    """This tensor in another dtype; itself where it has it already."""
    return cast(t, dtype)


def _register_hook(t: Tensor, hook: Any) -> Any:
    """Call `hook(gradient)` when this tensor's gradient is complete; it may return another.

    Returns:
        A function that removes the hook.

    Raises:
        AutogradError: the tensor requires no gradient.
    """
    if not t.requires_grad:
        raise AutogradError(message("register_hook", "the tensor must require a gradient"))
    if t.node is not None:
        if t.node.hooks is None:
            t.node.hooks = {}
        hooks = t.node.hooks.setdefault(t.output_index, [])
        hooks.append(hook)
        return lambda: hooks.remove(hook) if hook in hooks else None
    if t._hooks is None:
        t._hooks = {}
    leaf_hooks = t._hooks
    key = next(_hook_keys)
    leaf_hooks[key] = hook
    return lambda: leaf_hooks.pop(key, None)


def _retain_grad(t: Tensor) -> None:
    """Keep the gradient of an intermediate tensor in its `.grad` too."""
    if t.node is not None:

        def keep(gradient: Tensor) -> None:
            t.grad = gradient.clone()

        _register_hook(t, keep)


def _dlpack(t: Tensor, *, stream: Any = None, **unused: Any) -> Any:
    dlpack.ready(stream)
    return dlpack.export(t)


def _dlpack_device(t: Tensor) -> tuple[int, int]:
    return (dlpack.CUDA if TARGET == "cuda" else dlpack.CPU), 0


def _array(t: Tensor, dtype: Any = None, copy: Any = None) -> Any:
    values = t.numpy()
    return values if dtype is None else values.astype(dtype)


def _swapped(f: Any) -> Any:
    return lambda x, y: f(y, x)


_METHODS: dict[str, Any] = {
    **{
        f.__name__: f
        for f in (
            abs, add, clamp, clone, contiguous, cos, div, eq, erf, exp, ge, gelu, gt, le, log,
            log_softmax, lt, matmul, max, maximum, mean, min, minimum, mul, ne, neg, pow, relu,
            reshape, rsqrt, sigmoid, silu, sin, softmax, split, sqrt, sub, sum, tanh, var,
            in_place.add_, in_place.copy_, in_place.div_, in_place.fill_, in_place.mul_,
            in_place.sub_, in_place.zero_,
        )
    },
    "backward": engine.backward,
    "register_hook": _register_hook,
    "requires_grad_": set_requires_grad,
    "retain_grad": _retain_grad,
    "to": _to,
    "__repr__": printing.as_text,
    "__str__": printing.as_text,
    "__array__": _array,
    "__dlpack__": _dlpack,
    "__dlpack_device__": _dlpack_device,
    "__setitem__": in_place.setitem,
    "__neg__": neg, "__abs__": abs,
    "__add__": add, "__radd__": _swapped(add), "__iadd__": in_place.add_,
    "__sub__": sub, "__rsub__": _swapped(sub), "__isub__": in_place.sub_,
    "__mul__": mul, "__rmul__": _swapped(mul), "__imul__": in_place.mul_,
    "__truediv__": div, "__rtruediv__": _swapped(div), "__itruediv__": in_place.div_,
    "__pow__": pow, "__rpow__": _swapped(pow),
    "__matmul__": matmul, "__rmatmul__": _swapped(matmul),
    "__eq__": eq, "__ne__": ne, "__lt__": lt, "__le__": le, "__gt__": gt, "__ge__": ge,
}  # fmt: skip

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)

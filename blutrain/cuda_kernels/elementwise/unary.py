"""Elementwise functions of one tensor.

Each is two small device functions beside each other: the function, and its derivative times the
incoming gradient. The derivative is written in terms of what is kept, the input x or the output y,
whichever makes it cheaper. Shapes: any, result like x. Per element: one read and one write forward,
two reads and one write backward, so all are bound by memory.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import cuda

from blutrain import dtypes
from blutrain.autograd.registry import Invalid, Op, Sample, apply, register
from blutrain.cuda_kernels.elementwise.cast import cast
from blutrain.cuda_kernels.elementwise.template import map_elements
from blutrain.cuda_kernels.validate import check_tensor
from blutrain.errors import DTypeError, ShapeError, message
from blutrain.tensor import Tensor


@cuda.jit(device=True)
def _exp(x):
    return math.exp(x)


@cuda.jit(device=True)
def _exp_dx(y, dy):
    return dy * y


@cuda.jit(device=True)
def _log(x):
    return math.log(x)


@cuda.jit(device=True)
def _log_dx(x, dy):
    return dy / x


@cuda.jit(device=True)
def _tanh(x):
    return math.tanh(x)


@cuda.jit(device=True)
def _tanh_dx(y, dy):
    return dy * (type(y)(1) - y * y)


@cuda.jit(device=True)
def _erf(x):
    return math.erf(x)


@cuda.jit(device=True)
def _erf_dx(x, dy):
    return dy * type(x)(1.1283791670955126) * math.exp(-x * x)  # 2 / sqrt(pi)


@cuda.jit(device=True)
def _sqrt(x):
    return math.sqrt(x)


@cuda.jit(device=True)
def _sqrt_dx(y, dy):
    return type(y)(0.5) * dy / y


@cuda.jit(device=True)
def _rsqrt(x):
    return type(x)(1) / math.sqrt(x)


@cuda.jit(device=True)
def _rsqrt_dx(y, dy):
    return type(y)(-0.5) * dy * y * y * y


@cuda.jit(device=True)
def _sin(x):
    return math.sin(x)


@cuda.jit(device=True)
def _sin_dx(x, dy):
    return dy * math.cos(x)


@cuda.jit(device=True)
def _cos(x):
    return math.cos(x)


@cuda.jit(device=True)
def _cos_dx(x, dy):
    return -dy * math.sin(x)


@cuda.jit(device=True)
def _neg(x):
    return -x


@cuda.jit(device=True)
def _neg_dx(x, dy):
    return -dy


@cuda.jit(device=True)
def _abs(x):
    return builtins.abs(x)


@cuda.jit(device=True)
def _abs_dx(x, dy):
    return dy if x > 0 else (-dy if x < 0 else type(dy)(0))


@cuda.jit(device=True)
def _relu(x):
    return type(x)(0) if x < 0 else x  # in this order nan stays nan


@cuda.jit(device=True)
def _relu_dx(y, dy):
    return dy if y > 0 else type(dy)(0)


@cuda.jit(device=True)
def _sigmoid(x):
    return type(x)(1) / (type(x)(1) + math.exp(-x))


@cuda.jit(device=True)
def _sigmoid_dx(y, dy):
    return dy * y * (type(y)(1) - y)


@cuda.jit(device=True)
def _silu(x):
    return x / (type(x)(1) + math.exp(-x))


@cuda.jit(device=True)
def _silu_dx(x, dy):
    s = type(x)(1) / (type(x)(1) + math.exp(-x))
    return dy * s * (type(x)(1) + x * (type(x)(1) - s))


@cuda.jit(device=True)
def _gelu(x):
    return type(x)(0.5) * x * (type(x)(1) + math.erf(x * type(x)(0.7071067811865476)))


@cuda.jit(device=True)
def _gelu_dx(x, dy):
    cdf = type(x)(0.5) * (type(x)(1) + math.erf(x * type(x)(0.7071067811865476)))  # 1 / sqrt(2)
    pdf = type(x)(0.3989422804014327) * math.exp(type(x)(-0.5) * x * x)  # 1 / sqrt(2 pi)
    return dy * (cdf + x * pdf)


@cuda.jit(device=True)
def _gelu_tanh(x):
    u = type(x)(0.7978845608028654) * (x + type(x)(0.044715) * x * x * x)  # sqrt(2 / pi)
    return type(x)(0.5) * x * (type(x)(1) + math.tanh(u))


@cuda.jit(device=True)
def _gelu_tanh_dx(x, dy):
    u = type(x)(0.7978845608028654) * (x + type(x)(0.044715) * x * x * x)
    du = type(x)(0.7978845608028654) * (type(x)(1) + type(x)(0.134145) * x * x)  # 3 * 0.044715
    # sigmoid(2u) = (1 + tanh(u)) / 2 and its complement keep their digits far from 0, where
    # 1 - tanh(u)^2 would lose them.
    s = type(x)(1) / (type(x)(1) + math.exp(type(x)(-2) * u))
    c = type(x)(1) / (type(x)(1) + math.exp(type(x)(2) * u))
    return dy * (s + type(x)(2) * x * s * c * du)


class _Unary(NamedTuple):
    f: Any
    derivative: Any
    keeps: Literal["x", "y", "nothing"]
    reference: Callable[[Any], Any]
    domain: tuple[float, float]
    integers: bool = False  # whether integers stay integers


_erf_float64 = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid_float64(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, -x))


_TABLE: dict[str, _Unary] = {
    "exp": _Unary(_exp, _exp_dx, "y", np.exp, (-8, 8)),
    "log": _Unary(_log, _log_dx, "x", np.log, (0.05, 9)),
    "tanh": _Unary(_tanh, _tanh_dx, "y", np.tanh, (-5, 5)),
    "erf": _Unary(_erf, _erf_dx, "x", _erf_float64, (-4, 4)),
    "sqrt": _Unary(_sqrt, _sqrt_dx, "y", np.sqrt, (0.05, 9)),
    "rsqrt": _Unary(_rsqrt, _rsqrt_dx, "y", lambda x: 1 / np.sqrt(x), (0.05, 9)),
    "sin": _Unary(_sin, _sin_dx, "x", np.sin, (-9, 9)),
    "cos": _Unary(_cos, _cos_dx, "x", np.cos, (-9, 9)),
    "neg": _Unary(_neg, _neg_dx, "nothing", np.negative, (-9, 9), integers=True),
    "abs": _Unary(_abs, _abs_dx, "x", np.abs, (0.01, 9), integers=True),
    "relu": _Unary(_relu, _relu_dx, "y", lambda x: np.maximum(x, 0), (-9, 9), integers=True),
    "sigmoid": _Unary(_sigmoid, _sigmoid_dx, "y", _sigmoid_float64, (-9, 9)),
    "silu": _Unary(_silu, _silu_dx, "x", lambda x: x * _sigmoid_float64(x), (-9, 9)),
    "gelu": _Unary(
        _gelu, _gelu_dx, "x", lambda x: 0.5 * x * (1 + _erf_float64(x / math.sqrt(2))), (-6, 6)
    ),
    "gelu_tanh": _Unary(
        _gelu_tanh,
        _gelu_tanh_dx,
        "x",
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        (-6, 6),
    ),
}


def _forward(name: str, u: _Unary) -> Callable[..., Tensor]:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = map_elements(u.f, f"{name}_forward", [x], x.dtype)
        # The gradient of neg needs no values; anything of the right shape will do.
        ctx.save(y if u.keeps == "y" else (x if u.keeps == "x" else None))
        return y

    return forward


def _backward(name: str, u: _Unary) -> Callable[..., Tensor]:
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (kept,) = ctx.saved
        inputs = [dy if kept is None else kept, dy]
        return map_elements(u.derivative, f"{name}_backward", inputs, dy.dtype)

    return backward


def _samples(u: _Unary) -> Callable[[np.random.Generator], list[Sample]]:
    def samples(rng: np.random.Generator) -> list[Sample]:
        low, high = u.domain
        drawn = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 5)))
        shapes = {"empty": (0,), "one": (1,), "scalar": (), "odd": (3, 101), "blocks": (600,)}
        shapes["drawn"] = drawn
        return [Sample((rng.uniform(low, high, s),), name=n) for n, s in shapes.items()]

    return samples


def _errors(name: str) -> Callable[[], list[Invalid]]:
    return lambda: [Invalid(([1.0, 2.0],), DTypeError, f"{name.split('_')[0]}: x must be a tensor")]


def _unary(name: str, x: Tensor) -> Tensor:
    check_tensor(name.split("_")[0], "x", x)
    if not x.dtype.is_floating and not (_TABLE[name].integers and x.dtype is not dtypes.bool_):
        x = cast(x, dtypes.float32)
    result: Tensor = apply(name, x)
    return result


def exp(x: Tensor) -> Tensor:
    """e to the power of each element.

    Example:
        >>> import blutrain as bt
        >>> bt.exp(bt.tensor([0.0])).tolist()
        [1.0]
    """
    return _unary("exp", x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm of each element; -inf at 0, nan below.

    Example:
        >>> import blutrain as bt
        >>> bt.log(bt.tensor([1.0, 0.0])).tolist()
        [0.0, -inf]
    """
    return _unary("log", x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of each element.

    Example:
        >>> import blutrain as bt
        >>> bt.tanh(bt.tensor([0.0])).tolist()
        [0.0]
    """
    return _unary("tanh", x)


def erf(x: Tensor) -> Tensor:
    """The error function of each element, 2 / sqrt(pi) times the integral of exp(-t²) from 0.

    Example:
        >>> import blutrain as bt
        >>> bt.erf(bt.tensor([0.0])).tolist()
        [0.0]
    """
    return _unary("erf", x)


def sqrt(x: Tensor) -> Tensor:
    """The square root of each element; nan below 0.

    Example:
        >>> import blutrain as bt
        >>> bt.sqrt(bt.tensor([9.0])).tolist()
        [3.0]
    """
    return _unary("sqrt", x)


def rsqrt(x: Tensor) -> Tensor:
    """1 over the square root of each element.

    Example:
        >>> import blutrain as bt
        >>> bt.rsqrt(bt.tensor([4.0])).tolist()
        [0.5]
    """
    return _unary("rsqrt", x)


def sin(x: Tensor) -> Tensor:
    """The sine of each element, in radians.

    Example:
        >>> import blutrain as bt
        >>> bt.sin(bt.tensor([0.0])).tolist()
        [0.0]
    """
    return _unary("sin", x)


def cos(x: Tensor) -> Tensor:
    """The cosine of each element, in radians.

    Example:
        >>> import blutrain as bt
        >>> bt.cos(bt.tensor([0.0])).tolist()
        [1.0]
    """
    return _unary("cos", x)


def neg(x: Tensor) -> Tensor:
    """Minus each element.

    Example:
        >>> import blutrain as bt
        >>> bt.neg(bt.tensor([2, -3])).tolist()
        [-2, 3]
    """
    return _unary("neg", x)


def abs(x: Tensor) -> Tensor:
    """The magnitude of each element; its gradient at 0 is 0.

    Example:
        >>> import blutrain as bt
        >>> bt.abs(bt.tensor([2.0, -3.0])).tolist()
        [2.0, 3.0]
    """
    return _unary("abs", x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0) of each element; its gradient at 0 is 0.

    Example:
        >>> import blutrain as bt
        >>> bt.relu(bt.tensor([2.0, -3.0])).tolist()
        [2.0, 0.0]
    """
    return _unary("relu", x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) of each element.

    Example:
        >>> import blutrain as bt
        >>> bt.sigmoid(bt.tensor([0.0])).tolist()
        [0.5]
    """
    return _unary("sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x) of each element (Elfwing et al. 2017, arXiv 1702.03118).

    Example:
        >>> import blutrain as bt
        >>> bt.silu(bt.tensor([0.0])).tolist()
        [0.0]
    """
    return _unary("silu", x)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution's cumulative function at x (arXiv 1606.08415).

    Args:
        x: any shape.
        approximate: "none" for the erf form, "tanh" for GPT-2's.

    Raises:
        ShapeError: `approximate` is neither.

    Example:
        >>> import blutrain as bt
        >>> bt.gelu(bt.tensor([0.0, 100.0]), approximate="tanh").tolist()
        [0.0, 100.0]
    """
    if approximate not in ("none", "tanh"):
        raise ShapeError(message("gelu", "approximate must be 'none' or 'tanh'", approximate))
    return _unary("gelu" if approximate == "none" else "gelu_tanh", x)


def _gelu_tanh_call(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")


for _name, _u in _TABLE.items():
    register(
        Op(
            name=_name,
            forward=_forward(_name, _u),
            backward=_backward(_name, _u),
            reference=_u.reference,
            samples=_samples(_u),
            errors=_errors(_name),
            call=_gelu_tanh_call if _name == "gelu_tanh" else globals()[_name],
        )
    )

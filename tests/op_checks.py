"""How a registered op is held against its float64 reference; `test_ops.py` runs it on every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import blutrain as bt
from blutrain import dtypes
from blutrain.autograd.registry import Op, Sample

# (relative, absolute at magnitude 1): a few roundings of the dtype; sums grow the magnitude.
TOLERANCE = {
    "float64": (1e-9, 1e-10),
    "float32": (3e-5, 3e-6),
    "float16": (4e-3, 2e-3),
    "bfloat16": (3e-2, 1.6e-2),
}
LAYOUTS = ("dense", "transposed", "flipped", "stepped", "offset")


def map_arrays(value: Any, f: Callable[[np.ndarray], Any]) -> Any:
    """`f` of every NumPy array in an argument or a sequence of them; the rest as it is.

    NumPy's generators give a scalar for the shape (); it is an array without dimensions here.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return f(np.asarray(value))
    if isinstance(value, (list, tuple)) and any(isinstance(v, np.ndarray) for v in value):
        return type(value)(map_arrays(v, f) for v in value)
    return value


def as_held(values: np.ndarray, dtype: bt.DType) -> np.ndarray:
    """The float64 values that a tensor of `dtype` holds; integers and bool as they are."""
    if values.dtype.kind != "f":
        return values
    return dtypes.from_storage(dtypes.to_storage(values, dtype), dtype).astype(np.float64)


def as_tensor(values: np.ndarray, dtype: bt.DType, layout: str) -> bt.Tensor:
    """A tensor with these values whose memory is laid out as `layout` says."""
    kind = dtype if values.dtype.kind == "f" else None
    if layout == "transposed" and values.ndim > 1:
        return bt.from_numpy(values.T, kind).permute(*range(values.ndim - 1, -1, -1))
    if layout == "flipped" and values.ndim:
        return bt.from_numpy(values[::-1], kind).flip(0)
    if layout == "stepped" and values.ndim:
        return bt.from_numpy(np.repeat(values, 2, axis=-1), kind)[..., ::2]
    if layout == "offset":
        padded = np.concatenate([np.zeros(3, values.dtype), values.reshape(-1)])
        return bt.from_numpy(padded, kind)[3:].reshape(values.shape)
    return bt.from_numpy(values, kind)


def call(op: Op, sample: Sample, dtype: bt.DType, layout: str = "dense", grad: bool = False) -> Any:
    """(results as a tuple, the tensors among the inputs) of one call."""
    tensors: list[bt.Tensor] = []

    def make(values: np.ndarray) -> bt.Tensor:
        t = as_tensor(values, dtype, layout)
        if grad and values.dtype.kind == "f":
            t = t.detach().requires_grad_()
        tensors.append(t)
        return t

    inputs = map_arrays(list(sample.inputs), make)
    bt.manual_seed(7)
    result = op.call(*[map_arrays(a, make) for a in inputs], **sample.params)
    return as_tuple(result), tensors


def as_tuple(result: Any) -> tuple[Any, ...]:
    """One result or several, as a tuple."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def reference(op: Op, sample: Sample, dtype: bt.DType) -> tuple[np.ndarray, ...]:
    """What the reference gives for the values that the tensors hold."""
    inputs = [map_arrays(a, lambda v: as_held(v, dtype)) for a in sample.inputs]
    bt.manual_seed(7)  # a reference of a random op reads the state that the call will use
    return tuple(np.asarray(r) for r in as_tuple(op.reference(*inputs, **sample.params)))


def tolerance(op: Op, dtype: bt.DType) -> tuple[float, float]:
    """(relative, absolute) for this op and dtype."""
    return op.tolerance.get(dtype.name, TOLERANCE[dtype.name])


def assert_close(got: np.ndarray, want: np.ndarray, rtol: float, atol: float, what: str) -> None:
    """Equal shapes and values; the absolute tolerance scales with the largest finite value."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, must be {want.shape}"
    finite = np.abs(want[np.isfinite(want)].astype(np.float64))
    scale = max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol * scale, err_msg=what)


def check_forward(op: Op, sample: Sample, dtype: bt.DType, layout: str) -> None:
    """The forward result is the reference's."""
    want = reference(op, sample, dtype)
    got, _ = call(op, sample, dtype, layout)
    rtol, atol = tolerance(op, dtype)
    assert len(got) == len(want)
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        what = f"{op.name} {sample.name} output {k} {dtype.name} {layout}"
        assert_close(g.detach().numpy(), w, rtol, atol, what)


def gradients(op: Op, sample: Sample, dtype: bt.DType, layout: str) -> tuple[list, list]:
    """(the gradient of each floating input, the weights that made a scalar of the outputs)."""
    results, tensors = call(op, sample, dtype, layout, grad=True)
    rng = np.random.default_rng(11)
    weights = [rng.standard_normal(r.shape) for r in results]
    roots = [(r, bt.from_numpy(w, r.dtype)) for r, w in zip(results, weights) if r.requires_grad]
    leaves = [t for t in tensors if t.requires_grad]
    if roots:
        bt.autograd.engine.run(roots)
    for t in leaves:
        if t.grad is not None:
            assert t.grad.shape == t.shape
            assert t.grad.dtype is t.dtype
    zeros = [np.zeros(t.shape) for t in leaves]
    return [z if t.grad is None else t.grad.numpy() for t, z in zip(leaves, zeros)], weights


def check_backward(op: Op, sample: Sample, layout: str, rng: np.random.Generator) -> None:
    """The float64 gradients agree with finite differences of the reference along directions."""
    got, weights = gradients(op, sample, bt.float64, layout)
    flat: list[np.ndarray] = []
    for a in sample.inputs:
        map_arrays(a, lambda v: flat.append(v) if v.dtype.kind == "f" else None)

    def scalar(moved: list[np.ndarray]) -> float:
        left = iter(moved)
        inputs = [
            map_arrays(a, lambda v: next(left) if v.dtype.kind == "f" else v) for a in sample.inputs
        ]
        bt.manual_seed(7)
        outs = as_tuple(op.reference(*inputs, **sample.params))
        return float(sum((np.asarray(o) * w).sum() for o, w in zip(outs, weights)))

    which = range(len(flat)) if sample.grad is None else sample.grad
    step = 1e-5
    for k in which:
        if not flat[k].size:
            continue
        for direction in directions(flat[k].shape, rng):
            ends = []
            for sign in (1, -1):
                moved = [v.astype(np.float64) for v in flat]
                moved[k] = moved[k] + sign * step * direction
                ends.append(scalar(moved))
            numeric = (ends[0] - ends[1]) / (2 * step)
            analytic = float((got[k] * direction).sum())
            size = max(1.0, abs(numeric), float(np.abs(got[k] * direction).sum()))
            assert abs(numeric - analytic) <= 2e-6 * size, (
                f"{op.name} {sample.name} input {k} {layout}: "
                f"finite difference {numeric:.9g}, gradient {analytic:.9g}"
            )


def directions(shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """Two random directions and a few single elements, the first and the last among them."""
    out = [rng.standard_normal(shape) for _ in range(2)]
    size = int(np.prod(shape))
    for at in {0, size - 1, int(rng.integers(size))}:
        unit = np.zeros(size)
        unit[at] = 1.0
        out.append(unit.reshape(shape))
    return out


def check_precision(op: Op, sample: Sample, dtype: bt.DType, layout: str) -> None:
    """The gradients in a lesser dtype agree with the float64 ones at the same values."""
    held = Sample(
        tuple(map_arrays(a, lambda v: as_held(v, dtype)) for a in sample.inputs), sample.params
    )
    got, _ = gradients(op, held, dtype, layout)
    want, _ = gradients(op, held, bt.float64, "dense")
    rtol, atol = tolerance(op, dtype)
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        if sample.grad is None or k in sample.grad:
            what = f"gradient {k} of {op.name} {sample.name} {dtype.name} {layout}"
            assert_close(g, w, 4 * rtol, 4 * atol, what)


def check_reuse(op: Op, sample: Sample) -> None:
    """Two backward passes into the same leaves add up to twice one."""
    once, _ = gradients(op, sample, bt.float64, "dense")
    results, tensors = call(op, sample, bt.float64, grad=True)
    rng = np.random.default_rng(11)
    weights = [rng.standard_normal(r.shape) for r in results]
    for _ in range(2):
        roots = [
            (r, bt.from_numpy(w, r.dtype)) for r, w in zip(results, weights) if r.requires_grad
        ]
        if roots:
            bt.autograd.engine.run(roots, retain_graph=True)
    for t, g in zip([t for t in tensors if t.requires_grad], once):
        if t.grad is not None:
            np.testing.assert_allclose(t.grad.numpy(), 2 * g, rtol=1e-12, atol=1e-12)

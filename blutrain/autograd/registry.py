"""The register of operations and of their tuned variants.

An `Op` is all that is known about an operation: how it runs forward and backward, a float64 NumPy
reference that shares none of its code, sample inputs and bad inputs. Tests, the table of ops in the
docs and the API page are derived from these records.

A variant is another way to run a part of an operation (a launcher) for a target or a kind of
problem. The portable kernels are the definition; tuned ones may stand in for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from blutrain import dtypes
from blutrain.autograd import tape
from blutrain.device import TARGET
from blutrain.dtypes import DType
from blutrain.errors import KernelError, message

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Sample:
    """One call of an op, as plain data.

    Attributes:
        inputs: positional arguments: NumPy arrays become tensors (floating ones in the dtype
            under test), scalars, sequences and None are passed as they are.
        params: keyword arguments.
        dtypes: the floating dtypes to try, when not all of the op's.
        name: what the sample is about.
        grad: indices of the inputs to differentiate; all floating arrays when None.
    """

    inputs: tuple[Any, ...]
    params: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[DType, ...] | None = None
    name: str = ""
    grad: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Invalid:
    """One bad call of an op: the error that it must raise and what the message must say."""

    inputs: tuple[Any, ...]
    error: type[Exception]
    says: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """All that is known about one operation.

    Attributes:
        name: the op's, its file's and its public function's name.
        forward: (context, *inputs, **params) → a tensor or a tuple of them.
        backward: (context, *gradients) → one gradient (or None) a tensor input; None where the op
            is not differentiable.
        reference: NumPy float64 arrays and the params → float64 result(s).
        samples: (random generator) → samples, some with shapes drawn from the generator.
        errors: () → bad calls.
        call: the public function.
        dtypes: the floating dtypes that the op takes.
        launchers: what the op runs through `choose`; variants of these are tested with it.
        tolerance: dtype name → (rtol, atol) where the suite's own do not fit, with a reason
            beside it.
    """

    name: str
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    reference: Callable[..., Any]
    samples: Callable[[np.random.Generator], Iterable[Sample]]
    errors: Callable[[], Iterable[Invalid]]
    call: Callable[..., Any]
    dtypes: tuple[DType, ...] = dtypes.FLOATING
    differentiable: bool = True
    launchers: tuple[str, ...] = ()
    tolerance: dict[str, tuple[float, float]] = field(default_factory=dict)


OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Enter an op.

    Raises:
        KernelError: the name is taken.
    """
    if op.name in OPS:
        raise KernelError(message("register", "op names must be unique", op.name))
    OPS[op.name] = op
    return op


def apply(name: str, *inputs: Any, **params: Any) -> Any:
    """Run an op and record it on the tape.

    Args:
        name: a registered op.
        inputs: its tensor inputs (or None for one left out), in backward's order.
        params: everything else that its forward takes.
    """
    op = OPS[name]
    if op.backward is None:
        with tape.set_grad_enabled(False):
            return tape.record(name, op.forward, _no_backward, inputs, inputs, params)
    return tape.record(name, op.forward, op.backward, inputs, inputs, params)


def _no_backward(context: tape.Context, *gradients: Any) -> Any:
    raise KernelError(message("backward", "the op has no gradient"))


@dataclass(frozen=True)
class Variant:
    """One way to run a launcher.

    Attributes:
        of: which launcher, such as "matmul".
        name: such as "portable" or "blas".
        run: the launcher.
        target: the target that it is for, or None for any.
        when: problem → whether it applies; None for always.
    """

    of: str
    name: str
    run: Callable[..., Any]
    target: str | None
    when: Callable[[Any], bool] | None

    @property
    def portable(self) -> bool:
        """Whether this is the definition: any target, any problem."""
        return self.target is None and self.when is None


_VARIANTS: dict[str, list[Variant]] = {}
_portable_only = False


def variant(
    of: str,
    name: str,
    target: str | None = None,
    when: Callable[[Any], bool] | None = None,
) -> Callable[[F], F]:
    """Decorator: enter a launcher as one way to run `of`. The one entered last is tried first."""

    def enter(run: F) -> F:
        _VARIANTS.setdefault(of, []).insert(0, Variant(of, name, run, target, when))
        return run

    return enter


def choose(of: str, problem: Any = None) -> Callable[..., Any]:
    """The first variant of `of` that is for this target and problem.

    Raises:
        KernelError: none applies.
    """
    for v in _VARIANTS.get(of, ()):
        if v.target is not None and v.target != TARGET:
            continue
        if _portable_only and not v.portable:
            continue
        if v.when is None or v.when(problem):
            return v.run
    raise KernelError(message(of, "must have a variant for this problem", problem))


def has_tuned(op: Op) -> bool:
    """Whether a launcher of the op has a variant for this target that `portable_only` hides."""
    variants = [v for of in op.launchers for v in _VARIANTS[of]]
    return any(not v.portable and v.target in (None, TARGET) for v in variants)


@contextmanager
def portable_only() -> Iterator[None]:
    """Run the portable kernels alone within a block, whatever tuned variants exist."""
    global _portable_only
    before, _portable_only = _portable_only, True
    try:
        yield
    finally:
        _portable_only = before

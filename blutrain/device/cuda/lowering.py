"""Loops and indices in the form that LLVM sees through, for kernels compiled for the GPU.

Numba lowers both as Python means them, which costs a kernel more than its arithmetic:

- `for i in range(a, b, c)` counts the turns down beside i, after a 64-bit division to find their
  number, and hides i behind a select. Here i runs from a by c while it is below b (above, for a
  negative step): a loop whose addresses LLVM strength-reduces and whose loads it unrolls.
- `x[i]` adds the extent where i is negative, four instructions of 64 bits an index. The indices of
  blutrain's own kernels count from the start of an axis, so there an index is used as it is.
  Anybody else's kernel keeps Numba's meaning: `x[-1]` is the last element on both targets.

Summing a row is then one load and one add an element where it was thirteen instructions, most of
them of 64 bits. Ranges behave the same, but for a step of 0, which is not refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.extending import lower_builtin
from numba.cuda.np import arrayobj

_RANGES = (
    (types.range_state32_type, types.range_iter32_type, True),
    (types.range_state64_type, types.range_iter64_type, True),
    (types.unsigned_range_state64_type, types.unsigned_range_iter64_type, False),
)


def _lower_range(state_type: Any, iterator_type: Any, signed: bool) -> None:
    """Enter the iterator of one of Numba's range types; what is entered last is used."""

    def getiter(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        state = cgutils.create_struct_proxy(state_type)(context, builder, values[0])
        iterator = cgutils.create_struct_proxy(iterator_type)(context, builder)
        place = cgutils.alloca_once(builder, state.start.type)
        builder.store(state.start, place)
        iterator.iter = iterator.count = place  # nothing is counted: Numba's field goes unused
        iterator.stop, iterator.step = state.stop, state.step
        return iterator._getvalue()

    @iternext_impl(RefType.BORROWED)
    def iternext(context: Any, builder: Any, signature: Any, values: Any, result: Any) -> None:
        iterator = cgutils.create_struct_proxy(iterator_type)(context, builder, values[0])
        value = builder.load(iterator.iter)
        zero = ir.Constant(value.type, 0)
        if signed:
            below = builder.icmp_signed("<", value, iterator.stop)
            above = builder.icmp_signed(">", value, iterator.stop)
            goes_up = builder.icmp_signed(">", iterator.step, zero)
            goes_on = builder.select(goes_up, below, above)
        else:
            goes_on = builder.icmp_unsigned("<", value, iterator.stop)
        result.set_valid(goes_on)
        # Handed over in any case: under a branch it would become a select in the loop.
        result.yield_(value)
        with builder.if_then(goes_on):
            flags = ["nsw"] if signed else []
            builder.store(builder.add(value, iterator.step, flags=flags), iterator.iter)

    lower_builtin("getiter", state_type)(getiter)
    lower_builtin("iternext", iterator_type)(iternext)


for _range in _RANGES:
    _lower_range(*_range)


def _index_as_it_is(context: Any, builder: Any, kind: Any, index: Any, extent: Any) -> Any:
    return context.cast(builder, index, kind, types.intp)


def counts_from_the_start(kernel: Any) -> bool:
    """Whether a kernel is blutrain's own, whose indices are never negative."""
    return str(kernel.py_func.__module__).startswith("blutrain.cuda_kernels.")


@contextmanager
def indices_from_the_start() -> Iterator[None]:
    """Compile `x[i]` without Python's meaning of a negative i."""
    wrapping = arrayobj.fix_integer_index
    arrayobj.fix_integer_index = _index_as_it_is
    try:
        yield
    finally:
        arrayobj.fix_integer_index = wrapping

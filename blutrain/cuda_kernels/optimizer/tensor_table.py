"""One launch over many tensors: a table of their addresses, and which block does what.

A model has hundreds of parameters, many of them small; one launch for each would leave the GPU idle
between launches. Instead every block is given a chunk of CHUNK elements of one tensor:

    chunks[block]  = (tensor, first element)                         depends on the sizes alone
    table[tensor]  = (address in list 0, address in list 1, ..., size)

where the lists run in parallel: parameters, gradients, moments. The kernel makes arrays of the
addresses with `array_at`.

Both are kept on the device from step to step. Addresses change where gradients are made anew, but
the allocator, asked for the same sizes in the same order, gives the same ones: after a few steps a
table that fits is found and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from blutrain.cuda_kernels.common import BLOCK
from blutrain.cuda_kernels.elementwise.copy import copy_into, dense
from blutrain.cuda_kernels.validate import check_dtype, check_floating
from blutrain.device.array import Array
from blutrain.errors import ShapeError, message
from blutrain.tensor import Tensor, from_numpy

CHUNK = 32 * BLOCK  # elements of a block
KEPT = 32  # tables, chunk maps or constants that are kept of each kind

# Tensors in parallel lists: row k holds what belongs to parameter k.
Rows = list[tuple[Tensor, ...]]
T = TypeVar("T")


class TensorTable(NamedTuple):
    """Where the tensors of a launch are.

    Attributes:
        table: (n_tensors, n_lists + 1) int64.
        chunks: (n_chunks, 2) int64; a block each.
        n_chunks: how many blocks to launch.
    """

    table: Tensor
    chunks: Tensor
    n_chunks: int


class _Kept:
    """The last few device tensors that were made, by what they were made from."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for `key`, made now if need be; the one unused for longest is dropped."""
        made: T = self._made.pop(key) if key in self._made else make()
        self._made[key] = made
        if len(self._made) > KEPT:
            del self._made[next(iter(self._made))]
        return made


_tables = _Kept()
_chunk_maps = _Kept()
_constants = _Kept()


def constant(values: Sequence[float], dtype: Any) -> Tensor:
    """A device tensor of these values, kept for the next step."""
    key = (tuple(values), dtype)
    return _constants.get(key, lambda: from_numpy(np.array(key[0]), dtype))


def tensor_table(rows: Rows) -> TensorTable:
    """The table of tensors in parallel lists.

    Args:
        rows: at least one; the tensors of a row are contiguous and of one size.
    """
    addresses = tuple([t.storage.pointer + t.offset * t.dtype.itemsize for r in rows for t in r])
    sizes = tuple([row[0].size for row in rows])
    chunks = _chunk_maps.get(sizes, lambda: _chunk_map(sizes))
    table = _tables.get((addresses, sizes), lambda: _address_table(addresses, sizes))
    return TensorTable(table, chunks, chunks.shape[0])


def _chunk_map(sizes: Sequence[int]) -> Tensor:
    firsts = [np.arange(0, size, CHUNK) for size in sizes]
    tensors = np.repeat(np.arange(len(sizes)), [len(f) for f in firsts])
    return from_numpy(np.stack([tensors, np.concatenate(firsts)], axis=1).astype(np.int64))


def _address_table(addresses: Sequence[int], sizes: Sequence[int]) -> Tensor:
    columns = np.array(addresses, np.int64).reshape(len(sizes), -1)
    return from_numpy(np.column_stack([columns, np.array(sizes, np.int64)]))


def check_lists(op: str, lists: dict[str, Sequence[Tensor | None]]) -> None:
    """Require lists of tensors that belong together.

    Args:
        op: for messages.
        lists: name → tensors, with None where a parameter has no gradient. The first list's
            shapes are everybody's, and the second's dtypes must be the first's.

    Raises:
        ShapeError: the lists differ in length, or the tensors of a row in shape.
        DTypeError: a tensor is not floating, or a gradient has not its parameter's dtype.
    """
    names = list(lists)
    params = lists[names[0]]
    for name, tensors in lists.items():
        if len(tensors) != len(params):
            wrong = f"{name} must hold {len(params)} tensors like {names[0]}"
            raise ShapeError(message(op, wrong, len(tensors)))
    for k, row in enumerate(zip(*lists.values(), strict=True)):
        for name, t in zip(names, row, strict=True):
            if t is None:
                continue
            check_floating(op, f"{name}[{k}]", t)
            param = check_floating(op, f"{names[0]}[{k}]", row[0])
            if t.shape != param.shape:
                raise ShapeError(message(op, f"{name}[{k}] must have shape {param.shape}", t.shape))
            if name == names[1 % len(names)]:
                check_dtype(op, f"{name}[{k}]", t, param.dtype)


def run_over(
    lists: Sequence[Sequence[Tensor | None]],
    written: Sequence[int],
    run: Callable[[Rows, list[int]], None],
) -> None:
    """Call `run` with the rows of parallel lists, those of equal dtypes together.

    Rows with a None or without elements are left out. A tensor with gaps is packed first, and
    unpacked afterwards where it was written.

    Args:
        lists: as `check_lists` found them fit.
        written: which of the lists `run` writes to.
        run: launches one kernel over contiguous rows, given also where each was in the lists.
    """
    groups: dict[tuple[Any, ...], tuple[Rows, list[int]]] = {}
    unpack: list[tuple[Tensor, Tensor]] = []
    for place, row in enumerate(zip(*lists, strict=True)):
        whole = [t for t in row if t is not None]
        if len(whole) < len(row) or not whole[0].size:
            continue
        packed = tuple([dense(t) for t in whole])
        rows, places = groups.setdefault(tuple([t.dtype for t in packed]), ([], []))
        rows.append(packed)
        places.append(place)
        for k in written:
            whole[k].storage.version += 1
            if packed[k] is not whole[k]:
                unpack.append((whole[k], packed[k]))
    for rows, places in groups.values():
        run(rows, places)
    for tensor, values in unpack:
        copy_into(tensor, values)


def one_number(op: str, name: str, value: float | Tensor) -> float | Tensor:
    """`value` if it is a number or a tensor of one.

    Raises:
        ShapeError: it is a tensor of another size.
    """
    if isinstance(value, Tensor) and value.size != 1:
        raise ShapeError(message(op, f"{name} must be one number", value.shape))
    return value


def device_number(value: float | Tensor, dtype: Any) -> Array:
    """One number as an array of one element on the device, where a kernel reads it."""
    if isinstance(value, Tensor):
        return value.array(1)
    return constant([float(value)], dtype).array()


def number_each(op: str, name: str, value: float | Sequence[float], n: int) -> list[float]:
    """`n` numbers from one for all, or from one each.

    Raises:
        ShapeError: there are neither one nor `n`.
    """
    if isinstance(value, (int, float)):
        return [float(value)] * n
    if len(value) != n:
        raise ShapeError(message(op, f"{name} must be one number or {n} of them", len(value)))
    return [float(v) for v in value]

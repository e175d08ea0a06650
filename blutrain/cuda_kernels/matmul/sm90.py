"""Matrix products on the tensor cores of sm_90: which kernel, which cut, which tensor maps.

A plan holds all that follows from shapes, strides and precision; it is made once for a kind of
product and kept, so that a later call looks it up, makes three tensor maps' keys and launches.

The copy engine wants addresses and strides that are multiples of 16 bytes, and one dense direction.
Any other product, an empty one, and float32 in ieee precision go to the portable kernel.

wgmma reads halves along K or across it, but TF32 along K alone, unless it comes through registers,
which one operand may. So of two float32 operands that both run across K (a weight's gradient) the
smaller is transposed in memory first: two passes over it, where turning it in shared memory made
the whole product bound by shared memory.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from numba import types

from blutrain import dtypes
from blutrain.autograd.registry import variant
from blutrain.cuda_kernels.common import blocks_for, sm90_multiprocessors
from blutrain.cuda_kernels.elementwise.cast import convert
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.matmul import gemm_direct_sm90, gemm_float32_sm90
from blutrain.cuda_kernels.matmul.batches import matrix_of, merged_batch
from blutrain.cuda_kernels.matmul.choice_sm90 import (
    DIRECT_CUTS,
    FLOAT_CUTS,
    Choice,
    best_choice,
)
from blutrain.cuda_kernels.matmul.gemm import gemm
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.cuda_kernels.matmul.tiles_sm90 import BOX_ROWS, ROW
from blutrain.cuda_kernels.matmul.transposed import transpose
from blutrain.device import launch
from blutrain.device.array import Array
from blutrain.precision import matmul_precision
from blutrain.tensor import Tensor, empty


class Operand(NamedTuple):
    """A matrix of the batch as the copy engine sees it.

    Attributes:
        along_k: whether k is the dense direction.
        rows: extent of the other one.
        pitch: bytes between neighbours of the other direction than the dense one.
        batch_pitch: bytes from one matrix to the next.
    """

    along_k: bool
    rows: int
    pitch: int
    batch_pitch: int


class Map(NamedTuple):
    """A tensor map but for the address."""

    element: str
    extents: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int]


class Plan(NamedTuple):
    """A product that these kernels can do.

    Attributes:
        kernel: which one.
        choice: the cut and who does what.
        swapped: A and B have changed places, and the transpose is stored.
        transposed: B as it lies, where it is to be transposed in memory first.
        maps: of A, B and out.
        sizes: (rows, columns, K, matrices) of what the kernel does.
        shares: (steps of the shared tiles that each block does, blocks that do one more).
        placed: by the addresses of A, B and out, those of their tensor maps.
    """

    kernel: Any
    choice: Choice
    swapped: bool
    transposed: Operand | None
    maps: tuple[Map, Map, Map]
    sizes: tuple[int, int, int, int]
    shares: tuple[int, int]
    placed: dict[tuple[int, int, int], tuple[int, ...]]


# What flags of shared tiles hold: a number that nothing else in memory is likely to be.
_numbers = itertools.count(secrets.randbits(61))
KINDS = {"bfloat16": "bf16", "float16": "f16", "tfloat32": "tf32"}

_plans: dict[Any, Plan | None] = {}
# The problem that `_applies` found a plan for last: `gemm_sm90` is called with it next and takes it
# away, so that no tensors are kept.
_latest: tuple[Problem | None, Plan | None] = (None, None)


def plan_of(p: Problem, precision: str) -> Plan | None:
    """The plan for a product, None where the portable kernel is needed."""
    aligned = (p.a.pointer | p.b.pointer | p.out.pointer) % 16 == 0
    key = (
        p.a.shape, p.a.strides, p.b.shape, p.b.strides, p.out.shape, p.out.strides, p.a.dtype,
        p.out.dtype, p.bias is None, p.transpose_a, p.transpose_b, precision, aligned,
    )  # fmt: skip
    try:
        return _plans[key]
    except KeyError:
        plan = _plans[key] = _make_plan(p, precision, sm90_multiprocessors()) if aligned else None
        return plan


def _make_plan(p: Problem, precision: str, n_multiprocessors: int) -> Plan | None:
    """Look at the operands and choose kernel, cut and chunks."""
    size = p.a.dtype.itemsize
    (n_rows, n_inner), a_strides = matrix_of(p.a, p.transpose_a)
    (_, n_cols), b_strides = matrix_of(p.b, p.transpose_b)
    extents, steps = merged_batch((p.a, p.b, p.out))
    if not n_inner or any(n != 1 for n in extents[:-1]):
        return None
    n_batch, batch_steps = extents[-1], [s[-1] for s in steps]
    if n_batch > 1 and not all(batch_steps):
        return None  # a broadcast operand
    a = _operand(n_rows, n_inner, a_strides, batch_steps[0], size)
    b = _operand(n_cols, n_inner, b_strides[::-1], batch_steps[1], size)
    out_size = p.out.dtype.itemsize
    out = _operand(n_rows, n_cols, p.out.strides[-2:], batch_steps[2], out_size)
    if a is None or b is None or out is None or not out.along_k:
        return None
    # The roles are swapped where B then runs along K, or is the smaller one to transpose.
    across = size == 4 and not b.along_k
    swapped = across and (a.along_k or a.rows < b.rows)
    if swapped and p.bias is not None:
        return None
    if swapped:
        a, b = b, a
    transposed = None
    if size == 4 and not b.along_k:
        transposed = b
        pitch = -(-n_inner // 4) * 16
        b = Operand(True, b.rows, pitch, b.rows * pitch)
    n_products = 3 if size == 4 and precision == "tf32x3" else 1
    direct = size == 2 or (n_products == 1 and a.along_k)
    cuts = DIRECT_CUTS if direct else FLOAT_CUTS[n_products]
    choice = best_choice(
        a.rows, b.rows, n_inner, n_batch, size, n_products, cuts, n_multiprocessors
    )
    cut, has_bias = choice.cut, p.bias is not None
    loaded = "tfloat32" if size == 4 and n_products == 1 else p.a.dtype.name
    kernel: Any
    if direct:
        kernel = gemm_direct_sm90.gemm_direct_sm90_kernel(
            cut, KINDS[loaded], p.out.dtype.name, a.along_k, b.along_k, swapped, has_bias
        )
    else:
        kernel = gemm_float32_sm90.gemm_float32_sm90_kernel(
            cut, n_products, a.along_k, swapped, has_bias
        )
    maps = (
        _map(a, n_inner, n_batch, loaded, size, cut.m),
        _map(b, n_inner, n_batch, loaded, size, cut.n),
        Map(p.out.dtype.name, (n_cols, n_rows, n_batch), (out.pitch, out.batch_pitch),
            (ROW // out_size, BOX_ROWS)),
    )  # fmt: skip
    sizes = (a.rows, b.rows, n_inner, n_batch)
    shares = divmod(choice.n_shared * blocks_for(n_inner, ROW // size), choice.grid)
    return Plan(kernel, choice, swapped, transposed, maps, sizes, shares, {})


def kernels() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every kind of kernel that a plan can name, with its argument types, to compile ahead."""
    arguments = (types.int64,) * 13
    make = gemm_direct_sm90.gemm_direct_sm90_kernel
    for cut in DIRECT_CUTS:
        for along in product((True, False), repeat=2):
            yield make(cut, "bf16", "bfloat16", *along, False, False), arguments
            yield make(cut, "bf16", "float32", *along, False, False), arguments
            yield make(cut, "f16", "float16", *along, False, True), arguments
        yield make(cut, "tf32", "float32", True, True, False, True), arguments
    for n_products, cuts in FLOAT_CUTS.items():
        for cut, a_along_k in product(cuts, (True, False)):
            for turned in (False, True):
                kernel = gemm_float32_sm90.gemm_float32_sm90_kernel(
                    cut, n_products, a_along_k, turned, not turned
                )
                yield kernel, arguments


def _operand(
    rows: int, inner: int, strides: tuple[int, ...], batch_step: int, size: int
) -> Operand | None:
    """(rows, inner) with these strides in elements, None where the copy engine cannot take it."""
    row_step, k_step = strides
    if k_step == 1 or inner == 1:
        along_k, pitch, width = True, row_step, inner
        count = rows
    elif row_step == 1 or rows == 1:
        along_k, pitch, width = False, k_step, rows
        count = inner
    else:
        return None
    if count == 1:  # the stride of a single row means nothing
        pitch = -(-width * size // 16) * 16 // size
    if pitch < width or pitch * size % 16 or batch_step * size % 16 or batch_step < 0:
        return None
    return Operand(along_k, rows, pitch * size, batch_step * size)


def _map(x: Operand, n_inner: int, n_batch: int, element: str, size: int, rows: int) -> Map:
    """The tensor map of an operand; a box is 128 bytes wide and, along K, a tile's rows tall."""
    wide = ROW // size
    fast, slow = (n_inner, x.rows) if x.along_k else (x.rows, n_inner)
    box = (wide, rows) if x.along_k else (wide, wide)
    # With one matrix its pitch is not used, but must be a multiple of 16.
    batch_pitch = x.batch_pitch or x.pitch * slow
    return Map(element, (fast, slow, n_batch), (x.pitch, batch_pitch), box)


def _applies(p: Problem) -> bool:
    """Whether these kernels can do a product in the precision in force."""
    global _latest
    if not sm90_multiprocessors() or p.out.size == 0:
        return False
    precision = ""
    if p.a.dtype is dtypes.float32:
        precision = matmul_precision()
        if precision == "bf16":
            return p.a.size > 0
        if precision == "ieee":
            return False
    elif not p.a.dtype.is_half:
        return False
    plan = plan_of(p, precision)
    if plan is not None:
        _latest = (p, plan)
    return plan is not None


@variant("matmul", name="sm90", target="cuda", when=_applies)
def gemm_sm90(p: Problem) -> None:
    """The product on tensor cores, as `Problem` states it."""
    global _latest
    found, _latest = _latest, (None, None)
    plan = found[1]
    if found[0] is not p:
        precision = matmul_precision() if p.a.dtype is dtypes.float32 else ""
        if precision == "bf16":
            p, precision = p._replace(a=_rounded(p.a), b=_rounded(p.b)), ""
        plan = plan_of(p, precision)
    if plan is None:  # the rounded operands are dense, so K or N is no multiple of 8
        gemm(p._replace(a=convert(p.a, p.out.dtype), b=convert(p.b, p.out.dtype)))
        return
    cut, grid, n_shared = plan.choice
    a, b = (p.b, p.a) if plan.swapped else (p.a, p.b)
    if plan.transposed:
        b = _transposed(b, plan.transposed, plan)
    addresses = a.pointer, b.pointer, p.out.pointer
    maps = plan.placed.get(addresses) or _place_maps(plan, addresses)
    bias = 0 if p.bias is None else dense(p.bias).pointer
    held = empty((grid * cut.part // 4,), dtypes.float32) if n_shared else None
    parts = 0 if held is None else held.pointer
    launch(
        plan.kernel, grid, cut.threads, *maps, bias, *plan.sizes, n_shared, *plan.shares, parts,
        next(_numbers),
        shared=plan.kernel.shared,
    )  # fmt: skip


def _place_maps(plan: Plan, addresses: tuple[int, int, int]) -> tuple[int, ...]:
    """The device addresses of the tensor maps of operands at these addresses."""
    from blutrain.device.cuda.tensor_map import tensor_map

    maps = tuple([tensor_map(x, *m) for x, m in zip(addresses, plan.maps, strict=True)])
    plan.placed[addresses] = maps
    return maps


def _transposed(t: Tensor, lies: Operand, plan: Plan) -> Tensor:
    """A copy of B, (n_batch, K, N) in memory, as (n_batch, N, K) with rows of the plan's pitch."""
    _, n_rows, n_inner, n_batch = plan.sizes
    pitch = plan.maps[1].strides[0] // 4
    out = empty((n_batch, n_rows, pitch), t.dtype)
    in_bytes = (lies.batch_pitch, lies.pitch, 4)
    source = Array(t.pointer, (n_batch, n_inner, n_rows), in_bytes, t.dtype, "A", t)
    strides = (4 * n_rows * pitch, 4 * pitch, 4)
    transpose(source, Array(out.pointer, (n_batch, n_rows, n_inner), strides, t.dtype, "A", out))
    return out


def _rounded(t: Tensor) -> Tensor:
    """A float32 tensor as bfloat16."""
    return convert(t, dtypes.bfloat16)

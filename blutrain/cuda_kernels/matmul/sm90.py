"""Matrix products on the tensor cores of sm_90: which kernel, which cut, which tensor maps.

A plan holds all that follows from shapes, strides and precision; it is made once for a kind of
product and kept, so that a later call looks it up, makes three tensor maps' keys and launches.

The copy engine wants addresses and strides that are multiples of 16 bytes, and one dense direction.
Any other product, an empty one, and float32 in ieee precision go to the portable kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from numba import types

from blutrain import dtypes
from blutrain.autograd.registry import variant
from blutrain.cuda_kernels.common import BLOCK, blocks_for
from blutrain.cuda_kernels.elementwise.cast import convert
from blutrain.cuda_kernels.elementwise.copy import dense
from blutrain.cuda_kernels.matmul import gemm_float32_sm90, gemm_half_sm90
from blutrain.cuda_kernels.matmul.gemm import gemm, matrix_of, merged_batch, sum_chunks_kernel
from blutrain.cuda_kernels.matmul.problem import Problem
from blutrain.cuda_kernels.matmul.tiles_sm90 import BOX_ROWS, ROW, THREADS, TILE_M, Cut
from blutrain.device import TARGET, launch
from blutrain.device.array import Array
from blutrain.precision import matmul_precision
from blutrain.tensor import Tensor, empty

# Tiles that are compiled, widest first, by whether B is read as it is, and the number of products.
# The stages are as many as shared memory holds.
HALF_CUTS = (Cut(256, 4), Cut(192, 4), Cut(128, 5))
FLOAT_CUTS = {
    (True, 1): (Cut(256, 4), Cut(192, 4), Cut(128, 5)),
    (True, 3): (Cut(192, 3), Cut(128, 4)),
    (False, 1): (Cut(192, 3), Cut(128, 4)),
    (False, 3): (Cut(192, 2), Cut(128, 3)),
}
# What the choice of a cut weighs, in cycles of an SM.
MULTIPLIES = {2: 2048, 4: 1024}  # a cycle, by the operands' size in bytes
EFFICIENCY = 0.75  # of the tensor cores, reached in a long product
TURNING = 1.6  # how much longer a step takes whose B is turned
TILE_COST = 1500  # a tile's first copies and last stores
SUMMING_COST = 9000  # one more launch
BYTES_A_CYCLE = 1500  # of device memory, as the summing kernel reaches it
MAX_CHUNKS = 32
MIN_STEPS = 8  # of a chunk of K


class Operand(NamedTuple):
    """A matrix of the batch as the copy engine sees it.

    Attributes:
        along_k: whether k is the dense direction.
        rows: extent of the other one.
        pitch: bytes between neighbours of the other direction than the dense one.
        k_step: bytes between neighbours along K.
        batch_pitch: bytes from one matrix to the next.
    """

    along_k: bool
    rows: int
    pitch: int
    k_step: int
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
        grid: blocks.
        swapped: A and B have changed places, and the transpose is stored.
        maps: of A, B and out, or of A, B and the chunks' results.
        sizes: (rows, columns, K, matrices) of what the kernel does.
        n_chunks: parts of K that are multiplied apart and then added up.
    """

    kernel: Any
    grid: int
    swapped: bool
    maps: tuple[Map, Map, Map]
    sizes: tuple[int, int, int, int]
    n_chunks: int


@functools.cache
def _multiprocessors() -> int:
    """Of the device in use if it is an sm_90, else 0."""
    if TARGET != "cuda":
        return 0
    from blutrain.device.cuda import driver

    found = driver.properties()
    return found.n_multiprocessors if found.compute_capability == (9, 0) else 0


_plans: dict[Any, Plan | None] = {}


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
        plan = _plans[key] = _make_plan(p, precision, _multiprocessors()) if aligned else None
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
    # The roles are swapped where B then need not be turned.
    swapped = size == 4 and a.along_k and not b.along_k
    if swapped and p.bias is not None:
        return None
    if swapped:
        a, b = b, a
    n_products = 3 if size == 4 and precision == "tf32x3" else 1
    cuts = HALF_CUTS if size == 2 else FLOAT_CUTS[b.along_k, n_products]
    may_chunk = n_batch == 1 and p.bias is None
    n_chunks, cut = _best_cut(
        a.rows, b.rows, n_inner, n_batch, size, n_products, b.along_k, cuts, may_chunk,
        n_multiprocessors,
    )  # fmt: skip
    if n_chunks > 1:
        a, b = (_in_chunks(x, n_inner, n_chunks) for x in (a, b))
        n_inner, n_batch = n_inner // n_chunks, n_chunks
        out = Operand(True, n_rows, n_cols * 4, 4, n_rows * n_cols * 4)
        out_size = 4
    element = "float32" if out_size == 4 else p.out.dtype.name
    has_bias = p.bias is not None
    kernel: Any
    if size == 2:
        kind = "bf16" if p.a.dtype is dtypes.bfloat16 else "f16"
        kernel = gemm_half_sm90.gemm_half_sm90_kernel(
            cut, kind, element, a.along_k, b.along_k, has_bias
        )
        loaded = p.a.dtype.name
    else:
        kernel = gemm_float32_sm90.gemm_float32_sm90_kernel(
            cut, n_products, a.along_k, b.along_k, swapped, has_bias
        )
        loaded = "float32" if n_products == 3 else "tfloat32"
    n_tiles = blocks_for(a.rows, TILE_M) * blocks_for(b.rows, cut.n) * n_batch
    maps = (
        _map(a, n_inner, n_batch, loaded, size, TILE_M),
        _map(b, n_inner, n_batch, loaded, size, cut.n),
        Map(element, (n_cols, n_rows, n_batch), (out.pitch, out.batch_pitch),
            (ROW // out_size, BOX_ROWS)),
    )  # fmt: skip
    sizes = (a.rows, b.rows, n_inner, n_batch)
    return Plan(kernel, min(n_tiles, n_multiprocessors), swapped, maps, sizes, n_chunks)


def kernels() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every kind of kernel that a plan can name, with its argument types, to compile ahead."""
    arguments = (types.int64,) * 8
    for cut in HALF_CUTS:
        for along in product((True, False), repeat=2):
            make = gemm_half_sm90.gemm_half_sm90_kernel
            yield make(cut, "bf16", "bfloat16", *along, False), arguments
            yield make(cut, "bf16", "float32", *along, False), arguments
            yield make(cut, "f16", "float16", *along, True), arguments
    for (b_along_k, n_products), cuts in FLOAT_CUTS.items():
        for cut in cuts:
            for a_along_k in (True, False) if b_along_k else (False,):
                for turned in (False, True) if b_along_k and not a_along_k else (False,):
                    kernel = gemm_float32_sm90.gemm_float32_sm90_kernel(
                        cut, n_products, a_along_k, b_along_k, turned, not turned
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
    k_bytes = size if along_k else pitch * size
    return Operand(along_k, rows, pitch * size, k_bytes, batch_step * size)


def _in_chunks(x: Operand, n_inner: int, n_chunks: int) -> Operand:
    """The same operand with parts of K as its batch."""
    return x._replace(batch_pitch=n_inner // n_chunks * x.k_step)


def _map(x: Operand, n_inner: int, n_batch: int, element: str, size: int, rows: int) -> Map:
    """The tensor map of an operand; a box is 128 bytes wide and, along K, a tile's rows tall."""
    wide = ROW // size
    fast, slow = (n_inner, x.rows) if x.along_k else (x.rows, n_inner)
    box = (wide, rows) if x.along_k else (wide, wide)
    # With one matrix its pitch is not used, but must be a multiple of 16.
    batch_pitch = x.batch_pitch or x.pitch * slow
    return Map(element, (fast, slow, n_batch), (x.pitch, batch_pitch), box)


def _best_cut(
    n_rows: int,
    n_cols: int,
    n_inner: int,
    n_batch: int,
    size: int,
    n_products: int,
    b_along_k: bool,
    cuts: tuple[Cut, ...],
    may_chunk: bool,
    n_multiprocessors: int,
) -> tuple[int, Cut]:
    """(chunks of K, tile) of the least estimated time.

    Few tiles leave SMs idle, and so does a last round of few: a long K is cut then, at the price of
    adding up the parts.
    """
    tile_k = ROW // size

    def cycles(n_chunks: int, cut: Cut) -> float:
        n_tiles = blocks_for(n_rows, TILE_M) * blocks_for(n_cols, cut.n) * n_batch * n_chunks
        n_steps = blocks_for(n_inner // n_chunks, tile_k)
        step = TILE_M * cut.n * tile_k * n_products / (MULTIPLIES[size] * EFFICIENCY)
        if size == 4 and not b_along_k:
            step *= TURNING
        rounds = blocks_for(n_tiles, n_multiprocessors)
        total = rounds * (n_steps * step + TILE_COST)
        if n_chunks > 1:
            total += SUMMING_COST + (n_chunks + 1) * n_rows * n_cols * 4 / BYTES_A_CYCLE
        return total

    chunks = _chunk_counts(n_inner, tile_k) if may_chunk else iter((1,))
    return min(((n, cut) for n in chunks for cut in cuts), key=lambda choice: cycles(*choice))


def _chunk_counts(n_inner: int, tile_k: int) -> Iterator[int]:
    """1 and every number of equal parts of K that are whole steps, and enough of them."""
    yield 1
    for n in range(2, MAX_CHUNKS + 1):
        if n_inner % (n * tile_k) == 0 and n_inner // (n * tile_k) >= MIN_STEPS:
            yield n


def _applies(p: Problem) -> bool:
    """Whether these kernels can do a product in the precision in force."""
    if not _multiprocessors() or p.out.size == 0:
        return False
    if p.a.dtype is dtypes.float32:
        precision = matmul_precision()
        if precision == "bf16":
            return p.a.size > 0
        return precision != "ieee" and plan_of(p, precision) is not None
    return p.a.dtype.is_half and plan_of(p, "") is not None


@variant("matmul", name="sm90", target="cuda", when=_applies)
def gemm_sm90(p: Problem) -> None:
    """The product on tensor cores, as `Problem` states it."""
    precision = matmul_precision() if p.a.dtype is dtypes.float32 else ""
    if precision == "bf16":
        p, precision = p._replace(a=_rounded(p.a), b=_rounded(p.b)), ""
    plan = plan_of(p, precision)
    if plan is None:  # the rounded operands are dense, so K or N is no multiple of 8
        gemm(p._replace(a=convert(p.a, p.out.dtype), b=convert(p.b, p.out.dtype)))
        return
    from blutrain.device.cuda.tensor_map import tensor_map

    n_rows, n_cols = p.out.shape[-2:]
    out = p.out
    if plan.n_chunks > 1:
        out = empty((plan.n_chunks, n_rows, n_cols), dtypes.float32)
    a, b = (p.b, p.a) if plan.swapped else (p.a, p.b)
    maps = (tensor_map(t.pointer, *m) for t, m in zip((a, b, out), plan.maps, strict=True))
    bias = 0 if p.bias is None else dense(p.bias).pointer
    launch(plan.kernel, plan.grid, THREADS, *maps, bias, *plan.sizes, shared=plan.kernel.shared)
    if plan.n_chunks > 1:
        in_bytes = (0, 0, *(s * p.out.dtype.itemsize for s in p.out.strides[-2:]))
        target = Array(p.out.pointer, (1, 1, n_rows, n_cols), in_bytes, p.out.dtype, "A", p.out)
        launch(sum_chunks_kernel, blocks_for(n_rows * n_cols), BLOCK, out, target)


def _rounded(t: Tensor) -> Tensor:
    """A float32 tensor as bfloat16."""
    return convert(t, dtypes.bfloat16)

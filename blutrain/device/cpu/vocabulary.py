"""What each name of `numba.cuda` and `math` means on the CPU."""

from __future__ import annotations

import ast
import math
from typing import Any

from blutrain.device.cpu import integers, vectors
from blutrain.device.cpu import math as cpu_math
from blutrain.device.cpu.atomics import ATOMICS
from blutrain.device.cpu.program import WARP, Program
from blutrain.device.cpu.syntax import expression

# A vote's value for lanes that are masked off: such lanes do not count.
WARP_VOTES = {"ballot_sync": False, "any_sync": False, "all_sync": True}
BLOCK_VOTES = {"syncthreads_count": False, "syncthreads_or": False, "syncthreads_and": True}
MATCH = "match_any_sync"
# A PTX instruction of a whole warp; see `ptx/lanes.py`.
INSTRUCTION = "instruction"
# What each takes; the mask comes first where a warp meets.
COLLECTIVES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(WARP_VOTES, ("mask", "predicate")),
    **dict.fromkeys(BLOCK_VOTES, ("predicate",)),
    "shfl_sync": ("mask", "value", "lane"),
    "shfl_up_sync": ("mask", "value", "delta"),
    "shfl_down_sync": ("mask", "value", "delta"),
    "shfl_xor_sync": ("mask", "value", "lane_mask"),
    MATCH: ("mask", "value"),
}

MINIMUM, MAXIMUM = cpu_math.minimum, cpu_math.maximum

_FUNCTIONS: dict[str, Any] = {
    "fma": cpu_math.fma,
    "popc": integers.popc,
    "clz": integers.clz,
    "brev": integers.brev,
    "ffs": integers.ffs,
    "selp": cpu_math.select,
    "cbrt": cpu_math.cbrt,
    **{f"atomic.{name}": function for name, function in ATOMICS.items()},
}


def cuda_function(path: str) -> Any:
    """The function for `cuda.<path>`, or None."""
    return _FUNCTIONS.get(path) or vectors.maker(path)


def name_of(meaning: Any) -> str:
    """The name under which a program refers to one of this package's functions."""
    return "_" + str(meaning._name).strip("_")


_MATH: dict[Any, Any] = {
    getattr(math, name): meaning for name, meaning in cpu_math.MATH.items() if hasattr(math, name)
}


def cpu_meaning(value: Any) -> Any:
    """The function that stands for one of `math` or of CUDA's libdevice, or None."""
    try:
        found = _MATH.get(value)
    except TypeError:  # not hashable, so no function
        return None
    if found is None and getattr(value, "__module__", "") == "numba.cuda.libdevice":
        return cpu_math.LIBDEVICE.get(value.__name__)
    return found


# Arithmetic of float16, whose values are float32 numbers: rounding the float32 result once more
# gives what rounding the exact one does, since float32 has more than twice float16's digits.
HALF = {
    "hadd": "_half({0} + {1})", "hsub": "_half({0} - {1})", "hmul": "_half({0} * {1})",
    "hdiv": "_half({0} / {1})", "hfma": "_half(_fma({0}, {1}, {2}))", "hneg": "-({0})",
    "habs": "_fabs({0})", "heq": "({0}) == ({1})", "hne": "({0}) != ({1})",
    "hge": "({0}) >= ({1})", "hgt": "({0}) > ({1})", "hle": "({0}) <= ({1})",
    "hlt": "({0}) < ({1})", "hmax": "_maximum({0}, {1})", "hmin": "_minimum({0}, {1})",
    "hrcp": "_half(_one / ({0}))", "hrsqrt": "_half(_rsqrt({0}))", "hexp2": "_half(_exp2({0}))",
    "hexp10": "_half(_pow(_ten, {0}))",
    **{f"h{f}": f"_half(_{f}({{0}}))"
       for f in ("sin", "cos", "log", "log2", "log10", "exp", "sqrt", "ceil", "floor", "trunc",
                 "rint")},
}  # fmt: skip
HALF_NAMES: dict[str, Any] = {
    "_half": cpu_math.half, "_one": cpu_math.ONE, "_ten": cpu_math.TEN, "_fma": cpu_math.fma,
    "_maximum": cpu_math.maximum, "_minimum": cpu_math.minimum,
    **{f"_{name}": meaning for name, meaning in cpu_math.MATH.items()},
    "_rsqrt": cpu_math.rsqrt, "_rint": cpu_math.rint,
}  # fmt: skip


def position(path: str, program: Program) -> ast.expr | None:
    """`threadIdx.x` and its kind as an expression of the compiler's names, or None."""
    root, _, axis = path.partition(".")
    if path == "laneid":
        return expression("_t" if program.n_threads == WARP else "_lane")
    if path == "warpsize":
        return ast.Constant(WARP)
    if not axis and root in ("threadIdx", "blockIdx", "blockDim", "gridDim"):
        return ast.Tuple([position(f"{root}.{k}", program) for k in "xyz"], ast.Load())  # type: ignore[misc]
    if axis not in ("x", "y", "z") or len(axis) != 1:
        return None
    k = "xyz".index(axis)
    if root == "blockDim":
        return ast.Constant(program.shape[k])
    if root == "blockIdx":
        return expression("_b" + axis)
    if root == "gridDim":
        return expression("_g" + axis)
    if root == "threadIdx":
        return thread(k, program)
    return None


def thread(k: int, program: Program) -> ast.expr:
    """The index of a thread along an axis."""
    if program.shape[k] == 1:
        return ast.Constant(0)
    if program.warps_apart and k > 0:
        return expression("_w" + "xyz"[k])
    return expression("_t" if program.is_flat else "_t" + "xyz"[k])


def grid(path: str, k: int, program: Program) -> ast.expr:
    """`cuda.grid` or `cuda.gridsize` along an axis."""
    axis, extent = "xyz"[k], program.shape[k]
    if path == "gridsize":
        return expression(f"_g{axis} * {extent}")
    if extent == 1:
        return expression(f"_b{axis}")
    return expression(f"_b{axis} * {extent} + {ast.unparse(thread(k, program))}")

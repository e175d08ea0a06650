"""Bounds checks, for `Options(check_bounds=True)`: which array, which index, which thread.

On a GPU an index out of bounds reads something else, or breaks something else, later. Here it is an
error that names the kernel's line:

    kernel scale: index 1000 is out of bounds for axis 0 of x, which has 1000 elements, in
    block (3, 0, 0), thread 232 (in `y[i] = 2 * x[i]`, kernels.py:12)
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from blutrain.device.cpu.arrays import SHAPE
from blutrain.device.cpu.syntax import call, name

_I1, _I64 = ir.IntType(1), ir.IntType(64)

# What a failed check leaves behind the places of a result and an exception, in slots of 8 bytes.
REPORT = ("site", "axis", "index", "extent", "block", "thread")
FIRST = 2


class OutOfBounds(Exception):
    """An index is out of bounds; the report says which."""


@intrinsic
def _checked(
    typing_context: Any, index: Any, array: Any, axis: Any, site: Any, block: Any, thread: Any
) -> Any:
    """The index, if it is within the array's extent; otherwise the program ends with a report."""
    given = types.unliteral(index)
    integers = (types.int64,) * 4
    signature = given(given, array, *integers)
    is_array = hasattr(array, "ndim") and not isinstance(array, types.BaseTuple)
    if not isinstance(given, types.Integer) or not is_array:
        return signature, lambda context, builder, signature, values: values[0]

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        i, view, axis_value, *rest = values
        wide = context.cast(builder, i, given, types.int64)
        extent = builder.extract_value(view, (SHAPE, axis_value.constant))
        inside = builder.icmp_signed("<", wide, extent)
        least = builder.neg(extent) if given.signed else _I64(0)  # negative: from the end
        inside = builder.and_(inside, builder.icmp_signed(">=", wide, least))
        with builder.if_then(builder.not_(inside), likely=False):
            report = builder.bitcast(builder.function.args[0], _I64.as_pointer())
            found = (rest[0], axis_value, wide, extent, rest[1], rest[2])
            for k, value in enumerate(found):
                builder.store(value, builder.gep(report, [_I64(FIRST + k)]))
            context.call_conv.return_user_exc(builder, OutOfBounds, ())
        return i

    return signature, codegen


checked = _checked


class Checks(ast.NodeTransformer):
    """Puts a check around every index.

    Attributes:
        sites: for each check, the array's name and the statement's origin.
    """

    def __init__(self) -> None:
        self.sites: list[tuple[str, Any]] = []
        self.origin: Any = None
        self.in_thread = False

    def statements(self, body: Sequence[ast.stmt], in_thread: bool) -> list[ast.stmt]:
        """The statements with their checks, in place."""
        self.in_thread = in_thread
        return [self.visit(s) for s in body]

    def visit(self, node: ast.AST) -> Any:
        """Remember which statement of the kernel this is."""
        self.origin = getattr(node, "origin", self.origin)
        return super().visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`x[i, j]` of a named array; a shape is no array."""
        self.generic_visit(node)
        if not isinstance(node.value, ast.Name):
            return node
        many = isinstance(node.slice, ast.Tuple)
        parts: list[ast.expr] = node.slice.elts if many else [node.slice]  # type: ignore[attr-defined]
        made = [
            part if isinstance(part, ast.Slice) else self._check(part, node.value.id, axis)
            for axis, part in enumerate(parts)
        ]
        node.slice = ast.Tuple(made, ast.Load()) if many else made[0]
        return node

    def _check(self, index: ast.expr, array: str, axis: int) -> ast.expr:
        site = len(self.sites)
        self.sites.append((array, self.origin))
        thread = name("_t") if self.in_thread else ast.Constant(-1)
        where = (ast.Constant(axis), ast.Constant(site), name("_b"), thread)
        return call("_checked", index, name(array), *where)


def describe(report: Sequence[int], sites: Sequence[tuple[str, Any]], grid: Sequence[int]) -> str:
    """The end of the error message for a report, after the kernel's name.

    Args:
        report: values of the fields that `REPORT` names.
        sites: what each check is about, from `Checks`.
        grid: blocks in x, y and z.
    """
    site, axis, index, extent, block, thread = report
    array, origin = sites[site]
    gx, gy, _ = grid
    place = (block % gx, block // gx % gy, block // (gx * gy))
    text = (
        f"index {index} is out of bounds for axis {axis} of {array.removesuffix('__t')}, which has "
        f"{extent} elements, in block {place}"
    )
    if thread >= 0:
        text += f", thread {thread}"
    if origin is not None:
        source, line = origin
        text += f" (in `{source.lines[line - 1].strip()}`, {source.place(line)})"
    return text

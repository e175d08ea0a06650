"""Elements of arrays, tuples and records as LLVM values, and stores into them."""

from __future__ import annotations

import abc
import ast
import operator
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from blutrain.device.cpu import vectors
from blutrain.device.cpu.arrays import DATA, ITEMSIZE, NITEMS, SHAPE, STRIDES
from blutrain.device.cpu.conversions import Conversions
from blutrain.device.cpu.signatures import TypingError, field_of, indexes_element, resolve

I64 = ir.IntType(64)
_FIELDS = {"size": NITEMS, "itemsize": ITEMSIZE, "shape": SHAPE, "strides": STRIDES}


class Elements(Conversions, abc.ABC):
    """Reads and writes parts of values."""

    def _attribute(self, node: ast.Attribute) -> Any:
        kind = self.kind(node.value)
        base = self.of(node.value)
        element = vectors.field(kind, node.attr)
        if element is not None:
            return self.builder.extract_value(base, element)
        if isinstance(kind, types.Array) and node.attr in _FIELDS:
            field = self.builder.extract_value(base, _FIELDS[node.attr])
            return field
        result = self.context.typing_context.resolve_getattr(kind, node.attr)
        get = self.context.get_getattr(kind, node.attr)
        if get is None:  # a constant of the type itself, such as ndim
            return self.context.get_constant_generic(self.builder, result, getattr(kind, node.attr))
        return get(self.context, self.builder, kind, base, node.attr)

    def element_kind(self, node: ast.Subscript) -> types.Type | None:
        """The type of an array's element that a subscript stores into; None for other stores."""
        base, index = self.kind(node.value), self.kind(node.slice)
        if isinstance(base, types.Array) and indexes_element(base, index):
            return base.dtype
        return None

    def _subscript(self, node: ast.Subscript) -> Any:
        base, index = self.kind(node.value), self.kind(node.slice)
        if isinstance(base, types.Array) and indexes_element(base, index):
            place = self._place(node, base)
            if isinstance(base.dtype, types.Record):  # its value is where it is
                model = self.context.data_model_manager[base.dtype]
                return model.load_from_data_pointer(self.builder, place)
            loaded = self.builder.load(place)
            self._in_groups(loaded, node.value)
            return self.context.data_model_manager[base.dtype].from_data(self.builder, loaded)
        if isinstance(base, types.BaseTuple) and isinstance(node.slice, ast.Constant):
            return self._tuple_element(node, base)
        field = field_of(base, node)
        if field is not None:
            return self._attribute(field)
        signature = resolve(operator.getitem, (base, index), node)
        values = [self.of(node.value), self.of(node.slice)]
        return self.apply(operator.getitem, signature, (base, index), values)

    def _tuple_element(self, node: ast.Subscript, base: types.BaseTuple) -> Any:
        assert isinstance(node.slice, ast.Constant)
        k = int(node.slice.value)  # type: ignore[arg-type]
        return self.builder.extract_value(self.of(node.value), k % len(base))

    def store(self, node: ast.Subscript, value: Any, kind: types.Type) -> None:
        """Store into an element."""
        base, index = self.kind(node.value), self.kind(node.slice)
        if isinstance(base, types.Array) and indexes_element(base, index):
            cast = self.cast(value, kind, base.dtype)
            data = self.context.data_model_manager[base.dtype].as_data(self.builder, cast)
            stored = self.builder.store(data, self._place(node, base))
            self._in_groups(stored, node.value)
            return
        field = field_of(base, node)
        if field is not None:
            self.store_field(field, value, kind)
            return
        signature = resolve(operator.setitem, (base, index, kind), node)
        values = [self.of(node.value), self.of(node.slice), value]
        self.apply(operator.setitem, signature, (base, index, kind), values)

    def _in_groups(self, access: Any, array: ast.expr) -> None:
        """Mark an access that threads may make in any order."""
        if not self.groups or not isinstance(array, ast.Name) or array.id in self.own:
            return
        if array.id not in self.fixed and not array.id.startswith("_"):
            return  # made within the kernel: perhaps a second name for a part of another array
        group = self.groups[0]
        if len(self.groups) > 1:
            group = self.builder.module.add_metadata(self.groups)
        access.set_metadata("llvm.access.group", group)

    def store_field(self, node: ast.Attribute, value: Any, kind: types.Type) -> None:
        """Store into a field of a record."""
        record = self.kind(node.value)
        signature = self.context.typing_context.resolve_setattr(record, node.attr, kind)
        if signature is None:
            raise TypingError(node, f"a {kind} cannot be stored in {node.attr!r} of a {record}")
        given = self.cast(value, kind, signature.args[1])
        store = self.context.get_setattr(node.attr, signature)
        store(self.builder, [self.of(node.value), given])

    def _place(self, node: ast.Subscript, base: types.Array) -> Any:
        """The address of an element."""
        view = self.of(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else None
        if parts is None:
            parts = [node.slice]
            kinds: Sequence[types.Type] = [self.kind(node.slice)]
            if isinstance(kinds[0], types.BaseTuple):
                kinds = list(kinds[0])
                indices = cgutils.unpack_tuple(self.builder, self.of(node.slice), len(kinds))
            else:
                indices = [self.of(node.slice)]
        else:
            kinds = [self.kind(p) for p in parts]
            indices = [self.of(p) for p in parts]
        builder = self.builder
        offsets = []
        for axis, (value, kind) in enumerate(zip(indices, kinds, strict=True)):
            i = self.cast(value, kind, types.uint64 if not kind.signed else types.int64)
            constant = isinstance(i, ir.Constant) and isinstance(i.constant, int)
            if kind.signed and not (constant and i.constant >= 0):
                extent = builder.extract_value(view, (SHAPE, axis))
                below = builder.icmp_signed("<", i, I64(0))
                i = builder.select(below, builder.add(i, extent), i)
            offsets.append(i)
        data = builder.extract_value(view, DATA)
        if base.layout == "C":
            offset = offsets[0] if offsets else I64(0)
            for axis, i in enumerate(offsets[1:], 1):
                extent = builder.extract_value(view, (SHAPE, axis))
                offset = builder.add(builder.mul(offset, extent), i)
            return builder.gep(data, [offset], inbounds=False)
        offset = I64(0)
        for axis, i in enumerate(offsets):
            step = builder.extract_value(view, (STRIDES, axis))
            offset = builder.add(offset, builder.mul(i, step))
        return cgutils.pointer_add(builder, data, offset)

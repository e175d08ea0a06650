"""Which function lowers which instruction of one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blutrain.device.cpu.ptx import memory, operations
from blutrain.device.cpu.ptx.parse import Statement
from blutrain.device.cpu.ptx.refused import refusal
from blutrain.device.cpu.ptx.statements import Meaning, Registers, lower


def _nothing(registers: Registers, s: Statement) -> None:
    """Orders what on the CPU is in order."""


_MEANINGS: dict[str, Meaning] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor"),
                    operations.binary),
    **dict.fromkeys(("shl", "shr"), operations.shift),
    **dict.fromkeys(("mad", "fma"), operations.multiply_add),
    **dict.fromkeys(("mov", "neg", "not", "abs"), operations.unary),
    **dict.fromkeys(("ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh"), operations.approximate),
    "setp": operations.compare, "selp": operations.choose, "prmt": operations.permute,
    "cvt": operations.convert, "cvta": memory.to_shared, "ld": memory.load, "st": memory.store,
    "cp.async.ca": memory.copy, "cp.async.cg": memory.copy, "cp.async.commit_group": _nothing,
    "cp.async.wait_group": _nothing, "cp.async.wait_all": _nothing, "membar": _nothing,
    "fence": _nothing,
}  # fmt: skip


def meaning_of(s: Statement) -> Meaning:
    """The function that lowers a statement.

    Raises:
        NotOnTheCpu: there is none.
    """
    found = _MEANINGS.get(s.parts[0]) or _MEANINGS.get(".".join(s.parts[:3]))
    if found is None:
        raise refusal(s.opcode)
    return found


def assembly(builder: Any, window: Callable[[], Any], inline: Any, values: Any) -> Any:
    """The result of llvmlite's InlineAsm `inline` on some values, as LLVM code.

    Raises:
        NotOnTheCpu: an instruction has no meaning on the CPU.
    """
    return lower(builder, window, meaning_of, inline, values)

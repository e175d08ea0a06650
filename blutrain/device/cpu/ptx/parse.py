"""The text of inline PTX as statements."""

from __future__ import annotations

import re
from dataclasses import dataclass


class NotOnTheCpu(Exception):
    """An instruction has no meaning on the CPU."""


@dataclass(frozen=True)
class Address:
    """An operand in brackets: a register and a constant number of bytes."""

    base: str
    offset: int


Operand = str | tuple[str, ...] | Address


@dataclass(frozen=True)
class Statement:
    """One instruction.

    Attributes:
        guard: the predicate it depends on, after a "!" if it must be false; or "".
        opcode: the instruction with its modifiers.
        operands: registers and immediates, tuples of these, addresses.
    """

    guard: str
    opcode: str
    operands: tuple[Operand, ...]

    @property
    def parts(self) -> list[str]:
        """The opcode, taken apart at its dots."""
        return self.opcode.split(".")


_STATEMENT = re.compile(r"(?:@(!?\w+)\s+)?([\w.:]+)\s*(.*)", re.S)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_LABEL = re.compile(r"^\w+\s*:\s")


def parse(text: str) -> tuple[dict[str, str], list[Statement]]:
    """The registers that a text declares, with their types, and its statements.

    Example:
        >>> registers, statements = parse("{ .reg .pred p; setp.ne.b32 p, $1, 0; }")
        >>> registers
        {'p': 'pred'}
        >>> statements
        [Statement(guard='', opcode='setp.ne.b32', operands=('p', '$1', '0'))]
    """
    registers: dict[str, str] = {}
    statements: list[Statement] = []
    for piece in text.split(";"):
        line = piece.strip()
        line = line[1:].strip() if line.startswith("{") else line
        line = _LABEL.sub("", line)  # a jump to it is refused
        if line in ("", "}"):
            continue
        if line.startswith(".reg"):
            kind, names = line[4:].strip()[1:].split(None, 1)
            registers.update({n.strip(): kind for n in names.split(",")})
            continue
        found = _STATEMENT.fullmatch(line)
        if found is None:
            raise NotOnTheCpu(f"`{line}`")
        guard, opcode, rest = found.groups()
        operands = tuple(_operand(o) for o in _OPERAND.findall(rest))
        statements.append(Statement(guard or "", opcode, operands))
    return registers, statements


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return tuple(p.strip() for p in text[1:-1].split(","))
    if text.startswith("["):
        base, _, offset = text[1:-1].partition("+")
        return Address(base.strip(), int(offset or "0", 0))
    return text

"""Write docs/ops.md, the table of operations, from the registry."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import blutrain as bt
from blutrain.autograd.registry import OPS, Op

HERE = Path(__file__).resolve().parent
HEAD = """# Operations
Drawn from the registry by `docs/make_op_table.py`; `make docs` draws it again. Every operation is
tested in each dtype listed against a float64 reference, and every gradient against finite
differences of that reference.

| operation | what it computes | floating dtypes | gradient | file |
|---|---|---|---|---|
"""


def public(op: Op) -> Any:
    """What a user calls."""
    return getattr(bt, op.name)


def summary(op: Op) -> str:
    """The first sentence of the public function's docstring, fit for a table's cell."""
    paragraph = inspect.cleandoc(public(op).__doc__ or "").split("\n\n")[0].replace("\n", " ")
    sentence = paragraph.split(". ")[0].rstrip(".")
    return sentence.replace("|", "\\|")


def signature(op: Op) -> str:
    """The call as a user writes it: names and defaults, no annotations."""
    parameters = inspect.signature(public(op)).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    text = ", ".join(str(p) for p in bare)
    return f"{op.name}({text})".replace("|", "\\|")


def row(op: Op) -> str:
    """One line of the table."""
    dtypes = ", ".join(d.name for d in op.dtypes) or "none"
    gradient = "yes" if op.differentiable and op.backward is not None else "no"
    path = op.call.__module__.replace(".", "/") + ".py"
    file = f"[{Path(path).name}](../{path})"
    return f"| `{signature(op)}` | {summary(op)} | {dtypes} | {gradient} | {file} |\n"


def table() -> str:
    """The whole document."""
    # A case of another op's function (gelu's tanh form) stands in that one's row.
    shown = [op for op in OPS.values() if not op.call.__name__.startswith("_")]
    ops = sorted(shown, key=lambda op: (op.call.__module__, op.name))
    return HEAD + "".join(row(op) for op in ops)


if __name__ == "__main__":
    (HERE / "ops.md").write_text(table())

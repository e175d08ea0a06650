"""A text that every machine with Python has: the standard library and its documentation strings.

Two sources: the library's own `.py` files (among them `pydoc_data/topics.py`, most of the language
reference in English), and the docstrings of modules that are written in C. The held-out part is
whole *files*, chosen by a hash of their path, so a text never stands on both sides and the same
file falls on the same side on every machine.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blutrain.errors import DataError, message

# encodings/ holds a hundred near-copies of one table: a held-out one would stand in training too.
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "encodings"})
_HELD_OUT_ONE_IN = 20


@dataclass(frozen=True)
class Document:
    """One file's text, or one C module's docstrings.

    Attributes:
        name: path relative to the standard library, or `doc:MODULE`.
        text: the text, with Unix line ends.
    """

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether this document is kept for evaluation (one in twenty is)."""
        return hashlib.sha256(self.name.encode()).digest()[0] % _HELD_OUT_ONE_IN == 0


def standard_library(root: Path | None = None) -> list[Document]:
    """The documents of the running Python's standard library, in the order of their names.

    Args:
        root: the library's folder; the running Python's own when left out.

    Returns:
        Sources that are UTF-8, then docstrings of modules written in C.

    Raises:
        DataError: the folder holds no Python source.

    Example:
        >>> documents = standard_library()
        >>> next(d.name for d in documents if d.name.startswith("json/"))
        'json/__init__.py'
        >>> 0 < sum(d.held_out for d in documents) < len(documents) // 10
        True
    """
    folder = root or Path(sysconfig.get_path("stdlib"))
    documents = list(_sources(folder))
    if not documents:
        raise DataError(
            message(
                "standard_library",
                "the folder must hold Python's .py files",
                str(folder),
                "install Python with its library's sources, or train on a text of your own",
            )
        )
    if root is None:
        documents += _compiled_modules()
    return documents


def _sources(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.rglob("*.py"), key=lambda p: p.relative_to(folder).as_posix()):
        relative = path.relative_to(folder)
        if _LEFT_OUT.intersection(relative.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # The library's tests keep some files broken on purpose.
        if text.strip():
            yield Document(relative.as_posix(), text)


def _compiled_modules() -> Iterator[Document]:
    for name in sorted(set(sys.builtin_module_names) | {"math", "_struct", "_datetime", "array"}):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue  # Not every platform builds every one.
        members = sorted(vars(module).items())
        pieces = [f"{name}: {inspect.getdoc(module)}"]
        for key, value in members:
            if inspect.isroutine(value) or inspect.isclass(value):
                pieces += _docstrings(f"{name}.{key}", value)
        if len(pieces) > 1:
            yield Document(f"doc:{name}", "\n\n".join(pieces) + "\n")


def _docstrings(name: str, value: object) -> Iterator[str]:
    if text := inspect.getdoc(value):
        yield f"{name}\n{text}"
    if inspect.isclass(value):
        for key, member in sorted(vars(value).items()):
            if inspect.isroutine(member) and not key.startswith("_"):
                yield from _docstrings(f"{name}.{key}", member)

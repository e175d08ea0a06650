"""Replacing a file by a whole new one, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

Piece = bytes | np.ndarray[Any, Any]


def write_aside(path: Path, pieces: Iterable[Piece]) -> None:
    """Write `pieces` beside `path`, make them durable, and rename them over it.

    Whoever opens `path` at any moment, also after a kill or a power cut, finds the old content or
    the new one, never a mixture. What a killed writer left aside is overwritten by the next.

    Raises:
        OSError: the disk is full, or the folder is not writable. `path` is as it was.
    """
    aside = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with aside.open("wb") as file:
            for piece in pieces:
                file.write(piece if isinstance(piece, bytes) else raw_bytes(piece))
            file.flush()
            os.fsync(file.fileno())  # The data before the name: renames may reach the disk first.
        os.replace(aside, path)
    except BaseException:  # Ctrl-C included: leave nothing half-written behind.
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def raw_bytes(array: np.ndarray[Any, Any]) -> memoryview | bytes:
    """An array's bytes in row-major order, without a copy where they lie so."""
    # A memory view of nothing has no bytes to cast to.
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

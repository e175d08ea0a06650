"""Checkpoints: one file, whole or not there, checked before anything is changed.

    offset  size  field
    0       8     magic, b"BLUTRAIN"
    8       4     version, 1
    12      4     CRC-32 of the header text
    16      8     length H of the header text
    24      H     header: JSON {"config": {...}, "state": ..., "arrays": [...]}
    ...           arrays, each starting at a multiple of 64 bytes from the file's beginning

`state` is the saved tree with every array replaced by {"__array__": i}; `arrays[i]` gives dtype,
shape, offset, bytes and CRC-32 of its raw little-endian bytes. bfloat16 is stored as its 16 bits.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from blutrain import dtypes
from blutrain.errors import CheckpointError, DTypeError, message
from blutrain.io.atomic import Piece, raw_bytes, write_aside
from blutrain.tensor import Tensor

_MAGIC = b"BLUTRAIN"
_VERSION = 1
_PREFIX = struct.Struct("<8sIIQ")
_ALIGNMENT = 64  # A cache line; also lets a reader map the arrays.

NumPyArray = np.ndarray[Any, Any]


class Stateful(Protocol):
    """What can be restored: modules, optimizers, loaders, random generators."""

    def state_dict(self) -> Any:
        """What to save."""

    def check_state_dict(self, state: Any) -> None:
        """Raise when `state` does not fit; change nothing."""

    def load_state_dict(self, state: Any) -> None:
        """Take `state` over."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds.

    Attributes:
        config: what the saved model is, as given to `save_checkpoint`.
        state: the saved tree, with NumPy arrays for tensors (bfloat16 widened to float32).
    """

    config: dict[str, Any]
    state: dict[str, Any]


def save_checkpoint(path: Path | str, state: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write a checkpoint aside, make it durable, and rename it over `path`.

    Args:
        path: the file; its former content stays until the new one is whole.
        state: nested dicts and lists of tensors, NumPy arrays and JSON values.
        config: what the model is; `load_checkpoint` compares it.

    Raises:
        CheckpointError: the disk is full, the folder not writable, or `state` holds something
            that cannot be stored. The previous checkpoint is intact.
    """
    path = Path(path)
    arrays: list[NumPyArray] = []
    table: list[dict[str, Any]] = []
    tree = _strip(state, arrays, table, "state")
    offset = 0  # From the end of the header, whose length is not known yet.
    for array, entry in zip(arrays, table, strict=True):
        checksum = zlib.crc32(raw_bytes(array))
        entry |= {"offset": offset, "bytes": array.nbytes, "crc32": checksum}
        offset += _padded(array.nbytes)
    header = json.dumps({"config": dict(config), "state": tree, "arrays": table}).encode()
    prefix = _PREFIX.pack(_MAGIC, _VERSION, zlib.crc32(header), len(header))
    try:
        write_aside(path, _pieces(prefix + header, arrays))
    except OSError as error:
        raise CheckpointError(
            message(
                "save_checkpoint",
                f"{path} must be writable, with {len(header) + offset:,} bytes free",
                error.strerror,
                "free space or choose another folder; the checkpoint before is intact",
            )
        ) from error


def load_checkpoint(path: Path | str, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """Read a checkpoint and verify all of it.

    Args:
        path: the file.
        config: what the model is; left out, it is not compared.

    Raises:
        CheckpointError: the file cannot be read, is not a checkpoint, is truncated or damaged, or
            was made with another config.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            header, start = _read_header(file, path)
            if config is not None:
                _compare(header["config"], json.loads(json.dumps(dict(config))), path)
            arrays = [_read_array(file, entry, start, path) for entry in header["arrays"]]
    except OSError as error:
        raise CheckpointError(
            message(
                "load_checkpoint", f"{path} must be readable", error.strerror, "check --out-dir"
            )
        ) from error
    return Checkpoint(header["config"], _fill(header["state"], arrays))


def restore(state: Mapping[str, Any], **parts: Stateful) -> None:
    """Give each part its piece of a checkpoint's state, all of them or none.

    Args:
        state: `Checkpoint.state`.
        parts: what to restore, by the names they were saved under.

    Raises:
        CheckpointError: a piece is missing or does not fit; nothing has changed.
    """
    for name, part in parts.items():
        if name not in state:
            have = ", ".join(state)
            raise CheckpointError(message("restore", f"the checkpoint must hold {name!r}", have))
        part.check_state_dict(state[name])
    for name, part in parts.items():
        part.load_state_dict(state[name])


def _strip(node: Any, arrays: list[NumPyArray], table: list[dict[str, Any]], where: str) -> Any:
    """The tree as JSON, its arrays moved to `arrays` and described in `table`."""
    if isinstance(node, Mapping):
        return {str(k): _strip(v, arrays, table, f"{where}.{k}") for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [_strip(v, arrays, table, f"{where}[{i}]") for i, v in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if not isinstance(node, Tensor | np.ndarray):
        want = f"{where} must be a tensor, an array or a JSON value"
        raise CheckpointError(message("save_checkpoint", want, type(node).__name__))
    try:
        dtype = dtypes.as_dtype(node.dtype)
    except DTypeError as error:
        want = f"{where} must be of a dtype that blutrain has"
        raise CheckpointError(message("save_checkpoint", want, node.dtype)) from error
    values = node.numpy() if isinstance(node, Tensor) else node
    arrays.append(dtypes.to_storage(values, dtype))
    # The shape is the node's: a scalar's storage is a vector of one.
    table.append({"dtype": dtype.name, "shape": list(node.shape)})
    return {"__array__": len(arrays) - 1}


def _fill(node: Any, arrays: list[NumPyArray]) -> Any:
    """The inverse of `_strip`."""
    if isinstance(node, dict):
        if "__array__" in node:
            return arrays[node["__array__"]]
        return {key: _fill(value, arrays) for key, value in node.items()}
    if isinstance(node, list):
        return [_fill(value, arrays) for value in node]
    return node


def _pieces(head: bytes, arrays: list[NumPyArray]) -> Iterator[Piece]:
    yield head + bytes(_padded(len(head)) - len(head))
    for array in arrays:
        yield array
        yield bytes(_padded(array.nbytes) - array.nbytes)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    prefix = file.read(_PREFIX.size)
    if not prefix.startswith(_MAGIC):
        raise CheckpointError(
            message(
                "load_checkpoint",
                f"{path} must be a blutrain checkpoint, beginning with {_MAGIC!r}",
                repr(prefix[:8]),
                "pass a file that save_checkpoint wrote",
            )
        )
    if len(prefix) < _PREFIX.size:
        raise _damaged(path, "its header is cut")
    _, version, crc, length = _PREFIX.unpack(prefix)
    if version != _VERSION:
        raise CheckpointError(
            message("load_checkpoint", f"{path} must be of version {_VERSION}", version)
        )
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != crc:
        raise _damaged(path, "its header is cut or altered")
    return json.loads(text), _padded(_PREFIX.size + length)


def _read_array(file: BinaryIO, entry: dict[str, Any], start: int, path: Path) -> NumPyArray:
    file.seek(start + entry["offset"])
    raw = bytearray(entry["bytes"])
    if file.readinto(raw) != len(raw):  # type: ignore[attr-defined]
        raise _damaged(path, "it is truncated")
    if zlib.crc32(raw) != entry["crc32"]:
        raise _damaged(path, "its bytes were altered")
    dtype = dtypes.as_dtype(entry["dtype"])
    stored = np.frombuffer(raw, dtype=dtype.storage).reshape(entry["shape"])
    return dtypes.from_storage(stored, dtype)


def _damaged(path: Path, how: str) -> CheckpointError:
    do = "use an older checkpoint, or start in another --out-dir"
    return CheckpointError(message("load_checkpoint", f"{path} must be whole", how, do))


def _compare(saved: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    keys = sorted(set(saved) | set(wanted))
    different = [k for k in keys if saved.get(k) != wanted.get(k)]
    if different:
        found = ", ".join(f"{k} {saved.get(k)} for {wanted.get(k)}" for k in different)
        do = "ask for the checkpoint's config, or start in another --out-dir"
        raise CheckpointError(
            message("load_checkpoint", f"{path} must be of the same config", found, do)
        )

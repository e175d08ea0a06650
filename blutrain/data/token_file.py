"""Token files: a 64-byte header, then the token numbers, read through the page cache.

    offset  size  field
    0       8     magic, b"BLUTOKEN"
    8       4     version, 1
    12      4     bytes a token: 1, 2 or 4 (unsigned, little-endian)
    16      8     vocabulary size: every token is below it
    24      8     number of tokens
    32      4     CRC-32 of the tokens
    36      28    zeros

A file is mapped, not read, so a corpus larger than memory costs nothing to open.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blutrain.errors import DataError, message
from blutrain.io.atomic import Piece, raw_bytes, write_aside

_MAGIC = b"BLUTOKEN"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQI28x")
_DTYPES: dict[int, np.dtype[np.unsignedinteger[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}

IntArray = np.ndarray[Any, np.dtype[np.integer[Any]]]


@dataclass(frozen=True)
class Tokens:
    """A sequence of token numbers with its vocabulary.

    Attributes:
        values: the tokens, (n_tokens,), unsigned; mapped from disk when they come from a file.
        vocab_size: every token is below it.
        name: what error messages call it.
        checksum: CRC-32 of the little-endian values; identifies the text to a resumed loader.
    """

    values: IntArray
    vocab_size: int
    name: str
    checksum: int

    def __len__(self) -> int:
        return len(self.values)


def as_tokens(values: IntArray, vocab_size: int, name: str = "tokens") -> Tokens:
    """Tokens from an array in memory, in the narrowest width that holds the vocabulary.

    Raises:
        DataError: `values` is not a vector of integers, or holds a token outside the vocabulary.

    Example:
        >>> len(as_tokens(np.array([3, 1, 2]), vocab_size=4))
        3
    """
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            message(name, "tokens must be a vector of integers", f"{values.dtype}{values.shape}")
        )
    check_range(values, vocab_size, name)
    width = 1 if vocab_size <= 1 << 8 else 2 if vocab_size <= 1 << 16 else 4
    narrow = np.ascontiguousarray(values, dtype=_DTYPES[width])
    return Tokens(narrow, vocab_size, name, zlib.crc32(raw_bytes(narrow)))


def check_range(values: IntArray, vocab_size: int, name: str) -> None:
    """Refuse tokens that the vocabulary does not have.

    Raises:
        DataError: a token is negative or not below `vocab_size`; says the first one and where.
    """
    if values.size == 0 or (values.min() >= 0 and values.max() < vocab_size):
        return
    flat = values.reshape(-1)
    first = int(np.flatnonzero((flat < 0) | (flat >= vocab_size))[0])
    raise DataError(
        message(
            name,
            f"tokens must lie in 0..{vocab_size - 1}",
            f"{int(flat[first])} at position {first}",
            "tokenise the text with the tokenizer of this model",
        )
    )


def write_tokens(path: Path | str, tokens: Tokens) -> None:
    """Write a token file, aside and then renamed, so that it is whole or not there.

    Raises:
        DataError: the file cannot be written; what was there before is untouched.
    """
    path = Path(path)
    width = tokens.values.dtype.itemsize
    header = _HEADER.pack(_MAGIC, _VERSION, width, tokens.vocab_size, len(tokens), tokens.checksum)
    write_whole("write_tokens", path, [header, tokens.values.astype(_DTYPES[width], copy=False)])


def write_whole(where: str, path: Path, pieces: Iterable[Piece]) -> None:
    """Write a file aside and rename it; failures become errors of this project.

    Raises:
        DataError: the file cannot be written; what was there before is untouched.
    """
    try:
        write_aside(path, pieces)
    except OSError as error:
        do = "free space, or choose another folder"
        raise DataError(message(where, f"{path} must be writable", error.strerror, do)) from error


def read_tokens(path: Path | str) -> Tokens:
    """Open a token file for reading, mapped.

    Raises:
        DataError: the file cannot be read, is not a token file, or is truncated.
    """
    path = Path(path)
    again = "write it again with blutrain.data.write_tokens"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except OSError as error:
        raise DataError(
            message("read_tokens", f"{path} must be readable", error.strerror, "check the path")
        ) from error
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise DataError(
            message("read_tokens", f"{path} must begin with {_MAGIC!r}", header[:8], again)
        )
    _, version, width, vocab_size, count, checksum = _HEADER.unpack(header)
    if version != _VERSION or width not in _DTYPES:
        found = f"version {version}, {width} bytes a token"
        raise DataError(
            message("read_tokens", f"{path} must be of version {_VERSION}", found, again)
        )
    if size != _HEADER.size + count * width:
        want = _HEADER.size + count * width
        raise DataError(
            message("read_tokens", f"{path} must be {want} bytes long, it is cut", size, again)
        )
    if count == 0:  # An empty range cannot be mapped.
        return Tokens(np.empty(0, _DTYPES[width]), vocab_size, str(path), checksum)
    values = np.memmap(path, _DTYPES[width], mode="r", offset=_HEADER.size, shape=(count,))
    return Tokens(values, vocab_size, str(path), checksum)

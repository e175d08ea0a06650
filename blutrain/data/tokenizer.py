"""Tokenizers: raw bytes, and a byte-level BPE (needs the extra `data`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from blutrain.data.token_file import IntArray
from blutrain.errors import DataError, message


class Tokenizer(Protocol):
    """What the training script asks of a tokenizer."""

    name: str
    vocab_size: int

    def encode(self, text: str) -> IntArray:
        """The tokens of a text."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become the replacement character."""

    def to_json(self) -> str:
        """What `load_tokenizer` reads back."""


class ByteTokenizer:
    """A token is a byte of the UTF-8 text; the vocabulary is 256.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("né").tolist(), tokenizer.decode([110, 195, 169])
        ([110, 195, 169], 'né')
    """

    name = "bytes"
    vocab_size = 256

    def encode(self, text: str) -> IntArray:
        """The text's bytes, (n_bytes,) uint8."""
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of these bytes."""
        return bytes(t for t in tokens if t < self.vocab_size).decode(errors="replace")

    def to_json(self) -> str:
        """Nothing to keep: an empty JSON object marks bytes."""
        return "{}"


class BPETokenizer:
    """Byte-level byte-pair encoding, GPT-2's scheme, trained on a text of one's own.

    Made by `train_bpe` or `load_tokenizer`. Every text can be encoded and comes back unchanged.
    """

    name = "bpe"

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size()

    def encode(self, text: str) -> IntArray:
        """The text's tokens, (n_tokens,) uint32."""
        return np.asarray(self._backend.encode(text).ids, dtype=np.uint32)

    def encode_all(self, texts: list[str]) -> list[IntArray]:
        """Encode many texts, on all cores."""
        return [np.asarray(e.ids, np.uint32) for e in self._backend.encode_batch_fast(texts)]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of these tokens; numbers past the vocabulary (padding) are left out."""
        return str(self._backend.decode([int(t) for t in tokens if t < self.vocab_size]))

    def to_json(self) -> str:
        """The merges, as the `tokenizers` library writes them."""
        return str(self._backend.to_str())


def have_tokenizers() -> bool:
    """Whether the `tokenizers` library, which BPE needs, is installed."""
    return importlib.util.find_spec("tokenizers") is not None


def train_bpe(texts: Iterable[str], vocab_size: int) -> BPETokenizer:
    """Train a byte-level BPE.

    Args:
        texts: the training text, in pieces.
        vocab_size: tokens wanted, at least 257; a short text may yield fewer.

    Raises:
        DataError: the library is missing, or the vocabulary is too small.
    """
    backend = _library("train_bpe")
    if vocab_size <= 256:
        raise DataError(message("train_bpe", "vocab_size must be above 256", vocab_size))
    tokenizer = backend.Tokenizer(backend.models.BPE())
    tokenizer.pre_tokenizer = backend.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = backend.decoders.ByteLevel()
    trainer = backend.trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=backend.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return BPETokenizer(tokenizer)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer that was saved at `path`.

    Raises:
        DataError: the file cannot be read or is not a tokenizer's.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            message("load_tokenizer", f"{path} must be a tokenizer's JSON", str(error))
        ) from error
    if text.strip() == "{}":
        return ByteTokenizer()
    library = _library("load_tokenizer")
    try:
        return BPETokenizer(library.Tokenizer.from_str(text))
    except Exception as error:  # The library raises bare Exception for a file that is not its own.
        raise DataError(
            message("load_tokenizer", f"{path} must be a tokenizer's JSON", str(error))
        ) from error


def _library(where: str) -> Any:
    if not have_tokenizers():
        do = "pip install 'blutrain[data]', or use byte tokens"
        raise DataError(message(where, "the tokenizers library must be installed", None, do))
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: F401

    return tokenizers

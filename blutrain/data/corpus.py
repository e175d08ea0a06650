"""From a name on the command line to training tokens, held-out tokens and their tokenizer."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blutrain.data.stdlib_text import standard_library
from blutrain.data.token_file import (
    IntArray,
    Tokens,
    as_tokens,
    read_tokens,
    write_tokens,
    write_whole,
)
from blutrain.data.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    Tokenizer,
    load_tokenizer,
    train_bpe,
)
from blutrain.errors import DataError, message

_FILES = ("train.tokens", "heldout.tokens", "tokenizer.json")
_HELD_OUT_TENTH = 0.9  # A single text has no files to hold out: its last tenth is.


@dataclass(frozen=True)
class Corpus:
    """A text made ready for training.

    Attributes:
        train: tokens to learn from.
        held_out: tokens of other files, never trained on.
        tokenizer: what made them.
        folder: where they are kept.
    """

    train: Tokens
    held_out: Tokens
    tokenizer: Tokenizer
    folder: Path

    @property
    def vocab_size(self) -> int:
        """Number of different tokens."""
        return self.tokenizer.vocab_size


def prepare(source: str, tokenizer: str = "bytes", vocab_size: int = 50257) -> Corpus:
    """Tokenise a text, or find it tokenised in the cache.

    Args:
        source: "stdlib" for Python's own library; a text file; or a folder that holds
            `train.tokens`, `heldout.tokens` and `tokenizer.json`.
        tokenizer: "bytes" or "bpe", for texts that are not tokenised yet.
        vocab_size: vocabulary of a new BPE.

    Raises:
        DataError: the source cannot be read or is too short, or the tokenizer is unknown.
    """
    if Path(source).is_dir():
        return load_corpus(Path(source))
    if tokenizer not in ("bytes", "bpe"):
        raise DataError(message("prepare", "tokenizer must be 'bytes' or 'bpe'", repr(tokenizer)))
    train, held_out = _texts(source)
    digest = hashlib.sha256("\0".join([tokenizer, *train, "", *held_out]).encode())
    if tokenizer == "bpe":
        digest.update(str(vocab_size).encode())
    folder = cache_folder() / "data" / f"{Path(source).stem}-{tokenizer}-{digest.hexdigest()[:12]}"
    if not all((folder / name).exists() for name in _FILES):
        _tokenise(train, held_out, tokenizer, vocab_size, folder)
    return load_corpus(folder)


def load_corpus(folder: Path) -> Corpus:
    """Open a folder of token files.

    Raises:
        DataError: a file is missing, unreadable or truncated, or vocabularies differ.
    """
    train, held_out, tokenizer = (folder / name for name in _FILES)
    corpus = Corpus(read_tokens(train), read_tokens(held_out), load_tokenizer(tokenizer), folder)
    sizes = {corpus.train.vocab_size, corpus.held_out.vocab_size, corpus.vocab_size}
    if len(sizes) > 1:
        do = "tokenise all of it with one tokenizer"
        raise DataError(message(str(folder), "vocabularies must agree", sorted(sizes), do))
    return corpus


def unigram_entropy(tokens: Tokens) -> float:
    """Entropy of single tokens, in nats: the least loss of a model that ignores context.

    Example:
        >>> round(unigram_entropy(as_tokens(np.array([0, 1, 0, 1]), vocab_size=2)), 4)
        0.6931
    """
    counts = np.bincount(tokens.values, minlength=1)
    p = counts[counts > 0] / max(len(tokens), 1)
    return float(-(p * np.log(p)).sum())


def bytes_per_token(corpus: Corpus, sample: int = 50_000) -> float:
    """How many bytes of text a held-out token stands for, so that losses can be compared."""
    tokens = corpus.held_out.values[:sample]
    text = corpus.tokenizer.decode(tokens.tolist())
    return len(text.encode()) / max(len(tokens), 1)


def cache_folder() -> Path:
    """Where blutrain keeps what it can make again: `BLUTRAIN_CACHE`, or the user's cache."""
    if chosen := os.environ.get("BLUTRAIN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blutrain"


def _texts(source: str) -> tuple[list[str], list[str]]:
    if source == "stdlib":
        documents = standard_library()
        train = [d.text for d in documents if not d.held_out]
        return train, [d.text for d in documents if d.held_out]
    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        do = "pass --data=stdlib, a UTF-8 text file, or a folder of token files"
        raise DataError(
            message("prepare", f"{source} must be a readable text", str(error), do)
        ) from error
    cut = math.floor(len(text) * _HELD_OUT_TENTH)
    return [text[:cut]], [text[cut:]]


def _tokenise(
    train: list[str], held_out: list[str], kind: str, vocab_size: int, folder: Path
) -> None:
    tokenizer = ByteTokenizer() if kind == "bytes" else train_bpe(train, vocab_size)
    for name, texts in zip(_FILES[:2], (train, held_out), strict=True):
        joined = np.concatenate(_encode(tokenizer, texts))
        write_tokens(folder / name, as_tokens(joined, tokenizer.vocab_size, name))
    write_whole("prepare", folder / _FILES[2], [tokenizer.to_json().encode()])


def _encode(tokenizer: ByteTokenizer | BPETokenizer, texts: list[str]) -> list[IntArray]:
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.encode_all(texts)
    return [tokenizer.encode(text) for text in texts]

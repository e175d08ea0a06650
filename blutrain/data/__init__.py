"""Texts, tokenizers and loaders."""

from blutrain.data.corpus import (
    Corpus,
    bytes_per_token,
    load_corpus,
    prepare,
    unigram_entropy,
)
from blutrain.data.loader import Batch, TokenLoader, evaluation_batches
from blutrain.data.stdlib_text import Document, standard_library
from blutrain.data.token_file import Tokens, as_tokens, read_tokens, write_tokens
from blutrain.data.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    Tokenizer,
    have_tokenizers,
    load_tokenizer,
    train_bpe,
)

__all__ = [
    "BPETokenizer",
    "Batch",
    "ByteTokenizer",
    "Corpus",
    "Document",
    "TokenLoader",
    "Tokenizer",
    "Tokens",
    "as_tokens",
    "bytes_per_token",
    "evaluation_batches",
    "have_tokenizers",
    "load_corpus",
    "load_tokenizer",
    "prepare",
    "read_tokens",
    "standard_library",
    "train_bpe",
    "unigram_entropy",
    "write_tokens",
]

"""Batches of token windows: shuffled, the same on every machine, resumable at any batch.

An epoch cuts the text into windows of `block_size` (starting at an offset of its own, so that
window borders move) and visits each once, in an order that is a pure function of seed and epoch:
windows sorted by a hash of their number. Nothing but (epoch, position) needs to be kept, and the
order does not change with NumPy's version, as its generators' may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from blutrain.data.token_file import Tokens, check_range
from blutrain.errors import CheckpointError, DataError, message

Batch = tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]


class TokenLoader:
    """An endless stream of batches.

    Args:
        tokens: the text.
        batch_size: windows a batch, B.
        block_size: tokens a window, T.
        seed: chooses the order.

    Raises:
        DataError: the text is too short for one batch.

    Example:
        >>> from blutrain.data import as_tokens
        >>> loader = TokenLoader(as_tokens(np.arange(100), 100), batch_size=2, block_size=8)
        >>> inputs, targets = next(loader)
        >>> inputs.shape, bool((targets == inputs + 1).all())
        ((2, 8), True)
    """

    def __init__(self, tokens: Tokens, batch_size: int, block_size: int, seed: int = 0) -> None:
        if batch_size < 1 or block_size < 1:
            got = (batch_size, block_size)
            raise DataError(
                message("TokenLoader", "batch_size and block_size must be at least 1", got)
            )
        # The windows left whatever the epoch's offset is; each also needs its last target.
        self.windows = (len(tokens) - block_size) // block_size
        if self.windows < batch_size:
            raise DataError(
                message(
                    "TokenLoader",
                    f"{tokens.name} must hold {(batch_size + 1) * block_size} tokens for a batch",
                    len(tokens),
                    "give more text, or a smaller batch_size or block_size",
                )
            )
        self.tokens = tokens
        self.batch_size = batch_size
        self.block_size = block_size
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._order, self._offset = self._plan()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch: inputs and targets, both (B, T) int64; targets are one token later.

        Raises:
            DataError: a token lies outside the vocabulary; the position has not moved.
        """
        if self.position + self.batch_size > self.windows:
            self.epoch, self.position = self.epoch + 1, 0
            self._order, self._offset = self._plan()
        chosen = self._order[self.position : self.position + self.batch_size]
        batch = _gather(self.tokens, self._offset + chosen * self.block_size, self.block_size)
        self.position += self.batch_size
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse a position in another text or another order.

        Raises:
            CheckpointError: it is; says which of them differ.
        """
        want = self._identity()
        different = [key for key in want if state.get(key) != want[key]]
        if different:
            raise CheckpointError(
                message(
                    "TokenLoader.load_state_dict",
                    "text, seed, batch and block size must be as in the checkpoint",
                    ", ".join(f"{k} {want[k]} for {state.get(k)}" for k in different),
                    "pass what the checkpoint was made with, or start in another --out-dir",
                )
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken; the following batches are the same.

        Raises:
            CheckpointError: the state is of another text or order; nothing has changed.
        """
        self.check_state_dict(state)
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._order, self._offset = self._plan()

    def _identity(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "block_size": self.block_size,
            "n_tokens": len(self.tokens),
            "checksum": self.tokens.checksum,
        }

    def _plan(self) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
        """This epoch's order of windows and the offset at which the first begins."""
        numbers = np.arange(self.windows + 1, dtype=np.uint64)
        key = (self.seed & 0xFFFFFFFF) << 32 | (self.epoch & 0xFFFFFFFF)
        hashes = _splitmix64(numbers + _splitmix64(np.array([key], dtype=np.uint64)))
        offset = int(hashes[-1] % np.uint64(self.block_size))
        return np.argsort(hashes[:-1], kind="stable"), offset


def evaluation_batches(
    tokens: Tokens, batch_size: int, block_size: int, count: int
) -> Iterator[Batch]:
    """At most `count` batches spread evenly over a text, the same at every call.

    Raises:
        DataError: the text is too short for one window, or holds a token out of range.
    """
    windows = (len(tokens) - 1) // block_size
    if windows < 1:
        want = f"{tokens.name} must hold more than {block_size} tokens"
        raise DataError(message("evaluation_batches", want, len(tokens), "hold out more text"))
    rows = max(1, min(windows // batch_size, count)) * batch_size
    starts = np.linspace(0, windows - 1, min(rows, windows)).astype(np.int64) * block_size
    for first in range(0, len(starts), batch_size):
        yield _gather(tokens, starts[first : first + batch_size], block_size)


def _gather(
    tokens: Tokens,
    starts: np.ndarray[Any, np.dtype[np.int64]],  # (B,)
    block_size: int,
) -> Batch:
    window = np.arange(block_size + 1)
    rows = tokens.values[starts[:, None] + window].astype(np.int64)  # (B, T + 1)
    check_range(rows, tokens.vocab_size, tokens.name)
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def _splitmix64(x: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Steele, Lea and Flood's mixing function (OOPSLA 2014): a good hash of a 64-bit number."""
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

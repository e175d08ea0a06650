"""Blocks that meet: a barrier of the whole grid, `cuda.cg.this_grid().sync()`.

Each block runs on a thread of the operating system, but only one at a time: it runs until it waits
for the grid or ends, then the next has its turn. So a grid may have more blocks than there are
processors, atomics need no more than they do elsewhere, and every run gives the same results.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blutrain.errors import KernelError, message

# About what the largest GPUs hold at a time of small blocks.
MAX_BLOCKS = 2048
_SYMBOL = "blutrain_wait_for_grid"
_here = threading.local()


class Abandoned(Exception):
    """Another block failed while this one waited for it."""


class _Turns:
    """Whose turn it is, among the blocks of one launch.

    Attributes:
        waits: how often each block has waited for the grid.
        error: what the first block that failed raised.
    """

    def __init__(self, n_blocks: int) -> None:
        self.waits = [0] * n_blocks
        self.error: BaseException | None = None
        self._ended = [False] * n_blocks
        self._turns = [threading.Semaphore(0) for _ in range(n_blocks)]

    def begin(self, block: int) -> None:
        """Wait for a block's first turn."""
        self._turns[block].acquire()

    def start(self) -> None:
        """Give the first block its turn."""
        self._turns[0].release()

    def wait(self, block: int) -> int:
        """End a block's turn until its next; gives 1 if a block has failed since."""
        self.waits[block] += 1
        self._pass_on(block)
        self._turns[block].acquire()
        return self.error is not None

    def end(self, block: int) -> None:
        """End a block's last turn."""
        self._ended[block] = True
        self._pass_on(block)

    def _pass_on(self, block: int) -> None:
        n = len(self.waits)
        for k in range(1, n + 1):
            following = (block + k) % n
            if not self._ended[following]:
                self._turns[following].release()
                return


@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
def _wait(block: int) -> int:
    turns: _Turns = _here.turns
    return turns.wait(block)


llvm.add_symbol(_SYMBOL, ctypes.cast(_wait, ctypes.c_void_p).value)


@intrinsic
def _wait_for_grid(typing_context: Any, block: Any) -> Any:
    """End the turn of a block; not 0 when another has failed."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)])
        function = cgutils.get_or_insert_function(builder.module, kind, _SYMBOL)
        return builder.call(function, values)

    return types.int32(types.int64), codegen


wait_for_grid = _wait_for_grid


def run(where: str, n_blocks: int, run_block: Callable[[int], object]) -> None:
    """Run all blocks, in turns.

    Args:
        where: the kernel, for error messages.
        n_blocks: how many.
        run_block: runs the block of a number.

    Raises:
        KernelError: there are too many blocks, they wait for each other differently often, or the
            kernel raised.
    """
    if n_blocks > MAX_BLOCKS:
        wrong = f"a grid that waits for all of its blocks may have {MAX_BLOCKS}"
        raise KernelError(message(where, wrong, n_blocks, "give each block more work"))
    turns = _Turns(n_blocks)

    def whole(block: int) -> None:
        _here.turns = turns
        turns.begin(block)
        try:
            if turns.error is None:
                run_block(block)
        except BaseException as error:
            turns.error = turns.error or error
        finally:
            turns.end(block)

    before = threading.stack_size(8 << 20)
    threads = [threading.Thread(target=whole, args=(b,), daemon=True) for b in range(n_blocks)]
    for thread in threads:
        thread.start()
    threading.stack_size(before)
    turns.start()
    for thread in threads:
        thread.join()
    if turns.error is not None:
        raise turns.error
    _check(where, turns.waits)


def _check(where: str, waits: Sequence[int]) -> None:
    """Refuse what would hang on a GPU."""
    odd = next((b for b, n in enumerate(waits) if n != waits[0]), None)
    if odd is not None:
        wrong = f"block 0 waits for the grid {waits[0]} times, block {odd} {waits[odd]} times"
        do = "let all blocks reach every sync() of the grid"
        raise KernelError(message(where, wrong, do=do))

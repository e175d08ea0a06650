"""Arrays that note who reads and writes which of their elements."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import numpy as np

from blutrain.device.cpu.explain.recorder import Kind, Recorder, Site, Space
from blutrain.dtypes import DType, from_storage, to_storage
from blutrain.errors import KernelError, message


@functools.cache
def _site(code: CodeType, instruction: int) -> Site:
    # The instruction's number will not do: it changes when the interpreter specialises it.
    line, _, column, end = next(itertools.islice(code.co_positions(), instruction, None))
    return Site(code.co_filename, line or 0, (column or 0) << 16 | (end or 0))


def site_of(frame: FrameType) -> Site:
    """The expression that a frame is evaluating."""
    return _site(frame.f_code, frame.f_lasti // 2)


class Watch:
    """The recorder, and which thread runs at present.

    Attributes:
        kernel: name of the kernel.
        recorder: where what threads do is noted.
        thread: number of the running thread in its block.
    """

    def __init__(self, kernel: str, recorder: Recorder) -> None:
        self.kernel = kernel
        self.recorder = recorder
        self.thread = 0


class Traced:
    """An array as a kernel sees it.

    Args:
        data: the elements.
        space: "global" or "shared"; "" for local memory, of which nothing is noted.
        base: the address of the first element: a real one, or an offset in shared memory.
        watch: who is told.
        half: float16 or bfloat16 where elements are stored so; they are read as float32.
    """

    def __init__(
        self,
        data: np.ndarray[Any, Any],
        space: Space,
        base: int,
        watch: Watch,
        half: DType | None = None,
    ) -> None:
        self._data, self._space, self._base, self._watch = data, space, base, watch
        self._half = half
        self.shape, self.strides = data.shape, data.strides
        self.ndim, self.size, self.dtype, self.itemsize = (
            data.ndim, data.size, data.dtype, data.itemsize,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        if not self._whole(index):
            part = self._data[index]
            offset = part.ctypes.data - self._data.ctypes.data
            return Traced(part, self._space, self._base + offset, self._watch, self._half)
        place = self._place(index)
        self._note("load", place, sys._getframe(1))
        value = self._data[place]
        return np.float32(from_storage(value, self._half)) if self._half else value

    def __setitem__(self, index: Any, value: Any) -> None:
        place = self._place(index)
        self._note("store", place, sys._getframe(1))
        if self._half:
            value = to_storage(np.asarray(value, np.float32), self._half)
        self._data[place] = value

    def update(self, index: Any, new: Callable[[Any], Any]) -> Any:
        """Change an element atomically to `new(old)`; gives the old one."""
        place = self._place(index)
        # Two frames up: the kernel, behind the atomic function.
        self._note("atomic", place, sys._getframe(2))
        old = self._data[place]
        self._data[place] = new(old)
        return old

    def _whole(self, index: Any) -> bool:
        """Whether an index names one element."""
        parts = index if isinstance(index, tuple) else (index,)
        return len(parts) == self.ndim and not any(isinstance(p, slice) for p in parts)

    def _place(self, index: Any) -> tuple[int, ...]:
        """The index of one element, counted from the start.

        Raises:
            KernelError: it is outside of the array.
        """
        parts = index if isinstance(index, tuple) else (index,)
        place = tuple(
            int(p) + n if p < 0 else int(p) for p, n in zip(parts, self.shape, strict=True)
        )
        if not all(0 <= p < n for p, n in zip(place, self.shape, strict=True)):
            wrong = f"thread {self._watch.thread} must stay within an array of shape {self.shape}"
            raise KernelError(message(f"kernel {self._watch.kernel}", wrong, f"index {index}"))
        return place

    def _note(self, kind: Kind, place: tuple[int, ...], frame: FrameType) -> None:
        if not self._space:
            return
        offset = sum(p * step for p, step in zip(place, self.strides, strict=True))
        watch = self._watch
        watch.recorder.access(
            site_of(frame), kind, self._space, watch.thread, self._base + offset, self.itemsize
        )

"""Learning-rate schedules: pure functions of the step, with no state to keep for a resumed run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from blutrain.errors import ShapeError, message


@dataclass(frozen=True)
class _Warmup:
    """A linear rise from lr/warmup_steps to lr, then what the subclass says.

    Attributes:
        lr: the highest rate.
        total_steps: the step at which `min_lr` is reached; it stays there.
        warmup_steps: steps of the rise.
        min_lr: the lowest rate after the rise.
    """

    lr: float
    total_steps: int
    warmup_steps: int = 0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.min_lr <= self.lr and 0 <= self.warmup_steps <= self.total_steps):
            want = "must hold 0 <= min_lr <= lr and 0 <= warmup_steps <= total_steps"
            raise ShapeError(message(type(self).__name__, want, self))

    def __call__(self, step: int) -> float:
        """The rate of a step; the first step is 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        span = max(self.total_steps - self.warmup_steps, 1)
        left = self._left(min((step - self.warmup_steps) / span, 1.0))
        return self.min_lr + (self.lr - self.min_lr) * left

    def _left(self, progress: float) -> float:
        """The part of lr - min_lr that is left after `progress` in [0, 1]."""
        raise NotImplementedError


class CosineSchedule(_Warmup):
    """Linear warm-up, then half a cosine down to min_lr (Loshchilov and Hutter, 2017).

    Example:
        >>> schedule = CosineSchedule(lr=1.0, total_steps=10, warmup_steps=2)
        >>> [round(schedule(step), 3) for step in (0, 1, 2, 6, 10, 99)]
        [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """

    def _left(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


class LinearSchedule(_Warmup):
    """Linear warm-up, then a straight line down to min_lr.

    Example:
        >>> schedule = LinearSchedule(lr=1.0, total_steps=4, min_lr=0.5)
        >>> [schedule(step) for step in (0, 2, 4, 5)]
        [1.0, 0.75, 0.5, 0.5]
    """

    def _left(self, progress: float) -> float:
        return 1 - progress

"""Optimizers, clipping and learning-rate schedules."""

from blutrain.optim.optimizer import Optimizer, decay_groups
from blutrain.optim.schedule import CosineSchedule, LinearSchedule

__all__ = ["CosineSchedule", "LinearSchedule", "Optimizer", "decay_groups"]

"""Optimizers, clipping and learning-rate schedules."""

from blutrain.optim.adamw import AdamW
from blutrain.optim.clip import clip_grad_norm
from blutrain.optim.optimizer import Optimizer, decay_groups
from blutrain.optim.schedule import CosineSchedule, LinearSchedule
from blutrain.optim.sgd import SGD

__all__ = [
    "SGD",
    "AdamW",
    "CosineSchedule",
    "LinearSchedule",
    "Optimizer",
    "clip_grad_norm",
    "decay_groups",
]

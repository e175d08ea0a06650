"""Reverse-mode differentiation over a tape."""

from blutrain.autograd.checkpoint import checkpoint
from blutrain.autograd.engine import backward, grad
from blutrain.autograd.function import Function
from blutrain.autograd.gradcheck import gradcheck
from blutrain.autograd.tape import (
    Context,
    detect_anomaly,
    enable_grad,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)

__all__ = [
    "Context",
    "Function",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "is_grad_enabled",
    "no_grad",
    "set_grad_enabled",
]

"""Whole models."""

from blutrain.models.gpt2 import GPT2, PRESETS, GPT2Config

__all__ = ["GPT2", "PRESETS", "GPT2Config"]

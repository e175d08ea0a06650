"""Checkpoints, metrics and settings."""

"""Optimizer steps over many tensors in one launch."""

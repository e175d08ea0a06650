"""Normalisation over the last axis."""

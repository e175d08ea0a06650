"""Gathering, joining and cutting tensors."""

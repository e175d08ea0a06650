"""What holds for every test: which of them this machine can run, and Hypothesis' settings."""

import importlib.util

import hypothesis
import pytest

from blutrain.device import TARGET

# A first example may compile kernels for a second or two, which is no hint of a slow test.
hypothesis.settings.register_profile("blutrain", deadline=None, print_blob=True)
hypothesis.settings.load_profile("blutrain")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU or PyTorch where there is none."""
    no_torch = importlib.util.find_spec("torch") is None
    for item in items:
        if TARGET != "cuda" and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
        if no_torch and item.get_closest_marker("peer"):
            item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


def pytest_report_header() -> str:
    """Name the target: the same tests mean different things on each."""
    return f"blutrain target: {TARGET}"

"""The precision of matrix products: what can be set, and for how long."""

from __future__ import annotations

import pytest

import blutrain as bt
from blutrain.errors import KernelError


def test_the_default_is_as_exact_as_float32() -> None:
    assert bt.matmul_precision() in ("ieee", "tf32x3")


@pytest.mark.parametrize("name", ["ieee", "tf32x3", "tf32", "bf16"])
def test_a_precision_holds_within_its_block(name: str) -> None:
    before = bt.matmul_precision()
    with bt.using_matmul_precision(name):
        assert bt.matmul_precision() == name
    assert bt.matmul_precision() == before


def test_an_unknown_precision_is_refused_and_changes_nothing() -> None:
    before = bt.matmul_precision()
    says = "set_matmul_precision: precision must be one of ieee, tf32x3, tf32, bf16, got 'fp8'"
    with pytest.raises(KernelError, match=says):
        bt.set_matmul_precision("fp8")
    assert bt.matmul_precision() == before

"""Some random kernels; `fuzz.py` runs as many as one likes."""

import pytest
from cpu_executor import fuzz


@pytest.mark.parametrize("seed", range(40))
def test_random_kernel(seed):
    options = [fuzz.OPTIONS[seed % len(fuzz.OPTIONS)]]
    assert fuzz.check(seed, options) == ""


def test_a_thread_finds_what_it_stored():
    # Vectorised, strided stores once went past a load of the same elements.
    assert fuzz.check(2225) == ""

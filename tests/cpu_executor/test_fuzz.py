"""Some random kernels; `fuzz.py` runs as many as one likes."""

import pytest
from cpu_executor import fuzz


@pytest.mark.parametrize("seed", range(40))
def test_random_kernel(seed):
    options = [fuzz.OPTIONS[seed % len(fuzz.OPTIONS)]]
    assert fuzz.check(seed, options) == ""

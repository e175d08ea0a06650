"""Some random kernels; `fuzz.py` runs as many as one likes."""

import pytest
from cpu_executor import fuzz


@pytest.mark.parametrize("seed", range(40))
def test_random_kernel(seed):
    options = [fuzz.OPTIONS[seed % len(fuzz.OPTIONS)]]
    assert fuzz.check(seed, options) == ""


@pytest.mark.parametrize("seed", [10095, 10268])
def test_a_short_loop_does_not_end_the_process(seed):
    # LLVM asserted that its two cost models agree, and over short loops they did not.
    assert fuzz.apart(seed) == ""


def test_the_elements_of_a_shuffle_may_widen():
    # A float32 that later is a float64, shuffled: types of arrays were unified, which have none.
    assert fuzz.check(21240) == ""

"""A kernel for the package's own example: a kernel must be in a file, to have a source text."""

from numba import cuda


@cuda.jit
def double(
    x,  # (n,)
    y,  # (n,)
):
    """y = 2 x."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + x[i]

"""PTX instructions as functions that kernels call, one module for each kind."""

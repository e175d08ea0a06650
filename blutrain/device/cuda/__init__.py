"""The cuda target: the driver, compiling kernels to PTX, and what ptxas makes of them.

Nothing here is imported on the cpu target, except by `bt.explain` and by tests, which
compile for a GPU without one.
"""

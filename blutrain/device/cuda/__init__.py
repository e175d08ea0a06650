"""The cuda target: the driver, compiling kernels to PTX, and what ptxas makes of them.

Nothing here is imported on the cpu target, except by tests that compile for a GPU without one.
"""

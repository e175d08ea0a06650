"""Every error that blutrain raises on purpose, and the one form that their messages have.

The form is `where: what is wrong, got what; what to do`, for example
`layer_norm: weight must have shape (768,), got (512,); pass weight=bt.ones(768)`.
An error is raised before anything is launched and leaves every tensor as it was.
"""

from __future__ import annotations


class BlutrainError(Exception):
    """Base class of blutrain's errors."""


class ShapeError(BlutrainError, ValueError):
    """An argument has the wrong shape, rank or value."""


class DTypeError(BlutrainError, TypeError):
    """An argument has the wrong dtype or is of the wrong type."""


class DeviceError(BlutrainError, RuntimeError):
    """The device, its driver or its toolchain refused, or an array is on the wrong device."""


class KernelError(BlutrainError, RuntimeError):
    """A kernel cannot be compiled or launched as asked."""


class OutOfMemoryError(BlutrainError, MemoryError):
    """The device has no room for an allocation, even after its cache was given back."""


class AutogradError(BlutrainError, RuntimeError):
    """The tape cannot do what was asked of it."""


class CheckpointError(BlutrainError, RuntimeError):
    """A checkpoint is unreadable or belongs to another model."""


class DataError(BlutrainError, ValueError):
    """Training data cannot be read or is unfit."""


def message(where: str, wrong: str, got: object = None, do: str = "") -> str:
    """Compose the one form of an error message.

    Args:
        where: the op or function that the user called.
        wrong: what must hold, naming the argument.
        got: what was given instead; left out when None.
        do: what to do about it.

    Example:
        >>> message("layer_norm", "weight must have shape (8,)", (5,), "pass weight=bt.ones(8)")
        'layer_norm: weight must have shape (8,), got (5,); pass weight=bt.ones(8)'
    """
    text = f"{where}: {wrong}"
    if got is not None:
        text += f", got {got}"
    if do:
        text += f"; {do}"
    return text

"""What compiles kernels for the GPU: asked whether it is there."""

from __future__ import annotations

from blutrain.errors import DeviceError, message


def libnvvm_version() -> tuple[int, int]:
    """The version of libNVVM, which Numba loads to turn kernels into PTX.

    Raises:
        DeviceError: it cannot be loaded.
    """
    from numba.cuda.cudadrv.nvvm import NVVM

    try:
        major, minor = NVVM().get_version()
    # Whatever the loader, the package's metadata or the library itself made go wrong.
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        do = "install the extra blutrain[cu13]"
        wrong = f"the library cannot be loaded ({first})"
        raise DeviceError(message("libNVVM", wrong, do=do)) from error
    return int(major), int(minor)

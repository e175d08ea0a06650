"""What the assembler makes of a kernel: registers, spills, shared memory. Needs no GPU.

print(check(kernel, types, (9, 0)))
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blutrain.device.cuda.compile import ComputeCapability, Ptx, compile_kernel
from blutrain.errors import DeviceError, KernelError, message


@dataclass(frozen=True)
class Assembled:
    """A kernel as the assembler sees it.

    Attributes:
        registers: 32-bit registers a thread.
        spill_stores, spill_loads: bytes a thread that did not fit into registers.
        stack: bytes of local memory a thread, arrays included.
        shared: bytes of static shared memory a block.
        uses_float64: whether any instruction computes with float64.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    uses_float64: bool


def check(
    kernel: Any, argument_types: tuple[Any, ...], compute_capability: ComputeCapability
) -> Assembled:
    """Compile a kernel for a GPU that need not be there, and assemble it.

    Args:
        kernel: what `numba.cuda.jit` returned.
        argument_types: Numba types, such as those that `recording` noted.
        compute_capability: such as (8, 0).

    Raises:
        KernelError: it does not compile, or the assembler refuses it.
        DeviceError: there is no assembler.

    Example:
        >>> from numba import cuda, float32
        >>> @cuda.jit
        ... def double(x):
        ...     i = cuda.grid(1)
        ...     if i < x.size:
        ...         x[i] += x[i]
        >>> seen = check(double, (float32[::1],), (8, 0))
        >>> seen.registers < 32, seen.spill_stores, seen.uses_float64
        (True, 0, False)
    """
    ptx = compile_kernel(kernel, argument_types, compute_capability)
    return assemble(ptx, compute_capability, kernel.__name__, kernel.targetoptions)


def assemble(
    ptx: Ptx,
    compute_capability: ComputeCapability,
    name: str = "ptx",
    options: dict[str, Any] | None = None,
) -> Assembled:
    """Assemble PTX and read the assembler's report.

    Raises:
        KernelError: the assembler refuses it.
        DeviceError: there is no assembler.
    """
    architecture = "sm_" + "".join(map(str, compute_capability))
    command = [find_ptxas(), "-v", "-arch", architecture]
    if options and options.get("max_registers"):
        command += ["-maxrregcount", str(options["max_registers"])]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx.text)
        command += ["-o", str(Path(folder, "kernel.cubin")), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    if done.returncode != 0:
        wrong = f"ptxas must accept the PTX for {architecture}"
        raise KernelError(message(name, wrong, " ".join(report.split())[:600]))

    def number(pattern: str) -> int:
        found = re.search(pattern, report)
        return int(found[1]) if found else 0

    return Assembled(
        registers=number(r"Used (\d+) registers"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
        stack=number(r"(\d+) bytes stack frame"),
        shared=number(r"(\d+) bytes smem"),
        uses_float64=uses_float64(ptx.text),
    )


def uses_float64(ptx: str) -> bool:
    """Whether PTX has an instruction on float64 values: slow on most GPUs, and rarely meant.

    Example:
        >>> uses_float64("add.rn.f64 %fd1, %fd2, %fd3;"), uses_float64("add.f32 %f1, %f2, %f3;")
        (True, False)
    """
    return re.search(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.]*\.f64\b", ptx, re.MULTILINE) is not None


@functools.cache
def find_ptxas() -> str:
    """The assembler: of the package nvidia-cuda-nvcc, of CUDA_HOME, or on the PATH.

    The package comes first: its version goes with that of the compiler's package.

    Raises:
        DeviceError: there is none.
    """
    candidates = []
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(Path(folder).glob("*/bin/ptxas"), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if variable in os.environ:
            candidates.append(Path(os.environ[variable], "bin", "ptxas"))
    on_path = shutil.which("ptxas")
    if on_path:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return str(candidate)
    do = "install the extra blutrain[cu13], which brings nvidia-cuda-nvcc"
    raise DeviceError(message("ptxas", "no assembler was found", do=do))

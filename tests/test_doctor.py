"""`blutrain doctor`: what it finds, what it says is missing, its exit status."""

import subprocess
import sys

import pytest

from blutrain import __main__ as command
from blutrain import doctor
from blutrain.device.cuda import ptxas
from blutrain.errors import DeviceError


def test_the_command_reports_every_check():
    done = subprocess.run(
        [sys.executable, "-m", "blutrain", "doctor"], capture_output=True, text=True, check=False
    )
    for name in ("Python", "GPU", "libNVVM", "ptxas", "memory", "MLIR", "MPI", "CUDA-aware MPI"):
        assert f" {name}" in done.stdout, done.stderr
    assert done.returncode in (0, 1)


def test_what_is_missing_comes_with_what_to_do(monkeypatch):
    def refuse():
        raise DeviceError("ptxas: no assembler was found")

    monkeypatch.setattr(doctor, "why_no_gpu", lambda: "the driver sees no GPU")
    monkeypatch.setattr(ptxas, "find_ptxas", refuse)
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    monkeypatch.setattr(doctor, "_output", lambda program: "")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.delenv("MPICH_GPU_SUPPORT_ENABLED", raising=False)
    findings = {finding.name: finding for finding in doctor.examine()}
    for name in ("Python", "GPU", "ptxas", "MLIR", "MPI", "CUDA-aware MPI"):
        assert not findings[name].found
        assert findings[name].do
    assert "CUDA_VISIBLE_DEVICES" in findings["GPU"].do
    assert findings["Python"].needed


@pytest.mark.parametrize(
    ("answer", "found", "says"),
    [
        ("yes\n", True, "takes device pointers"),
        ("no\n", False, "takes host pointers only"),
        ("unknown\n", False, "not known"),
        ("", False, "not known"),
    ],
)
def test_the_mpi_is_asked_whether_it_takes_device_pointers(monkeypatch, answer, found, says):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "_output", lambda program: answer)
    for variable in ("MPICH_GPU_SUPPORT_ENABLED", "I_MPI_OFFLOAD"):
        monkeypatch.delenv(variable, raising=False)
    finding = doctor.check_cuda_aware_mpi()
    assert finding.found is found
    assert says in finding.says
    assert bool(finding.do) is not found
    monkeypatch.setenv("I_MPI_OFFLOAD", "1")
    assert doctor.check_cuda_aware_mpi().found


@pytest.mark.parametrize(("said", "found"), [("true", True), ("false", False)])
def test_open_mpi_is_asked_whether_it_knows_cuda(monkeypatch, said, found):
    line = f"mca:mpi:base:param:mpi_built_with_cuda_support:value:{said}"
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/ompi_info")
    monkeypatch.setattr(doctor, "_output", lambda program: line)
    assert doctor.check_cuda_aware_mpi().found is found


def test_only_what_is_needed_makes_the_command_fail(monkeypatch, capsys):
    optional = doctor.Finding("MLIR", False, "not installed", "pip install it")
    needed = doctor.Finding("Python", False, "numba missing", "pip install numba", needed=True)
    monkeypatch.setattr(doctor, "examine", lambda: [optional])
    assert doctor.main() == 0
    monkeypatch.setattr(doctor, "examine", lambda: [optional, needed])
    assert doctor.main() == 1
    assert "!! Python          numba missing" in capsys.readouterr().out


def test_an_unknown_command_prints_the_usage(capsys):
    assert command.main(["cure"]) == 2
    assert "usage: blutrain doctor" in capsys.readouterr().err


def test_a_compiler_that_does_not_load_is_needed_on_the_gpu_only(monkeypatch):
    from numba.cuda.cudadrv import nvvm

    def refuse():
        raise OSError("libnvvm.so.4: cannot open shared object file")

    monkeypatch.setattr(nvvm, "NVVM", refuse)
    finding = doctor.check_compiler()
    assert not finding.found
    assert "libnvvm.so.4: cannot open" in finding.says
    assert finding.needed is (doctor.TARGET == "cuda")


def test_a_program_that_fails_says_nothing():
    assert doctor._output(["/nonexistent/program"]) == ""
    assert doctor._output([sys.executable, "-c", "print(1); raise SystemExit(3)"]) == ""

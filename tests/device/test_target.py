"""How the target is chosen."""

import os
import subprocess
import sys

import pytest

from blutrain.device import TARGET, target
from blutrain.errors import DeviceError


def test_the_cpu_can_always_be_asked_for():
    assert target.choose_target("cpu") == "cpu"


def test_a_gpu_is_taken_when_there_is_one(monkeypatch):
    monkeypatch.setattr(target, "why_no_gpu", lambda: "")
    assert target.choose_target("") == "cuda"
    assert target.choose_target("cuda") == "cuda"
    assert target.choose_target("cpu") == "cpu"


def test_without_one_the_cpu_is_taken_and_cuda_refused(monkeypatch):
    monkeypatch.setattr(target, "why_no_gpu", lambda: "the driver sees no GPU")
    assert target.choose_target("") == "cpu"
    with pytest.raises(DeviceError, match="cuda cannot be used: the driver sees no GPU; unset"):
        target.choose_target("cuda")


def test_an_unknown_name_is_refused():
    with pytest.raises(DeviceError, match="BLUTRAIN_DEVICE: must be cuda or cpu, got 'tpu'"):
        target.choose_target("tpu")


@pytest.mark.skipif(TARGET == "cuda", reason="there is a GPU")
def test_this_machine_says_why_it_has_no_gpu():
    assert target.why_no_gpu()


def test_the_cpu_target_never_loads_the_driver():
    program = (
        "import sys, blutrain.memory, blutrain.device;"
        "blutrain.memory.free(blutrain.memory.malloc(100));"
        "blutrain.device.synchronize();"
        "print(blutrain.device.TARGET, any('blutrain.device.cuda.' in m for m in sys.modules))"
    )
    environment = {**os.environ, "BLUTRAIN_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == ["cpu", "False"]

"""Checkpoint files: what they keep, and that a bad one changes nothing."""

import os
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from blutrain.errors import CheckpointError
from blutrain.io.checkpoint import load_checkpoint, restore, save_checkpoint

CONFIG = {"n_layer": 2, "sizes": [1, 2], "bias": True}


def state(value=1.0):
    return {
        "step": 3,
        "nested": {"list": [np.full((2, 3), value, np.float32), None, "text", 0.1], "empty": {}},
        "scalar": np.array(value),
        "none": np.zeros((0, 4), np.int64),
        "bool": np.array([True, False]),
    }


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "c.blutrain"
    save_checkpoint(path, state(), CONFIG)
    return path


def assert_is_first(path):
    assert load_checkpoint(path, CONFIG).state["nested"]["list"][0].tolist() == [[1.0] * 3] * 2


def test_round_trip(saved):
    checkpoint = load_checkpoint(saved, CONFIG)
    assert checkpoint.config == CONFIG
    again, want = checkpoint.state, state()
    assert again["step"] == 3
    assert again["nested"]["list"][1:] == [None, "text", 0.1]
    assert again["nested"]["empty"] == {}
    for name in ("scalar", "none", "bool"):
        assert again[name].shape == want[name].shape
        assert again[name].dtype == want[name].dtype
        assert (again[name] == want[name]).all()


def test_arrays_start_on_cache_lines(saved):
    raw = saved.read_bytes()
    assert raw.index(np.full(6, 1.0, np.float32).tobytes()) % 64 == 0
    assert len(raw) % 64 == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "uint16"])
def test_tensors_come_back_bit_for_bit(tmp_path, dtype):
    import blutrain as bt

    values = np.array([0.1, -3.0, 1e-3, 250.0])
    tensor = bt.from_numpy(np.abs(values) if dtype[0] in "ui" else values, dtype=dtype)
    if dtype == "int8":
        tensor = bt.from_numpy(np.array([1, -2, 3], np.int8))
    save_checkpoint(tmp_path / "c", {"t": tensor}, {})
    again = load_checkpoint(tmp_path / "c").state["t"]
    assert (bt.from_numpy(again, dtype=dtype).numpy() == tensor.numpy()).all()


def test_every_truncation_is_noticed(saved, tmp_path):
    raw = saved.read_bytes()
    cut = tmp_path / "cut"
    # The last array is two bytes long; after it there is padding, which nothing reads.
    used = len(raw) - 62
    for length in [*range(0, 200, 7), *range(200, used, 61), used - 1]:
        cut.write_bytes(raw[:length])
        with pytest.raises(CheckpointError, match=r"cut|truncated|must be a blutrain checkpoint"):
            load_checkpoint(cut)


def test_every_altered_byte_is_noticed(saved, tmp_path):
    raw = saved.read_bytes()
    start = raw.index(np.full(6, 1.0, np.float32).tobytes())
    altered = tmp_path / "altered"
    for place in [0, 9, 30, 100, start, start + 23]:
        changed = bytearray(raw)
        changed[place] ^= 0x40
        altered.write_bytes(changed)
        with pytest.raises(CheckpointError, match="load_checkpoint: .*must be"):
            load_checkpoint(altered)


def test_foreign_and_missing(tmp_path):
    (tmp_path / "f").write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(CheckpointError, match=r"must be a blutrain checkpoint.*got b'PK"):
        load_checkpoint(tmp_path / "f")
    with pytest.raises(CheckpointError, match="must be readable, got No such file"):
        load_checkpoint(tmp_path / "none")


def test_other_config(saved):
    with pytest.raises(CheckpointError, match="same config, got n_layer 2 for 4; ask for"):
        load_checkpoint(saved, {**CONFIG, "n_layer": 4})
    with pytest.raises(CheckpointError, match="bias True for None"):
        load_checkpoint(saved, {"n_layer": 2, "sizes": [1, 2]})


def test_what_cannot_be_stored(saved):
    with pytest.raises(CheckpointError, match=r"state.a.b\[1\] must be a tensor.*got function"):
        save_checkpoint(saved, {"a": {"b": [1, state]}}, CONFIG)
    with pytest.raises(CheckpointError, match="dtype that blutrain has, got complex128"):
        save_checkpoint(saved, {"a": np.zeros(2, complex)}, CONFIG)
    assert_is_first(saved)


def test_disk_full_keeps_the_previous_one(saved):
    """The system itself refuses to let the file grow past 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(CheckpointError, match="must be writable, with .* bytes free, got"):
            save_checkpoint(saved, {"big": np.ones(100_000)}, CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_is_first(saved)
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("moment", ["os.fsync", "os.replace"])
def test_killed_while_writing(saved, moment):
    """SIGKILL with the data half on disk, then with all of it there but not renamed."""
    program = f"""
        import os, signal
        import numpy as np
        from blutrain.io.checkpoint import save_checkpoint
        {moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        save_checkpoint({str(saved)!r}, {{"nested": np.zeros(1000)}}, {CONFIG!r})
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=os.environ)
    assert run.returncode == -signal.SIGKILL
    assert_is_first(saved)
    assert len(list(saved.parent.iterdir())) == 2  # What the killed one left aside...
    save_checkpoint(saved, state(), CONFIG)
    assert len(list(saved.parent.iterdir())) == 1  # ...is used up by the next.


def test_interrupted_while_writing(saved, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved, state(2.0), CONFIG)
    assert_is_first(saved)
    assert len(list(saved.parent.iterdir())) == 1


class Part:
    def __init__(self):
        self.value = 0

    def state_dict(self):
        return self.value

    def check_state_dict(self, state):
        if state < 0:
            raise CheckpointError("negative")

    def load_state_dict(self, state):
        self.value = state


def test_restore_is_all_or_nothing():
    one, two = Part(), Part()
    with pytest.raises(CheckpointError, match="negative"):
        restore({"one": 5, "two": -1}, one=one, two=two)
    with pytest.raises(CheckpointError, match="must hold 'two', got one"):
        restore({"one": 5}, one=one, two=two)
    assert one.value == 0
    restore({"one": 5, "two": 6}, one=one, two=two)
    assert (one.value, two.value) == (5, 6)

"""Flags, config files, the metrics log and the schedules."""

import math
from dataclasses import dataclass, field

import pytest

from blutrain.errors import DataError, ShapeError
from blutrain.io.metrics import MetricsLog, plot_losses, read_metrics
from blutrain.io.settings import SettingsError, parse
from blutrain.optim import CosineSchedule, LinearSchedule


@dataclass
class Settings:
    n_layer: int = 12
    lr: float | None = None
    bias: bool = True
    mode: str = field(default="a", metadata={"help": "100%", "choices": ["a", "b_c"]})


@pytest.mark.parametrize(
    "flags",
    [
        ["--n-layer", "4", "--mode", "b_c"],
        ["--n_layer=4", "--mode=b_c"],
        ["--n_layer", "4", "--mode=b_c"],
    ],
)
def test_spellings(flags):
    assert parse(Settings, flags) == Settings(n_layer=4, mode="b_c")


def test_later_wins(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("n-layer = 5\nlr = 1\nbias = false\n")
    got = parse(Settings, [f"--config={file}", "--bias"], defaults={"n_layer": 3, "mode": "b_c"})
    assert got == Settings(5, 1.0, True, "b_c")
    assert isinstance(got.lr, float)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"n_leyer": 1}', "has an unknown key, got 'n_leyer'; use one of n_layer, lr"),
        ('{"n_layer": "4"}', "n_layer in .* must be of type int, got '4'"),
        ('{"n_layer": true}', "n_layer in .* must be of type int, got True"),
        ('{"mode": "z"}', "mode in .* must be one of a, b_c, got 'z'"),
        ("[1]", "must hold names and values, got list"),
        ("{", "must be readable"),
    ],
)
def test_bad_config(tmp_path, text, says):
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=says):
        parse(Settings, [f"--config={file}"])


def test_missing_config(tmp_path):
    with pytest.raises(SettingsError, match="No such file"):
        parse(Settings, [f"--config={tmp_path / 'none.json'}"])


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--n-leyer=4", "unrecognized arguments: --n-leyer=4"),
        ("--n-lay=4", "unrecognized arguments: --n-lay=4"),
        ("--n-layer=four", "--n-layer: invalid int value: 'four'"),
        ("--mode=z", "--mode: invalid choice: 'z'"),
    ],
)
def test_bad_flag(flag, says, capsys):
    with pytest.raises(SystemExit):
        parse(Settings, [flag])
    assert says in capsys.readouterr().err


def test_metrics_continue_without_a_seam(tmp_path):
    path = tmp_path / "m.jsonl"
    log = MetricsLog(path)
    for step in range(1, 6):
        log.write(step=step, loss=0.1 * step)
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # As a kill leaves it.
    log = MetricsLog(path, resume_step=3)
    log.write(step=4, loss=7.0)
    assert [m["step"] for m in read_metrics(path)] == [1, 2, 3, 4]
    assert read_metrics(path)[2] == {"step": 3, "loss": 0.1 * 3}
    assert MetricsLog(path) and read_metrics(path) == []


def test_metrics_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="m.jsonl must be writable, got .*; free space or choose"):
        MetricsLog(tmp_path / "file" / "m.jsonl")
    log = MetricsLog(tmp_path / "m.jsonl")
    log.path = tmp_path
    with pytest.raises(DataError, match="must be writable, got Is a directory"):
        log.write(step=1)


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    log = MetricsLog(tmp_path / "m.jsonl")
    log.write(step=1, loss=3.0)
    log.write(step=2, loss=2.0, held_out_loss=2.5)
    assert plot_losses(log.path, tmp_path / "loss.png", 3.2)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"pip install 'blutrain\[viz\]'"):
        assert not plot_losses(tmp_path / "m.jsonl", tmp_path / "loss.png", 3.2)


@pytest.mark.parametrize("kind", [CosineSchedule, LinearSchedule])
def test_schedules(kind):
    rates = [kind(1.0, 100, 10, 0.1)(step) for step in range(120)]
    assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert rates[10] == 1.0
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert rates[55] == pytest.approx(0.55)
    assert rates[100:] == pytest.approx([0.1] * 20)
    assert math.isclose(kind(1.0, 0)(0), 1.0)


@pytest.mark.parametrize("bad", [(1.0, 10, 11, 0.0), (1.0, 10, 0, 2.0), (-1.0, 10, 0, 0.0)])
def test_bad_schedule(bad):
    with pytest.raises(ShapeError, match="0 <= min_lr <= lr and 0 <= warmup_steps <= total_steps"):
        CosineSchedule(*bad)

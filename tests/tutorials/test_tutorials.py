"""Every lesson runs, whole, as a script does, and draws its figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))


def test_there_are_lessons() -> None:
    assert len(LESSONS) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda p: p.stem)
def test_lesson_runs(lesson: Path, tmp_path: Path) -> None:
    """A copy is run, so that its figures land beside the copy."""
    copy = tmp_path / lesson.name
    copy.write_text(lesson.read_text())
    (tmp_path / "lesson.py").write_text((lesson.parent / "lesson.py").read_text())
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]))
    done = subprocess.run(
        [sys.executable, str(copy)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    figures = list((tmp_path / "figures").glob("*.png"))
    assert figures
    assert all(f.stat().st_size > 1000 for f in figures)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda p: p.stem)
def test_lesson_has_the_form(lesson: Path) -> None:
    lines = lesson.read_text().splitlines()
    assert len(lines) <= 300
    assert lines[0] == "# %% [markdown]"
    assert any(line.startswith("# **") and line.rstrip().endswith("?**") for line in lines), (
        "a question"
    )
    assert any("$$" in line for line in lines), "the mathematics"
    assert any("@cuda.jit" in line for line in lines), "a kernel"
    assert any("assert" in line for line in lines), "a check"

"""What every benchmark shares: timing that alternates between the two, the table, the saved result.

A result is `benchmarks/results/NAME-DEVICE.json`; the figures in the documentation are drawn from
these files and from nothing else.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from blutrain import __version__
from blutrain.device import TARGET

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("numpy", "numba", "numba-cuda", "torch")


@dataclass(frozen=True)
class Row:
    """One measurement beside the peer's.

    Attributes:
        case: what was run, such as "GPT-2 124M, B 16".
        metric: what the numbers are, such as "tokens_per_second".
        unit: their unit.
        better: "higher" or "lower".
        ours: blutrain's figure.
        peer: who is compared with, or None.
        theirs: the peer's figure, or None.
        error_ours: the error against a more exact computation, or None.
        error_theirs: the peer's error, or None.
    """

    case: str
    metric: str
    unit: str
    better: str
    ours: float
    peer: str | None = None
    theirs: float | None = None
    error_ours: float | None = None
    error_theirs: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times better ours is (below 1: worse); None without a peer or for a zero."""
        if self.theirs is None or not self.theirs or not self.ours:
            return None
        return self.ours / self.theirs if self.better == "higher" else self.theirs / self.ours


def gpu_name() -> str | None:
    """The first GPU's name as the driver's tool gives it; None without one."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def device() -> str:
    """The device's short name, as it stands in a result's file name: "h200", "cpu"."""
    if TARGET == "cpu":
        return "cpu"
    name = (gpu_name() or "gpu").lower()
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"^(nvidia|tesla|geforce)\s+", "", name)).strip("-")


def device_in_full() -> str:
    """What was measured on: the GPU's name, or the processor's and how many cores were ours."""
    if TARGET == "cuda":
        return gpu_name() or "GPU"
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return f"{found.group(1) if found else platform.machine()}, {cores()} cores"


def cores() -> int:
    """How many cores this process may use."""
    import os

    return len(os.sched_getaffinity(0))


def versions() -> dict[str, str]:
    """Versions of what the figures depend on, those that are installed."""
    found = {"blutrain": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured, with "+" when the tree differs from it.

    BLUTRAIN_COMMIT names it where the tree was copied without its history; else "" outside git.
    """
    if named := os.environ.get("BLUTRAIN_COMMIT"):
        return named
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def alternate(
    calls: Sequence[Callable[[], float]], repeats: int, warm_up: int = 1
) -> list[list[float]]:
    """Measure several ways in turn, so that whatever else the machine does falls on all alike.

    Args:
        calls: each runs once and returns its measurement.
        repeats: measurements of each.
        warm_up: rounds before those, thrown away (compilation, caches).

    Returns:
        The measurements of each call.

    Example:
        >>> alternate([lambda: 1.0, lambda: 2.0], repeats=2)
        [[1.0, 1.0], [2.0, 2.0]]
    """
    measured: list[list[float]] = [[] for _ in calls]
    for turn in range(warm_up + repeats):
        for call, values in zip(calls, measured, strict=True):
            value = call()
            if turn >= warm_up:
                values.append(value)
    return measured


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text.

    Example:
        >>> print(table([Row("add", "time", "ms", "lower", 1.0, "PyTorch", 2.0)]))
        case  metric  unit  ours  theirs  ratio
        add   time    ms       1       2  2.00x
    """
    cells = [["case", "metric", "unit", "ours", "theirs", "ratio"]]
    for row in rows:
        theirs = "" if row.theirs is None else _number(row.theirs)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        cells.append([row.case, row.metric, row.unit, _number(row.ours), theirs, ratio])
    widths = [max(len(line[k]) for line in cells) for k in range(len(cells[0]))]
    lines = []
    for line in cells:
        left = [text.ljust(w) for text, w in zip(line[:3], widths[:3], strict=True)]
        right = [text.rjust(w) for text, w in zip(line[3:], widths[3:], strict=True)]
        lines.append("  ".join(left + right).rstrip())
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def median(values: Sequence[float]) -> float:
    """The middle measurement."""
    return float(statistics.median(values))


def finish(name: str, rows: Sequence[Row], save: bool, notes: dict[str, Any] | None = None) -> None:
    """Print the table and, if asked to, save the result.

    Args:
        name: the benchmark's, as in its file's name.
        rows: what was measured.
        save: whether to write benchmarks/results/NAME-DEVICE.json.
        notes: settings that the rows were measured with.
    """
    print(f"\n{name} on {device_in_full()}")
    print(table(rows))
    if not save:
        return
    result = {
        "bench": name,
        "device": device(),
        "device_name": device_in_full(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "notes": notes or {},
        "rows": [asdict(row) for row in rows],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}-{device()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"saved {path.relative_to(ROOT)}")

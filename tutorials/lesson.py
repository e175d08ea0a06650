"""What every lesson uses: a stopwatch and a place for its figures."""

import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # draws into files, needs no screen
from matplotlib.figure import Figure

from blutrain.device import synchronize

FIGURES = Path(__file__).parent / "figures"


def seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Median time of a call, the work on the device included."""
    call()  # the first call compiles
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def save(figure: Figure, name: str) -> None:
    """Write a figure to tutorials/figures/NAME.png."""
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", dpi=120)

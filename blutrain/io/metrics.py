"""The metrics log, one JSON object a line, and the loss plot drawn from it."""

from __future__ import annotations

import importlib.util
import json
import math
import warnings
from pathlib import Path
from typing import Any

from blutrain.errors import DataError, message
from blutrain.io.atomic import write_aside


class MetricsLog:
    """Appends lines to a JSONL file; a resumed run continues the file without a seam.

    Args:
        path: the file.
        resume_step: lines past this step are dropped (a killed run wrote them after its last
            checkpoint; they are about to be computed again). None begins a new file.

    Raises:
        DataError: the folder is not writable, or the disk is full.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
        >>> MetricsLog(path).write(step=1, loss=2.5)
        >>> read_metrics(path)
        [{'step': 1, 'loss': 2.5}]
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self.path = path
        kept = [] if resume_step is None else read_metrics(path)
        lines = [json.dumps(m) + "\n" for m in kept if m["step"] <= (resume_step or 0)]
        try:
            write_aside(path, ["".join(lines).encode()])
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, **values: Any) -> None:
        """Append one line; a run that is killed after this has kept it.

        Raises:
            DataError: the disk is full.
        """
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> DataError:
        do = "free space or choose another --out-dir; the last checkpoint is intact"
        return DataError(message("metrics", f"{self.path} must be writable", error.strerror, do))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, without a last one that a kill cut short; none if there is no file."""
    if not path.exists():
        return []
    metrics = []
    for line in path.read_text().splitlines():
        try:
            metrics.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return metrics


def plot_losses(log: Path, picture: Path, baseline: float) -> bool:
    """Draw training and held-out loss against the step.

    Args:
        log: the metrics log, with `loss` and `held_out_loss`.
        picture: the PNG to write.
        baseline: a loss to draw as a line, the unigram entropy.

    Returns:
        Whether it was drawn. Without matplotlib it warns, naming the extra, and draws nothing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        text = f"{picture.name} is not drawn: matplotlib is missing; pip install 'blutrain[viz]'"
        warnings.warn(text, stacklevel=2)
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = read_metrics(log)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)  # No display, no global state: safe inside any program.
    axes = figure.add_subplot()
    for key, label, style in (
        ("loss", "training", {"lw": 0.8, "alpha": 0.7}),
        ("held_out_loss", "held-out files", {"marker": "o", "ms": 3}),
    ):
        points = [(m["step"], m[key]) for m in metrics if math.isfinite(m.get(key, math.nan))]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.axhline(baseline, ls="--", lw=1, color="gray", label="unigram entropy")
    axes.set(xlabel="step", ylabel="loss (nats a token)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)
    return True

"""What shows a run reads its steps one after the other: of each it keeps at most the values that are drawn."""

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.extras.charts import draw
from lite_selfplay.extras.export.exporting import ask
from lite_selfplay.extras.reproduce import conduct
from lite_selfplay.extras.view.answers import ViewedRun
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.report.diagnosis import diagnose
from lite_selfplay.runs.report.figures import charts_of, curves_of, find_meaning, game_of, values_of

from .conftest import metrics, stream

FEW, MANY = 120, 400
# Bytes of a text in each step that nothing shows: whoever keeps the steps keeps it.
WEIGHT = 10_000
# Bytes that a point of a curve may take, with its step and its value in a curve and in a chart, and points of a step.
POINT, POINTS = 150, 10


def charts(path: Path) -> list[dict[str, Any]]:
    folder = RunFolder.open(path)
    return charts_of(game_of(folder)[0], folder, folder.steps())


READERS: dict[str, tuple[Callable[[Path], object], int]] = {
    "why RUN": (diagnose, 0),
    "why RUN --step": (lambda path: diagnose(path, FEW // 2), 0),
    "why KEY RUN": (lambda path: values_of(find_meaning("kl"), RunFolder.open(path).steps()), 2),
    "charts": (charts, POINTS),
    "view": (lambda path: ViewedRun(path).overview(), POINTS),
    "reproduce": (lambda path: conduct._training_record(path, "game.pairs"), 2),
    "export": (lambda path: ask(RunFolder.open(path), "A", "peft", path / "out", False), 0),
}
"""Each reader of steps, and how many points it keeps of a step."""


def run_of(write_run: Callable[..., Path], steps: int) -> Path:
    def row(step: int) -> dict[str, Any]:
        own = stream(kl=0.001 * step, rows_trained=4, zero_variance_groups=0, accuracy=None, truncated=0.5)
        about = {"wall_s": {"total": 1.0}, "tokens": {"generated": 2, "trained": 1}, "more": "x" * WEIGHT}
        return metrics(step, {"drafter": own}, **about, game={"pairs": step % 7}, warnings=[f"{step} of all"])

    path = write_run(f"of-{steps}", [row(step) for step in range(1, steps + 1)], steps=steps, seats={"A": {}})
    (path / "adapters" / "A").mkdir(parents=True)
    (path / "adapters" / "A" / "adapter_config.json").write_text("{}")
    return path


@pytest.mark.parametrize("name", READERS)
def test_a_reader_keeps_no_step(write_run: Callable[..., Path], name: str):
    read, points = READERS[name]
    few, many, peaks = run_of(write_run, FEW), run_of(write_run, MANY), []
    for path in (few, few, many):  # the first imports and fills caches
        tracemalloc.start()
        found = read(path)
        gc.collect()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found is not None
    grown = peaks[2] - peaks[1]
    assert grown < points * POINT * (MANY - FEW) + 2**16


def test_the_memory_of_kept_steps_would_be_seen(write_run: Callable[..., Path]):
    folder = RunFolder.open(run_of(write_run, FEW))
    tracemalloc.start()
    rows = list(folder.steps())
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept > len(rows) * WEIGHT / 2 > 3 * len(rows) * POINT * POINTS


def test_the_charts_that_are_counted_are_all_there_are(write_run: Callable[..., Path]):
    path = run_of(write_run, 20)
    lines = [line for chart in charts(path) for line in chart["lines"]]
    assert sum(len(line["steps"]) for line in lines) <= POINTS * 20
    folder = RunFolder.open(path)
    assert curves_of(game_of(folder)[0], folder.steps()) == curves_of(game_of(folder)[0], list(folder.steps()))


def test_a_smoothed_line_is_the_mean_of_the_last_twentieth():
    """Forty steps: each point is the mean of two."""
    values = [float(step * step) for step in range(40)]
    line = {"name": "a", "steps": list(range(1, 41)), "values": values}
    chart = {"name": "reward", "group": "Learning", "unit": "number", "how": "mean", "healthy": None, "lines": [line]}
    _, smooth = draw([chart]).axes[0].lines
    means = [0.0, *((before + value) / 2 for before, value in itertools.pairwise(values))]
    assert list(map(float, smooth.get_ydata())) == pytest.approx(means)

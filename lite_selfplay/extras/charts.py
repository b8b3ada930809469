"""Draws a run's charts with matplotlib, an optional dependency."""

import importlib.util
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import ConfigError
from lite_selfplay.runs.folder import RunFolder, as_written
from lite_selfplay.runs.report.figures import GROUPS, charts_of, game_of
from lite_selfplay.tasks.files import require_no_link, write_errors
from lite_selfplay.training.progress import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "figures"
COLUMNS, WIDTH, HEIGHT = 3, 4.6, 3.1  # panels in a row; inches of a panel
SMOOTHED_OVER = 20  # lines are smoothed by the mean over the last 1/20 of a run; single steps are drawn faintly


def save_figures(run: Path, out: Path | None = None) -> list[Path]:
    """Draw the charts of the run folder `run` as PNG files, and return their paths. Each group of charts (`learning`,
    `the-game`, `health`) that is not empty becomes one file. `out` is the folder for the files, or None for `figures`
    in the run folder. Files of the same names are replaced. Raises ConfigError if matplotlib is missing. Raises
    RunFolderError if `run` is damaged or not a run folder, if `out` or one of the PNG files is a symbolic link, and if
    a PNG file cannot be written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('for figures, install matplotlib: pip install "lite-selfplay[plots]"')
    folder, out = RunFolder.open(run), out or run / FOLDER
    require_no_link(out)
    with as_written(run):
        charts = charts_of(game_of(folder)[0], folder, folder.steps())
    paths = []
    for group in GROUPS:
        if chosen := [chart for chart in charts if chart["group"] == group]:
            path = out / f"{group.lower().replace(' ', '-')}.png"
            require_no_link(path)
            with write_errors(path), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about letters that the font does not have
                out.mkdir(parents=True, exist_ok=True)
                draw(chosen).savefig(path, dpi=120)
            paths.append(path)
    return paths


def draw(charts: Sequence[Mapping[str, Any]]) -> "Figure":
    """A matplotlib figure with a panel for each chart, over the training steps. `charts` has at least one chart, as
    `runs.report.figures.charts_of` returns them. Lines of the same name have the same colour in all panels."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(charts))
    rows = math.ceil(len(charts) / columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.5), layout="constrained")
    names = list(dict.fromkeys(line["name"] for chart in charts for line in chart["lines"]))
    for index, chart in enumerate(charts, 1):
        _panel(figure.add_subplot(rows, columns, index), chart, {name: f"C{i % 10}" for i, name in enumerate(names)})
    return figure


def _panel(panel: "Axes", chart: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    lines = chart["lines"]
    longest = max((len(line["steps"]) for line in lines), default=0)
    for line in lines:
        style: dict[str, Any] = {"color": colours[line["name"]], "label": shown_label(line["name"]) or None}
        if "within" in line:
            panel.axhspan(*line["within"], facecolor=style["color"], edgecolor=style["color"], alpha=0.15)
        if "low" in line:
            ends = [
                [abs(value - end) for value, end in zip(line["values"], line[side], strict=True)]
                for side in ("low", "high")
            ]
            panel.errorbar(line["steps"], line["values"], yerr=ends, marker="o", capsize=3, **style)
        elif (over := math.ceil(longest / SMOOTHED_OVER)) > 1 and chart["how"] == "mean":
            panel.plot(line["steps"], line["values"], color=style["color"], alpha=0.2, linewidth=0.8)
            sums = [0.0, *itertools.accumulate(line["values"])]
            means = [(sums[end] - sums[max(0, end - over)]) / min(end, over) for end in range(1, len(sums))]
            panel.plot(line["steps"], means, **style)
        else:
            panel.plot(line["steps"], line["values"], marker="." if longest <= SMOOTHED_OVER else "", **style)
    panel.set_title("\n".join(textwrap.wrap(shown_label(chart["name"]), 34)))
    panel.set_xlabel("step")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart["unit"] == "share":
        panel.set_ylim(-0.03, 1.03)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    if any(line["name"] for line in lines):
        panel.legend(fontsize="x-small")


def shown_label(text: str) -> str:
    """`text` as a label for matplotlib: on one line, and escaped so that matplotlib does not read it as a formula. A
    leading `_` gets a space before it, since a legend skips labels that begin with `_`."""
    shown = re.sub(r"([$\\])", r"\\\1", " ".join(printable(text).split()))
    return f" {shown}" if shown.startswith("_") else shown

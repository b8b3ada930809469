"""Analyses as figures, drawn by matplotlib, which is an extra: several runs lie over each other."""

import importlib.util
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lite_selfplay.errors import RunFolderError
from lite_selfplay.games.studies import Study, window_names, within
from lite_selfplay.models.packages import install
from lite_selfplay.runs.report.analysis.curves import GAME, SEATS, Curve
from lite_selfplay.runs.report.analysis.runs import Analysis, Moment
from lite_selfplay.tasks.files import require_no_link
from lite_selfplay.training.progress import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["png", "svg"]

HOW_TO_DRAW = f"for figures, install matplotlib: {install('plots')}"
COLUMNS, WIDTH, HEIGHT = 3, 4.6, 3.1
"""Panels in a row; inches of a panel."""

SMOOTHED_OVER = 20
"""A line is the mean of the last of so many parts of a run; the steps themselves are drawn faintly."""

_STYLES = ("-", "--", ":", "-.")
_MOST_NAMES = 24
"""Names in a legend: more would leave no room for the panels."""


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def save_figures(runs: Sequence[Analysis], folder: Path, suffix: Format = "png", windows: int = 6) -> list[Path]:
    """Draw `streams`, `game`, `evaluations` and each study with points, as far as there is something to draw.

    Returns their paths in the folder. Points have a colour for each of the run's `windows`.

    Figures of the same name are replaced. Raises RunFolderError where the folder cannot be written or is a link.
    """
    require_no_link(folder)
    made = {name: figure for name, draw in DRAWN.items() if (figure := draw(runs)) is not None}
    made |= planes(runs, windows)
    paths = []
    for name, figure in made.items():
        path = folder / f"{name}.{suffix}"
        require_no_link(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with warnings.catch_warnings():  # of letters that the font does not have
                warnings.simplefilter("ignore")
                figure.savefig(path, dpi=120, metadata={"Date": None} if suffix == "svg" else None)
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from None
        paths.append(path)
    return paths


def streams_figure(runs: Sequence[Analysis]) -> "Figure | None":
    """A panel for each figure of the roles and seats: rewards, accuracies, lengths, and so on."""
    return _panels(runs, lambda curve: curve.part == SEATS or (curve.part != GAME and not curve.kind))


def game_figure(runs: Sequence[Analysis]) -> "Figure | None":
    """A panel for each figure of the games' own logs; one that is no declared figure has none where all is zero."""
    return _panels(runs, lambda curve: curve.part == GAME and (curve.declared or any(curve.values)))


def evaluations_figure(runs: Sequence[Analysis]) -> "Figure | None":
    """A panel for each set of held-out problems: pass@1 with its 95% interval over the steps."""
    sets = list(dict.fromkeys((m.tasks, m.problems) for run in runs for m in run.moments))
    if not sets:
        return None
    figure, panels = _grid(len(sets), columns=2, width=7.0, height=4.6)
    style = _Styles(runs)
    for panel, (tasks, problems) in zip(panels, sets, strict=True):
        panel.set_title(_title(f"pass@1 on {problems} of {Path(tasks).name}", 60))
        panel.set_xlabel("steps of training")
        lines = [
            (run, seat, moments)
            for run in runs
            if (moments := [m for m in run.moments if (m.tasks, m.problems) == (tasks, problems)])
            for seat in dict.fromkeys(seat for m in moments for seat in m.scores)
        ]
        for number, (run, seat, moments) in enumerate(lines):
            _measured(panel, moments, seat, place=number - (len(lines) - 1) / 2, **style(run, seat))
        _axes(panel, shares=True)
    _shared_legend(
        figure, {str(h.get_label()): h for panel in figure.axes for h in panel.get_legend_handles_labels()[0]}
    )
    return figure


DRAWN: Mapping[str, Callable[[Sequence[Analysis]], "Figure | None"]] = {
    "streams": streams_figure,
    "game": game_figure,
    "evaluations": evaluations_figure,
}
"""The figures by the name of their file."""


def planes(runs: Sequence[Analysis], windows: int) -> "dict[str, Figure]":
    """A figure for each study with points, by its name: a panel for each run, a colour for each window of steps."""
    found: dict[str, list[tuple[Analysis, Study]]] = {}
    for run in runs:
        for study in run.studies(run.windows(windows)):
            if study.points:
                found.setdefault(study.name, []).append((run, study))
    made = {}
    for name, parts in found.items():
        figure, panels = _grid(len(parts), width=6.0, height=5.0)
        for panel, (run, study) in zip(panels, parts, strict=True):
            shown = run.windows(windows)
            panel.set_title(_title(f"{study.title}: {run.name}", 50))
            for number, (window, label) in enumerate(zip(shown, window_names(shown), strict=True)):
                points = within(study.points, window, lambda point: point.step)
                style: dict[str, Any] = {"s": 12, "color": _shade(number, len(shown)), "label": label}
                panel.scatter([p.x for p in points], [p.y for p in points], **style)
            panel.legend(fontsize="x-small")
        made[name] = figure
    return made


def _shade(number: int, count: int) -> Any:
    """From dark to light over the run, so that a drift can be seen."""
    from matplotlib import colormaps

    return colormaps["viridis"](number / max(1, count - 1))


def _panels(runs: Sequence[Analysis], wanted: Callable[[Curve], bool]) -> "Figure | None":
    """A panel for each name among the wanted curves, over the steps; one legend below names all lines."""
    titles: dict[str, list[tuple[Analysis, Curve]]] = {}
    for run in runs:
        for curve in filter(wanted, run.curves):
            titles.setdefault(curve.name, []).append((run, curve))
    if not titles:
        return None
    figure, panels = _grid(len(titles))
    style = _Styles(runs)
    shared: dict[str, Any] = {}
    for panel, (title, lines) in zip(panels, titles.items(), strict=True):
        panel.set_title(_title(title, 34))
        panel.set_xlabel("step")
        for run, curve in lines:
            line = _drawn(panel, run, curve, **style(run, curve.kind or ("" if curve.part == GAME else curve.part)))
            if not curve.kind:
                shared.setdefault(str(line.get_label()), line)
        _axes(panel, shares=all(curve.unit == "share" for _, curve in lines))
        if any(curve.kind for _, curve in lines):
            panel.legend(fontsize="x-small")
    _shared_legend(figure, shared)
    return figure


class _Styles:
    """The label, colour and dashes of each line: one run has a colour for each name, several have one each."""

    def __init__(self, runs: Sequence[Analysis]):
        self._runs = list(runs)
        self._names: dict[str, int] = {}

    def __call__(self, run: Analysis, name: str) -> dict[str, Any]:
        number = self._names.setdefault(name, len(self._names))
        if len(self._runs) == 1:
            return {"label": shown_label(name or run.name), "color": f"C{number % 10}", "linestyle": "-"}
        place = next(i for i, other in enumerate(self._runs) if other is run)
        label = f"{run.name}: {name}" if name else run.name
        return {"label": shown_label(label), "color": f"C{place % 10}", "linestyle": _STYLES[number % len(_STYLES)]}


def _drawn(panel: "Axes", run: Analysis, curve: Curve, **style: Any) -> Any:
    """The steps faintly, and the mean of the last few of them as a line; its handle."""
    steps = [step + 1 for step in curve.steps]
    over = max(1, math.ceil(len(run.steps) / SMOOTHED_OVER))
    if over == 1 or curve.how != "mean":
        marker = "." if len(steps) <= SMOOTHED_OVER else ""
        return panel.plot(steps, curve.values, marker=marker, **style)[0]
    panel.plot(steps, curve.values, color=style["color"], alpha=0.2, linewidth=0.8)
    means = [curve.over(step - over + 1, step) for step in curve.steps]
    return panel.plot(steps, [math.nan if mean is None else mean for mean in means], **style)[0]


def _measured(panel: "Axes", moments: Sequence[Moment], seat: str, *, place: float, **style: Any) -> None:
    """A seat's scores with their intervals, beside those of others; what was measured before training is at 0."""
    found = [(max(0, moment.step), moment.scores[seat]) for moment in moments if seat in moment.scores]
    rates = [score.pass_at_1 for _, score in found]
    below = [max(0.0, score.pass_at_1 - score.low) for _, score in found]
    above = [max(0.0, score.high - score.pass_at_1) for _, score in found]
    beside = 0.006 * max((moment.step for moment in moments), default=0) * place
    panel.errorbar([step + beside for step, _ in found], rates, yerr=[below, above], marker="o", capsize=3, **style)


def _grid(
    count: int, *, columns: int = COLUMNS, width: float = WIDTH, height: float = HEIGHT
) -> "tuple[Figure, Iterator[Axes]]":
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    return figure, (figure.add_subplot(rows, columns, place + 1) for place in range(count))


def _axes(panel: "Axes", *, shares: bool) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    if shares:
        panel.set_ylim(-0.03, 1.03)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))


def _shared_legend(figure: "Figure", handles: Mapping[str, Any]) -> None:
    """One legend for all panels, below them."""
    shown = list(handles.values())[:_MOST_NAMES]
    if shown:
        figure.legend(handles=shown, loc="outside lower center", ncols=4, fontsize="small")


def _title(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(shown_label(text), width))


def shown_label(text: str) -> str:
    """Text on one line in which matplotlib finds no formula, and that a legend does not leave out."""
    shown = re.sub(r"([$\\])", r"\\\1", " ".join(printable(text).split()))
    return f" {shown}" if shown.startswith("_") else shown

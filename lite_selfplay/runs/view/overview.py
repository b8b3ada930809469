"""A run as the page first shows it: what it is, its curves, its evaluations, and which steps have episodes."""

from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import Any

from lite_selfplay.errors import RunFolderError
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import PROPOSALS
from lite_selfplay.runs.folder import EPISODES, EVALUATIONS, METRICS, RunFolder, as_written
from lite_selfplay.runs.report.analysis import Analysis, Curve, analyse
from lite_selfplay.runs.report.analysis.curves import GAME, SEATS
from lite_selfplay.runs.report.declared import game_of
from lite_selfplay.runs.report.steps import only_finite
from lite_selfplay.runs.state import state_of
from lite_selfplay.runs.view.cases import filters_of
from lite_selfplay.runs.view.index import EpisodeIndex

LEARNING, PLAY, HEALTH = "Learning", "The game", "Health"
"""The groups of charts: what the seats achieve; what the game declares of itself; whether the training is sound."""

_ACHIEVED = {"reward", "well-formed", "length in tokens"}


class ViewedRun:
    """A run folder that is looked at again and again; nothing but the index of its episodes is kept.

    Raises RunFolderError where it is none.
    """

    def __init__(self, path: Path):
        self.folder = RunFolder.open(path)
        with as_written(path):
            self.game, self.without_game = game_of(self.folder)
        self.index = EpisodeIndex(path / EPISODES)
        self._known: dict[str, Any] = {"stamp": None}

    @property
    def path(self) -> Path:
        return self.folder.path

    def stamp(self) -> str:
        """Changes whenever the run has written something that the page shows."""
        files = [self.path / METRICS, self.path / EPISODES, *sorted((self.path / EVALUATIONS).glob("*.json"))]
        sizes = [f"{file.name}:{file.stat().st_size}" for file in files if file.exists()]
        return f"{state_of(self.path).stage} {' '.join(sizes)}"

    def overview(self) -> dict[str, Any]:
        """Everything that the page shows before a step is opened, as JSON. Raises RunFolderError or ConfigError."""
        stamp = self.stamp()
        if self._known["stamp"] == stamp:
            return self._known
        with as_written(self.path):
            state, config, counts = state_of(self.path), self.folder.config(), self.index.steps()
            metrics = self.path / METRICS
            begun = metrics.exists() and metrics.stat().st_size > 0
            run = replace(analyse(self.path, completions=False), recorded=len(counts)) if begun else None
            facts = {
                "name": self.path.resolve().name,
                "game": config.game.label,
                "model": config.model.name,
                "tasks": config.tasks.train,
                "stage": state.stage,
                "played": state.step,
                "asked_for": state.steps,
                "best": state.best,
                "stamp": stamp,
                "filters": filters_of(self.game),
                "roles": list(getattr(self.game, "roles", ())),
                "steps": [[step, count] for step, count in counts.items()],
                "charts": [] if run is None else charts_of(self.game, run),
                "remarks": self._remarks(run),
            }
            self._known = dict(only_finite(facts))
            return self._known

    def _remarks(self, run: Analysis | None) -> list[str]:
        """What a reader has to know about what is not shown, and what the game warned of."""
        found = [self.without_game] if self.without_game else []
        if run is not None and run.recorded < run.spoken:
            found.append(f"episodes.jsonl holds the completions of {run.recorded} of {run.spoken} steps.")
        if self.index.damaged:
            found.append(f"{self.index.damaged} lines of episodes.jsonl are damaged and left out.")
        warned = run.warnings if run is not None else {}
        return found + [f"At {count} step{'s' if count > 1 else ''}: {text}" for text, count in warned.items()]


def charts_of(game: type[Game], run: Analysis) -> list[dict[str, Any]]:
    """The charts of a run: a chart for each name among its curves, a line for each role, seat or kind."""
    charts = _evaluations(run)
    named: dict[tuple[str, str], list[Curve]] = {}
    for curve in run.curves:
        if curve.part != GAME or curve.declared or any(curve.values):
            named.setdefault((group_of(game, curve), curve.name), []).append(curve)
    for (group, name), curves in named.items():
        lines = [
            {
                "name": curve.kind or ("" if curve.part == GAME else curve.part),
                "steps": curve.steps,
                "values": [round(value, 6) for value in curve.values],
            }
            for curve in curves
        ]
        unit, how = curves[0].unit, curves[0].how
        chart = {"name": name, "group": group, "unit": unit, "how": how, "lines": lines}
        charts.append(chart | {"healthy": _healthy(game, name)})
    order = [LEARNING, PLAY, HEALTH]
    return sorted(charts, key=lambda chart: order.index(chart["group"]))


def group_of(game: type[Game], curve: Curve) -> str:
    """Which group of charts a curve is in."""
    if curve.part == GAME:
        return PLAY
    names = {game.accuracy_of(curve.part).name, PROPOSALS.name} | _ACHIEVED
    return LEARNING if curve.part != SEATS and curve.name in names else HEALTH


def _healthy(game: type[Game], name: str) -> list[float | None] | None:
    """The lowest and the highest healthy value, where the game declares any."""
    figure = next((figure for figure in game.figures if figure.name == name), None)
    if figure is None:
        return None
    bounds = [None if isinf(bound) else bound for bound in figure.healthy]
    return None if bounds == [None, None] else bounds


def _evaluations(run: Analysis) -> list[dict[str, Any]]:
    """A chart for each set of held-out problems, with the 95% interval of every score; step 0 is before training."""
    charts = []
    for tasks, problems in dict.fromkeys((moment.tasks, moment.problems) for moment in run.moments):
        here = [moment for moment in run.moments if (moment.tasks, moment.problems) == (tasks, problems)]
        lines = [
            {
                "name": seat,
                "steps": [max(0, moment.step) - 1 for moment, _ in scored],
                "values": [score.pass_at_1 for _, score in scored],
                "low": [score.low for _, score in scored],
                "high": [score.high for _, score in scored],
                "moments": [moment.name for moment, _ in scored],
            }
            for seat in dict.fromkeys(seat for moment in here for seat in moment.scores)
            for scored in [[(moment, moment.scores[seat]) for moment in here if seat in moment.scores]]
        ]
        name = f"pass@1, {problems} held-out problems"
        about = {"name": name, "about": tasks, "group": LEARNING, "unit": "share", "how": "measured", "healthy": None}
        charts.append(about | {"lines": lines})
    return charts


def require_readable(run: ViewedRun) -> None:
    """Raises RunFolderError or ConfigError where a run could not be shown, before a server is started."""
    run.overview()
    if (run.path / EPISODES).is_symlink():
        raise RunFolderError(f"{run.path / EPISODES} is a symbolic link, which is not followed")

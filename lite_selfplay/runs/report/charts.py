"""The charts of a run: its curves and evaluations by what they show, for the viewer and for figures. No torch."""

from collections.abc import Mapping, Sequence
from math import inf, isinf
from typing import Any

from lite_selfplay.errors import RunFolderError
from lite_selfplay.evaluation.result import scores_of
from lite_selfplay.games import Game
from lite_selfplay.runs.folder import METRICS, RunFolder
from lite_selfplay.runs.report.curves import PLAY, Curve, Row, curves_of
from lite_selfplay.runs.report.meanings import HEALTH, LEARNING

GROUPS = (LEARNING, PLAY, HEALTH)
"""What the seats achieve; what the game declares of itself; whether the training is sound."""


def charts_of(game: type[Game], folder: RunFolder, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A chart for each set of held-out problems and for each name among the curves of a run's `rows`, by group.

    A chart has `name`, `group`, `unit`, `how`, the `healthy` bounds that the game declares, and `lines`, one for each
    role, seat or kind: `name`, `steps` counted from 1 (0 is before training), `values`, and where something was
    measured `low` and `high`, the ends of its 95% interval; `within`, where the game says
    between which values it should lie. Raises RunFolderError where a line is damaged.
    """
    for row in rows:
        streams, seats, log = (row.get(key) for key in ("streams", "seats", "game"))
        parts = (
            [*streams.values(), *seats.values()] if isinstance(streams, Mapping) and isinstance(seats, Mapping) else [0]
        )
        if not all(isinstance(part, Mapping) for part in [*parts, log]):
            raise RunFolderError(
                f"{folder.path / METRICS}: what stands there of step {row['step']} is not what a run writes"
            )
    charts = _evaluations(folder.evaluations())
    named: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves_of(game, rows):
        named.setdefault((curve.group, curve.name), []).append(curve)
    for (group, name), curves in named.items():
        figure = next((figure for figure in game.figures if figure.name == name), None)
        lines = [
            {"name": curve.line, "steps": curve.steps, "values": [round(value, 6) for value in curve.values]}
            | ({"within": figure.within[curve.line]} if figure and curve.line in figure.within else {})
            for curve in curves
        ]
        about = {"name": name, "group": group, "unit": curves[0].unit, "how": curves[0].how}
        bounds = figure.healthy if figure else (inf, inf)
        # The lowest and the highest healthy value, where the game declares any.
        healthy = None if all(map(isinf, bounds)) else [None if isinf(bound) else bound for bound in bounds]
        charts.append(about | {"lines": lines, "healthy": healthy})
    return sorted(charts, key=lambda chart: GROUPS.index(chart["group"]))


def _evaluations(moments: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A chart for each set of held-out problems, a line for each seat or direction."""
    charts = []
    for tasks, n in dict.fromkeys((found["tasks"], found["n"]) for found in moments.values()):
        here = [
            (name, max(0, found["step"]), scores_of(found))
            for name, found in moments.items()
            if (found["tasks"], found["n"]) == (tasks, n)
        ]
        lines = [
            {
                "name": seat,
                "steps": [step for _, step, _ in scored],
                "values": [score["pass_at_1"] for *_, score in scored],
                "low": [score["ci95"][0] for *_, score in scored],
                "high": [score["ci95"][1] for *_, score in scored],
                "moments": [name for name, *_ in scored],
            }
            for seat in dict.fromkeys(seat for *_, scores in here for seat in scores)
            for scored in [[(name, step, scores[seat]) for name, step, scores in here if seat in scores]]
        ]
        about = {"name": f"pass@1, {n} held-out problems", "about": tasks, "group": LEARNING, "unit": "share"}
        charts.append(about | {"how": "measured", "healthy": None, "lines": lines})
    return charts

"""A run over time, read from its folder: its curves in windows of steps, its evaluations, its warnings."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lite_selfplay.errors import RunFolderError
from lite_selfplay.evaluation.tables import with_interval
from lite_selfplay.games.presentation import MISSING, value_in_words
from lite_selfplay.games.studies import Analyst, Study, Window, window_names
from lite_selfplay.runs.folder import EPISODES, METRICS, RunFolder, as_written
from lite_selfplay.runs.report.analysis.curves import Curve, Row, curves_of
from lite_selfplay.runs.report.declared import game_of
from lite_selfplay.runs.report.steps import warning_kind


@dataclass(frozen=True)
class Score:
    """How a seat, or a direction of a cascade, did: pass@1 and its 95% interval, in [0, 1]."""

    pass_at_1: float
    low: float
    high: float


@dataclass(frozen=True)
class Moment:
    """An evaluation: when it was made, of what, and each seat's and direction's score. `step` -1: before training."""

    name: str
    step: int
    tasks: str
    problems: int
    scores: Mapping[str, Score]


@dataclass(frozen=True)
class Analysis:
    """A run's curves and evaluations.

    `steps` are those that were played, counted from 0. Completions were sampled in `spoken` of them, and
    `episodes.jsonl`, which has a limit, holds those of `recorded`. `warnings` holds how often the game gave each kind
    of warning, under its last wording. `analysts` are the game's studies of its `observations`.
    `without_game` says why the game's own figures and words are missing.
    """

    path: Path
    game: str
    model: str
    steps: tuple[int, ...]
    spoken: int
    recorded: int
    curves: tuple[Curve, ...]
    moments: tuple[Moment, ...]
    warnings: Mapping[str, int]
    analysts: Sequence[Analyst] = ()
    observations: Sequence[Any] = ()
    without_game: str = ""
    _studies: dict[tuple[Window, ...], list[Study]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def studies(self, windows: Sequence[Window]) -> list[Study]:
        """The analyses of the game's paper, by windows; none where there is nothing to observe."""
        if not self.observations:
            return []
        known = tuple(windows)
        if known not in self._studies:  # a table, a figure and JSON may all want the same
            self._studies[known] = [analyst(self.observations, windows) for analyst in self.analysts]
        return self._studies[known]

    @property
    def name(self) -> str:
        """What distinguishes the run from others: its game and its folder."""
        return f"{self.game} {self.path.resolve().name}"

    def windows(self, most: int) -> list[Window]:
        """The run in at most so many windows, whose numbers of steps differ by one at most."""
        count = min(most, len(self.steps))
        places = [i * len(self.steps) // count for i in range(count + 1)]
        return [(self.steps[a], self.steps[b - 1]) for a, b in itertools.pairwise(places)]

    @property
    def parts(self) -> list[str]:
        """The roles, the game and the seats, as far as they have curves."""
        return list(dict.fromkeys(curve.part for curve in self.curves))


def analyse(path: Path, references: Mapping[str, str] | None = None, *, completions: bool = True) -> Analysis:
    """Read a run folder. `references`: true answers to questions of its own, by content.

    Without `completions`, `episodes.jsonl` is not read: there are no curves of reasons and no studies, and `recorded`
    is 0. Raises RunFolderError if it is not one, is damaged or holds no step yet; ConfigError.
    """
    folder = RunFolder.open(path)
    with as_written(path):
        return _analysis(folder, references or {}, completions=completions)


def _analysis(folder: RunFolder, references: Mapping[str, str], *, completions: bool) -> Analysis:
    path = folder.path
    config, rows = folder.config(), folder.metrics()
    game, without_game = game_of(folder)
    if not rows:
        raise RunFolderError(f"{path} holds no step yet: there is nothing to analyse before the first one is played")
    for row in rows:
        _require_step(row, path / METRICS)
    recorded: set[int] = set()
    episodes = folder.episodes() if completions else iter(())
    curves = curves_of(game, rows, _noting(episodes, recorded, path / EPISODES))
    studies = game.studies if completions else ()
    return Analysis(
        path=path,
        game=config.game.label,
        model=config.model.name,
        steps=tuple(row["step"] for row in rows),
        spoken=sum(any(stream.get("completions") for stream in row["streams"].values()) for row in rows),
        recorded=len(recorded),
        curves=curves,
        moments=tuple(_moment(name, result) for name, result in folder.evaluations().items()),
        warnings=_warnings(rows),
        analysts=studies,
        observations=game.observations(folder.episodes(), references) if studies else (),
        without_game=without_game,
    )


def _warnings(rows: Iterable[Row]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    last: dict[str, str] = {}
    for row in rows:
        for sentence in row.get("warnings") or ():
            kind = warning_kind(str(sentence))
            counts[kind] += 1
            last[kind] = str(sentence)
    return {last[kind]: count for kind, count in counts.items()}


def _require_step(row: Row, path: Path) -> None:
    """Raises RunFolderError where a line is not one that a run writes of a step."""
    sections = [row.get(key) for key in ("streams", "seats", "game")]
    whole = all(isinstance(section, Mapping) for section in sections)
    if not whole or not all(isinstance(part, Mapping) for key in ("streams", "seats") for part in row[key].values()):
        raise RunFolderError(f"{path}: what stands there of step {row['step'] + 1} is not what a run writes")


def _noting(rows: Iterable[Row], steps: set[int], path: Path) -> Iterator[Row]:
    """The same rows, their steps noted. Raises RunFolderError for one that names no role."""
    for row in rows:
        if not isinstance(row.get("role"), str):
            raise RunFolderError(f"{path}: a completion of step {row['step'] + 1} does not say whose it is")
        steps.add(row["step"])
        yield row


def _moment(name: str, result: Mapping[str, Any]) -> Moment:
    found = {**result["seats"], **result.get("directions", {})}
    scores = {seat: Score(score["pass_at_1"], *score["ci95"]) for seat, score in found.items()}
    return Moment(name, result["step"], result["tasks"], result["n"], scores)


# Tables


def part_table(run: Analysis, part: str, windows: Sequence[Window]) -> tuple[list[str], list[list[str]]]:
    """The figures of a role, a seat or the game in each window: (columns, rows), the first column naming each row."""
    rows = [
        [curve.label, *(value_in_words(curve.over(*window), curve.unit) for window in windows)]
        for curve in run.curves
        if curve.part == part
    ]
    return ["", *window_names(windows)], rows


def moments_table(run: Analysis) -> tuple[list[str], list[list[str]]]:
    """pass@1 with its interval at each evaluation: (columns, rows), a row a seat or direction."""
    names = dict.fromkeys(name for moment in run.moments for name in moment.scores)
    rows = [[name, *(_cell(moment.scores.get(name)) for moment in run.moments)] for name in names]
    return ["", *(moment.name for moment in run.moments)], rows


def _cell(score: Score | None) -> str:
    return MISSING if score is None else with_interval({"pass_at_1": score.pass_at_1, "ci95": (score.low, score.high)})


def to_json(run: Analysis, windows: Sequence[Window]) -> dict[str, Any]:
    """The analysis as JSON: windows in steps counted from 1, a value (or null) a window for every figure."""
    figures: dict[str, list[dict[str, Any]]] = {part: [] for part in run.parts}
    for curve in run.curves:
        about = {"name": curve.name, "kind": curve.kind or None, "unit": curve.unit, "how": curve.how}
        figures[curve.part].append({**about, "values": [curve.over(*window) for window in windows]})
    moments = [
        {
            "moment": moment.name,
            "step": moment.step,
            "tasks": moment.tasks,
            "n": moment.problems,
            "scores": {name: {"pass_at_1": s.pass_at_1, "ci95": [s.low, s.high]} for name, s in moment.scores.items()},
        }
        for moment in run.moments
    ]
    return {
        "run": str(run.path),
        "game": run.game,
        "model": run.model,
        "steps": len(run.steps),
        "steps_with_completions": {"played": run.spoken, "recorded": run.recorded},
        "windows": [[first + 1, last + 1] for first, last in windows],
        "figures": figures,
        "evaluations": moments,
        "studies": {study.name: {**study.data, "notes": list(study.notes)} for study in run.studies(windows)},
        "warnings": dict(run.warnings),
    }

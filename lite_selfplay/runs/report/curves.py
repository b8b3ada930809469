"""A run's lines as curves: one figure each, over the steps."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Figure, Unit, number_of
from lite_selfplay.runs.report.meanings import MEANINGS, value_in

Row = Mapping[str, Any]
Log = tuple[int, Row]
"""A step and the game's log of it."""

How = Literal["mean", "sum", "last"]

GAME, SEATS = "game", "seats"
"""The parts of a run that are no role: what the game's own log holds, and what the seats did."""

PLAY = "The game"
"""The group of the game's own curves; `Meaning.group` has those of the others."""


@dataclass(frozen=True)
class Curve:
    """One figure of a run over its steps.

    `part` is a role, `GAME` or `SEATS`; `name` says what is measured, `kind` which of several of that name (a reason, a
    bin, a seat). `values[i]` was seen at `steps[i]`, counted from 1; a share lies in [0, 1]. `how` several steps give
    one value.
    """

    part: str
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    unit: Unit = "number"
    group: str = PLAY
    how: How = "mean"
    kind: str = ""

    @property
    def line(self) -> str:
        """What distinguishes it from others of its name: a kind, else a role; nothing where the game has one alone."""
        return self.kind or ("" if self.part == GAME else self.part)


def curves_of(game: type[Game], metrics: Sequence[Row]) -> tuple[Curve, ...]:
    """Every curve of a run's lines that holds a value: of roles, of the game, of seats."""
    found = []
    drawn = [known for known in MEANINGS.values() if known.part == "streams" and known.group]
    for role in dict.fromkeys(role for row in metrics for role in row["streams"]):
        played = [(row["step"], row["streams"][role]) for row in metrics if role in row["streams"]]
        for known in drawn:
            points = ((step, value_in(known, stream)) for step, stream in played)
            name = game.accuracy_of(role).name if known.key == "accuracy" else known.name
            found.append(_curve(role, name, points, known.unit, group=known.group))
    found += _game_curves(game, metrics)
    known = MEANINGS["grad_norm"]
    for seat in dict.fromkeys(seat for row in metrics for seat in row["seats"]):
        norms = ((row["step"], row["seats"].get(seat, {}).get(known.key)) for row in metrics)
        found.append(_curve(SEATS, known.name, norms, group=known.group, kind=seat))
    return tuple(curve for curve in found if curve.steps)


# The game's own log


def _game_curves(game: type[Game], rows: Sequence[Row]) -> Iterator[Curve]:
    """The game's declared figures; last come breakdowns and counts of steps."""
    logs = [(row["step"], row["game"]) for row in rows]
    declared = [(figure, list(_figure_curves(figure, logs))) for figure in game.figures]
    last = [figure.how == "zeros" or any(curve.kind for curve in curves) for figure, curves in declared]
    for at_the_end in (False, True):
        found = zip(declared, last, strict=True)
        yield from (curve for (_, curves), late in found if late is at_the_end for curve in curves)


def _figure_curves(figure: Figure, logs: Sequence[Log]) -> Iterator[Curve]:
    """A declared figure: one curve, or one for each kind of an object (the most frequent first) and each bin."""
    here = [(step, log[figure.key], _whole(figure, log)) for step, log in logs if figure.key in log]
    how: How = "sum" if figure.how == "zeros" else figure.how
    counts = [(step, value, of) for step, value, of in here if isinstance(value, Mapping)]
    whole: Counter[str] = Counter()
    for _, values, _ in counts:
        whole.update({kind: count for kind, count in values.items() if number_of(count) is not None})
    kinds = [kind for kind, _ in whole.most_common()]
    size = max((len(value) for _, value, _ in here if isinstance(value, list)), default=0)
    if size and not counts:
        kinds = [f"{100 * i // size} to {100 * (i + 1) // size}%" for i in range(size)]
        bins = [(step, value, of) for step, value, of in here if isinstance(value, list) and len(value) == size]
        counts = [(step, dict(zip(kinds, value, strict=True)), of) for step, value, of in bins]
    for kind in kinds:
        points = ((step, _value(figure, values.get(kind, 0), of)) for step, values, of in counts)
        yield _curve(GAME, figure.name, points, figure.unit, how=how, kind=kind)
    if not kinds:
        points = ((step, _value(figure, value, of)) for step, value, of in here)
        yield _curve(GAME, figure.name, points, figure.unit, how=how)


def _whole(figure: Figure, log: Row) -> Any:
    """What a step's value is a mean over or a part of; 0 where it is of nothing."""
    none = 0 if figure.part or figure.how == "zeros" else 1
    found = log.get(figure.of, none) if figure.of else 1
    if not isinstance(found, list):
        return found
    return (sum(found) if None not in map(number_of, found) else 0) or none


def _value(figure: Figure, value: Any, whole: Any) -> Any:
    """A figure's value at a step; None where it is of nothing."""
    if (number_of(whole) or 0.0) <= 0:
        return None
    if figure.how == "zeros":
        return float(not value)
    if not figure.part:
        return value
    return value / whole if number_of(value) is not None else None


def _curve(part: str, name: str, points: Iterable[tuple[int, Any]], unit: Unit = "number", **about: Any) -> Curve:
    """A curve of those points (step, value) that hold numbers."""
    kept = [(step, float(value)) for step, value in points if isinstance(value, bool) or number_of(value) is not None]
    steps, values = (tuple(column) for column in zip(*kept, strict=True)) if kept else ((), ())
    return Curve(part, name, steps, values, unit, **about)

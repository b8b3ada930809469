"""Studies: the analyses of a run's completions that papers print beside their curves. A game declares its own.

A game's `observations` keep of the rows of `episodes.jsonl` what its `studies` need; each study is a plain function of
them and of the windows of steps that tables have a column for. Nothing here knows a single game.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lite_selfplay.games.presentation import MISSING, percent
from lite_selfplay.stats import clopper_pearson

T = TypeVar("T")

Window = tuple[int, int]
"""The first and the last of some steps, counted from 0."""

WIDTH, HEIGHT = 64, 18
"""Characters of a plane that is drawn as text."""
MARKS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNO"
SEVERAL = "*"
"""What a plane shows for points of each window, and where points of several windows share a place."""


@dataclass(frozen=True)
class Point:
    """A place in a plane of something that was seen at a step; `label` says what it is."""

    step: int
    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Study:
    """What an analysis found: a table as text, the same as JSON, and perhaps points in a plane.

    `notes` say how it was measured, and what could not be known.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Mapping[str, Any]
    notes: Sequence[str] = ()
    points: Sequence[Point] = ()


Analyst = Callable[[Sequence[Any], Sequence[Window]], Study]
"""A study of a game's observations, by windows."""


def window_names(windows: Sequence[Window]) -> list[str]:
    """`step 1`, `2-4`, ...: as users count steps, from 1."""
    names = [f"{first + 1}-{last + 1}" if first != last else str(first + 1) for first, last in windows]
    return [f"step{'s' if '-' in names[0] else ''} {names[0]}", *names[1:]]


def within(observations: Iterable[T], window: Window, step: Callable[[T], int]) -> list[T]:
    """The observations of a window's steps; `step` says when each was made."""
    return [each for each in observations if window[0] <= step(each) <= window[1]]


def evenly(observations: Sequence[T], most: int) -> list[T]:
    """At most so many observations, evenly taken in their order."""
    count = min(most, len(observations))
    return [observations[i * len(observations) // count] for i in range(count)]


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def share_with_interval(part: int, whole: int) -> str:
    """A share in percent and its 95% Clopper-Pearson interval: `41% [31, 52]`; `-` of nothing."""
    if not whole:
        return MISSING
    low, high = clopper_pearson(part, whole)
    return f"{percent(part / whole)} [{100 * low:.0f}, {100 * high:.0f}]"


def drawn(points: Sequence[Point], windows: Sequence[Window]) -> list[str]:
    """Points in a plane as lines of text, each shown as the mark of its window; empty without points.

    Both directions are stretched to fill the plane.
    """
    if not points:
        return []
    plane = [[" "] * WIDTH for _ in range(HEIGHT)]
    columns = _places([point.x for point in points], WIDTH)
    rows = _places([-point.y for point in points], HEIGHT)
    for point, column, row in zip(points, columns, rows, strict=True):
        number = next((i for i, (first, last) in enumerate(windows) if first <= point.step <= last), None)
        if number is not None:
            mark, there = MARKS[number % len(MARKS)], plane[row][column]
            plane[row][column] = mark if there in (" ", mark) else SEVERAL
    edge = f"+{'-' * WIDTH}+"
    return [edge, *(f"|{''.join(row)}|" for row in plane), edge]


def _places(values: Sequence[float], cells: int) -> list[int]:
    low, high = min(values), max(values)
    if high - low < 1e-9:
        return [cells // 2] * len(values)
    return [min(cells - 1, int((value - low) / (high - low) * cells)) for value in values]

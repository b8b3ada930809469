"""The charts of a run, from its folder: what they hold, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import RunFolderError
from lite_selfplay.games.presentation import value_in_words
from lite_selfplay.runs.folder import RunFolder, as_written
from lite_selfplay.runs.report.figures import charts_of, game_of
from lite_selfplay.runs.report.step_rows import warned

from .conftest import evaluation, metrics, stream


def charts(path: Path) -> dict[str, dict[str, Any]]:
    folder = RunFolder.open(path)
    with as_written(path):
        return {chart["name"]: chart for chart in charts_of(game_of(folder)[0], folder, folder.metrics())}


def test_a_chart_a_name_with_a_line_a_role_or_kind(family: Path):
    found = charts(family)
    assert list(found)[:3] == ["pass@1, 10 held-out problems", "reward", "agreement with labels"]
    reward = found["reward"]
    assert (reward["group"], reward["unit"], reward["how"], reward["healthy"]) == ("Learning", "number", "mean", None)
    assert [line["name"] for line in reward["lines"]] == ["solver", "proposer"]
    assert reward["lines"][0]["steps"] == tuple(range(1, 11))
    assert reward["lines"][0]["values"] == pytest.approx([step / 10 for step in range(10)])
    assert [line["name"] for line in found["agreement with labels"]["lines"]] == ["solver"]  # nobody judges the other
    assert [line["name"] for line in found["refused"]["lines"]] == ["off_format", "truncated"]
    assert (found["refused"]["group"], found["KL"]["group"]) == ("The game", "Health")
    assert found["repeated questions"]["healthy"] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "share", "-"),
        (0.125, "share", "12.5%"),
        (1.0, "share", "100%"),
        (0.0, "number", "0"),
        (0.12345, "number", "0.123"),
        (-2.5, "number", "-2.5"),
        (999.4, "number", "999"),
        (12345.6, "number", "12,346"),
        (2e-8, "number", "2e-08"),
    ],
)
def test_values_as_text(value: float | None, unit: Any, text: str):
    assert value_in_words(value, unit) == text


def test_evaluations_stand_at_their_steps_with_intervals(write_run: Callable[..., Path]):
    moments = [
        evaluation("after 2 steps", 2, A=0.5),
        evaluation("untouched", -1, base=0.25),
        evaluation("before training", 0, A=0.25),
        {**evaluation("other", 2, A=1.0), "tasks": "gsm8k", "n": 3},
    ]
    moments[0]["directions"] = {"A->B": {"pass_at_1": 0.75, "ci95": [0.5, 1.0]}}
    found = charts(write_run("run", [metrics(1, {"a": stream()})], [], moments))
    assert [line["values"] for line in found["pass@1, 3 held-out problems"]["lines"]] == [[1.0]]
    base, a, direction = found["pass@1, 10 held-out problems"]["lines"]
    assert (base["name"], base["steps"], base["values"], base["moments"]) == ("base", [0], [0.25], ["untouched"])
    assert (a["name"], a["steps"], a["values"]) == ("A", [0, 2], [0.25, 0.5])
    assert (a["low"], a["high"]) == (pytest.approx([0.15, 0.4]), pytest.approx([0.35, 0.6]))
    assert (direction["name"], direction["low"], direction["high"]) == ("A->B", [0.5], [1.0])


def test_warnings_of_one_kind_are_counted_together(family: Path):
    rows = RunFolder.open(family).metrics()
    assert warned(rows) == {"90% of the questions repeat": 3}  # by the last wording


# Refused


@pytest.mark.parametrize(
    "row",
    [
        {"step": 1},
        {"step": 1, "streams": [], "seats": {}, "game": {}},
        {"step": 1, "streams": {"a": 5}, "seats": {}, "game": {}},
        {"step": 1, "streams": {}, "seats": {"a": None}, "game": {}},
        {"step": 1, "streams": {}, "seats": {}, "game": "agon"},
    ],
)
def test_a_line_that_is_none(write_run: Callable[..., Path], row: dict[str, Any]):
    with pytest.raises(RunFolderError, match=r"not (hold )?what a run writes"):
        charts(write_run("run", [row]))


def test_an_evaluation_that_is_none(write_run: Callable[..., Path]):
    path = write_run("run", [metrics(1, {"a": stream()})], [], [{**evaluation("m", 1, A=1.0), "seats": {}}])
    with pytest.raises(RunFolderError, match=r"eval/e0\.json is not what a run writes"):
        charts(path)


def test_odd_values_are_passed_over(write_run: Callable[..., Path]):
    odd = stream(reward_mean="much", accuracy=True, groups=0, completions="many", kl=[1])
    found = charts(write_run("run", [metrics(1, {"a": odd})]))
    assert not {"reward", "accuracy", "groups without variance", "KL"} & set(found)
    assert warned([{"warnings": [5, None]}]) == {"5": 1, "None": 1}

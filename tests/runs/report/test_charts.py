"""Runs read from their folders: windows, tables, JSON, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.errors import RunFolderError
from lite_selfplay.games.presentation import value_in_words
from lite_selfplay.runs.report.analysis import Analysis, analyse, moments_table, part_table, to_json
from lite_selfplay.runs.report.analysis.runs import window_names

from .conftest import completion, evaluation, metrics, stream


def test_a_run_is_read_whole(family: Path):
    run = analyse(family)
    assert (run.game, run.model, run.name) == ("sqlm", "tiny", "sqlm family")
    assert run.steps == tuple(range(10))
    assert run.parts == ["solver", "proposer", "game", "seats"]
    assert (run.spoken, run.recorded) == (10, 8)
    assert run.warnings == {"90% of the questions repeat": 3}


@pytest.mark.parametrize(
    ("steps", "most", "windows"),
    [
        (1, 6, [(0, 0)]),
        (3, 6, [(0, 0), (1, 1), (2, 2)]),
        (10, 1, [(0, 9)]),
        (10, 4, [(0, 1), (2, 4), (5, 6), (7, 9)]),
        (12, 4, [(0, 2), (3, 5), (6, 8), (9, 11)]),
    ],
)
def test_windows(write_run: Callable[..., Path], steps: int, most: int, windows: list[tuple[int, int]]):
    run = analyse(write_run("run", [metrics(i, {"a": stream()}) for i in range(steps)]))
    assert run.windows(most) == windows


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 20))
def test_windows_hold_every_step_once(steps, most):
    run = Analysis(Path("r"), "g", "m", tuple(range(steps)), 0, 0, (), (), {})
    windows = run.windows(most)
    assert [step for first, last in windows for step in range(first, last + 1)] == list(range(steps))
    sizes = {last - first for first, last in windows}
    assert max(sizes) - min(sizes) <= 1


def test_names_of_windows():
    assert window_names([(0, 4), (5, 5), (6, 9)]) == ["steps 1-5", "6", "7-10"]
    assert window_names([(0, 0), (1, 2)]) == ["step 1", "2-3"]


def test_the_table_of_a_part(family: Path):
    run = analyse(family)
    columns, rows = part_table(run, "solver", run.windows(2))
    assert columns == ["", "steps 1-5", "6-10"]
    assert rows[0] == ["reward", "0.2", "0.7"]
    assert rows[1] == ["agreement with labels", "50%", "50%"]
    assert ["no agreement: wrong", "50%", "50%"] in rows
    columns, rows = part_table(run, "game", run.windows(10))
    table = {row[0]: row[1:] for row in rows}
    assert table["usable questions"] == ["0%", *["25%"] * 8, "-"]
    assert table["accuracy of labels"] == ["-", "100%", "50%", "-", "100%", "50%", "-", "100%", "50%", "-"]


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


def test_evaluations_over_time(write_run: Callable[..., Path]):
    moments = [evaluation("after 2 steps", 2, A=0.5), evaluation("untouched", -1, base=0.2)]
    moments[0]["directions"] = {"A->B": {"pass_at_1": 0.75, "ci95": [0.5, 1.0]}}
    run = analyse(write_run("run", [metrics(0, {"a": stream()})], [], moments))
    assert [(m.name, m.step, m.tasks, m.problems) for m in run.moments] == [
        ("untouched", -1, "letters", 10),
        ("after 2 steps", 2, "letters", 10),
    ]
    assert moments_table(run) == (
        ["", "untouched", "after 2 steps"],
        [["base", "20% [10, 30]", "-"], ["A", "-", "50% [40, 60]"], ["A->B", "-", "75% [50, 100]"]],
    )


def test_json(family: Path):
    run = analyse(family)
    shown = json.loads(json.dumps(to_json(run, run.windows(2)), allow_nan=False))
    assert (shown["run"], shown["game"], shown["model"], shown["steps"]) == (str(family), "sqlm", "tiny", 10)
    assert shown["windows"] == [[1, 5], [6, 10]]
    assert shown["steps_with_completions"] == {"played": 10, "recorded": 8}
    reward = {"name": "reward", "kind": None, "unit": "number", "how": "mean", "values": pytest.approx([0.2, 0.7])}
    assert shown["figures"]["solver"][0] == reward
    assert {(f["name"], f["kind"]) for f in shown["figures"]["game"]} >= {
        ("refused", "off_format"),
        ("pass rate", None),
    }
    (moment,) = shown["evaluations"]
    assert moment["scores"] == {"base": {"pass_at_1": 0.2, "ci95": pytest.approx([0.1, 0.3])}}


# Refused


def test_no_run_folder_and_no_step(tmp_path: Path, write_run: Callable[..., Path]):
    with pytest.raises(RunFolderError, match=r"is not a run folder: it has no config\.yaml"):
        analyse(tmp_path)
    empty = write_run("empty", [])
    with pytest.raises(RunFolderError, match="empty holds no step yet"):
        analyse(empty)
    (empty / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match="empty holds no step yet"):
        analyse(empty)


@pytest.mark.parametrize(
    "row",
    [
        {"step": 0},
        {"step": 0, "streams": [], "seats": {}, "game": {}},
        {"step": 0, "streams": {"a": 5}, "seats": {}, "game": {}},
        {"step": 0, "streams": {}, "seats": {"a": None}, "game": {}},
        {"step": 0, "streams": {}, "seats": {}, "game": "agon"},
    ],
)
def test_a_line_that_is_none(write_run: Callable[..., Path], row: dict[str, Any]):
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: what stands there of step 1 is not what a run writes"):
        analyse(write_run("run", [row]))


def test_damaged_files_are_named(write_run: Callable[..., Path]):
    good = [metrics(0, {"a": stream()})]
    path = write_run("run", good, [{"step": 0}])
    with pytest.raises(RunFolderError, match=r"episodes\.jsonl: a completion of step 1 does not say whose"):
        analyse(path)
    path = write_run("other", good, [completion(0)], [{**evaluation("m", 1, A=1.0), "seats": {}}])
    with pytest.raises(RunFolderError, match=r"eval/e0\.json holds no evaluation"):
        analyse(path)
    path = write_run("third", good)
    with (path / "metrics.jsonl").open("a") as file:
        file.write("{nothing}\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 2: not JSON"):
        analyse(path)


def test_odd_values_are_passed_over(write_run: Callable[..., Path]):
    odd = stream(reward_mean="much", accuracy=True, groups=0, completions="many", kl=[1])
    run = analyse(write_run("run", [metrics(0, {"a": odd}, warnings=[5, None])]))
    assert [curve.label for curve in run.curves] == ["gradient norm: s"]
    assert sum(run.warnings.values()) == 2


def test_a_line_cut_short_by_a_kill_is_no_step_yet(write_run: Callable[..., Path]):
    path = write_run("run", [metrics(0, {"a": stream()})])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "str')
    assert analyse(path).steps == (0,)

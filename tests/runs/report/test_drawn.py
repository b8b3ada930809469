"""Figures: their panels, lines and labels."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs.report.analysis import analyse, figures
from lite_selfplay.runs.report.analysis.figures import evaluations_figure, game_figure, save_figures, streams_figure

from .conftest import evaluation, metrics, stream


@pytest.fixture(autouse=True, scope="module")
def _quiet_import():
    with warnings.catch_warnings():  # of what matplotlib itself imports
        warnings.simplefilter("ignore")
        import matplotlib.figure  # noqa: F401


def panels(figure: Any) -> dict[str, Any]:
    return {panel.get_title().replace("\n", " "): panel for panel in figure.axes}


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(panel: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in panel.lines if not line.get_label().startswith("_")}


def test_streams_have_a_panel_a_figure_and_a_line_a_role(family: Path):
    figure = streams_figure([analyse(family)])
    found = panels(figure)
    assert list(found) == [
        *("reward", "agreement with labels", "well-formed", "length in tokens", "truncated", "KL", "loss"),
        *("groups without variance", "gradient norm"),
    ]
    assert legend(figure) == ["solver", "proposer"]
    assert lines(found["reward"])["solver"] == pytest.approx([step / 10 for step in range(10)])
    assert list(lines(found["agreement with labels"])) == ["solver"]  # nobody judges the proposer
    assert list(lines(found["gradient norm"])) == ["s"]
    assert list(found["reward"].lines[0].get_xdata()) == list(range(1, 11))
    assert {panel.get_xlabel() for panel in figure.axes} == {"step"}
    assert found["agreement with labels"].get_ylim() == (-0.03, 1.03)
    assert found["agreement with labels"].yaxis.get_major_formatter()(0.5, 0) == "50%"
    assert found["reward"].get_ylim() != (-0.03, 1.03)


def test_the_game_has_a_panel_a_figure_and_a_line_a_reason(family: Path):
    found = panels(game_figure([analyse(family)]))
    assert list(found)[:4] == ["usable questions", "proposals a step", "pass rate", "repeated questions"]
    assert list(lines(found["refused"])) == ["off_format", "truncated"]
    assert lines(found["refused"])["truncated"] == [1 / 8] * 5 + [0.0] * 4
    assert [text.get_text() for text in found["refused"].get_legend().get_texts()] == ["off_format", "truncated"]
    assert len(lines(found["questions by pass rate"])) == 5
    assert lines(found["usable questions"]) == {"sqlm family": [0.0] + [0.25] * 8}


def test_evaluations_stand_at_their_steps_with_intervals(write_run: Callable[..., Path]):
    moments = [
        evaluation("untouched", -1, base=0.2),
        evaluation("before training", 0, A=0.25),
        evaluation("after 10 steps", 10, A=0.5),
        {**evaluation("other", 10, A=1.0), "tasks": "/somewhere/gsm8k.jsonl", "n": 3},
    ]
    figure = evaluations_figure([analyse(write_run("run", [metrics(0, {"a": stream()})], [], moments))])
    found = panels(figure)
    assert list(found) == ["pass@1 on 10 of letters", "pass@1 on 3 of gsm8k.jsonl"]
    assert legend(figure) == ["base", "A"]
    bars = {bar.get_label(): bar for bar in found["pass@1 on 10 of letters"].containers}
    line, _, (intervals,) = bars["A"].lines
    assert line.get_xdata() == pytest.approx([0, 10], abs=0.1)
    assert list(line.get_ydata()) == [0.25, 0.5]
    assert [list(segment[:, 1]) for segment in intervals.get_segments()] == [
        pytest.approx([0.15, 0.35]),
        pytest.approx([0.4, 0.6]),
    ]


def test_several_runs_lie_over_each_other(write_run: Callable[..., Path]):
    rows = [metrics(step, {"drafter": stream(), "challenger": stream()}) for step in range(3)]
    runs = [analyse(write_run("one", rows)), analyse(write_run("two", rows[:2], game="grpo"))]
    figure = streams_figure(runs)
    assert legend(figure) == [
        *("agon one: drafter", "agon one: challenger"),
        *("grpo two: drafter", "grpo two: challenger"),
    ]
    drawn = {line.get_label(): line for line in panels(figure)["reward"].lines}
    assert drawn["agon one: drafter"].get_color() == drawn["agon one: challenger"].get_color()
    assert drawn["agon one: drafter"].get_color() != drawn["grpo two: drafter"].get_color()
    assert drawn["agon one: drafter"].get_linestyle() == drawn["grpo two: drafter"].get_linestyle()
    assert drawn["agon one: drafter"].get_linestyle() != drawn["agon one: challenger"].get_linestyle()
    assert [len(drawn[f"{run}: drafter"].get_xdata()) for run in ("agon one", "grpo two")] == [3, 2]


def test_a_long_run_is_drawn_smoothed_over_its_steps(write_run: Callable[..., Path]):
    rows = [metrics(step, {"a": stream(reward_mean=float(step % 2))}) for step in range(40)]
    panel = panels(streams_figure([analyse(write_run("run", rows))]))["reward"]
    faint, line = panel.lines
    assert (faint.get_alpha(), list(faint.get_ydata())) == (0.2, [0.0, 1.0] * 20)
    assert list(line.get_ydata()) == [0.0] + [0.5] * 39


def test_nothing_to_draw(write_run: Callable[..., Path], tmp_path: Path):
    run = analyse(write_run("run", [metrics(0, seats={})]))
    assert [draw([run]) for draw in figures.DRAWN.values()] == [None, None, None]
    assert save_figures([run], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("suffix", "begin"), [("png", b"\x89PNG"), pytest.param("svg", b"<?xml", marks=pytest.mark.long)]
)
def test_files(family: Path, tmp_path: Path, suffix: Any, begin: bytes):
    paths = save_figures([analyse(family)], tmp_path / "deep" / "figures", suffix)
    assert [path.name for path in paths] == [f"{name}.{suffix}" for name in ("streams", "game", "evaluations")]
    assert all(path.read_bytes().startswith(begin) for path in paths)
    assert save_figures([analyse(family)], tmp_path / "deep" / "figures", suffix) == paths  # replaced


def test_a_strangers_names_are_only_text(write_run: Callable[..., Path], tmp_path: Path):
    names = ["$\\frac{", "_hidden", "漢字", "\x1b[31mred", "a\nb"]
    rows = [metrics(0, {name: stream() for name in names}, game={"$x^{": 1, "refused": {"$": 1}, "proposals": 2})]
    run = analyse(write_run("run", rows))
    assert len(save_figures([run], tmp_path / "figures")) == 2
    assert legend(streams_figure([run])) == [r"\$\\frac{", " _hidden", "漢字", "red", "a b"]


def test_folders_that_cannot_be_written(family: Path, tmp_path: Path):
    run = analyse(family)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot write .*file/streams\.png"):
        save_figures([run], tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="symbolic link"):
        save_figures([run], tmp_path / "link")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "streams.png").symlink_to(tmp_path / "elsewhere.png")
    with pytest.raises(RunFolderError, match="symbolic link"):
        save_figures([run], tmp_path / "figures")

"""Figures: their panels, lines and labels."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.extras import charts as drawn
from lite_selfplay.extras.charts import draw, save_figures
from tests.runs.report.conftest import metrics, stream


@pytest.fixture(autouse=True, scope="module")
def _quiet_import():
    with warnings.catch_warnings():  # of what matplotlib itself imports
        warnings.simplefilter("ignore")
        import matplotlib.figure  # noqa: F401


def chart(name: str = "reward", **about: Any) -> dict[str, Any]:
    line = {"name": "drafter", "steps": (1, 2), "values": [0.5, 1.0]}
    return {"name": name, "group": "Learning", "unit": "number", "how": "mean", "lines": [line], **about}


def panel_of(**about: Any) -> Any:
    (panel,) = draw([chart(**about)]).axes
    return panel


def test_a_chart_is_a_panel_and_its_lines_are_lines():
    other = {"name": "challenger", "steps": (1,), "values": [0.25]}
    first, second = draw([chart(), chart("accuracy", unit="share", lines=[other, *chart()["lines"]])]).axes
    assert (first.get_title(), second.get_title(), first.get_xlabel()) == ("reward", "accuracy", "step")
    (line,) = first.lines
    assert (line.get_label(), list(line.get_xdata()), list(line.get_ydata())) == ("drafter", [1, 2], [0.5, 1.0])
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["challenger", "drafter"]
    assert second.lines[1].get_color() == line.get_color() != second.lines[0].get_color()
    assert (second.get_ylim(), second.yaxis.get_major_formatter()(0.5, 0)) == ((-0.03, 1.03), "50%")
    assert first.get_ylim() != (-0.03, 1.03)


def test_what_was_measured_has_its_intervals():
    line = {"name": "A", "steps": [0, 10], "values": [0.25, 0.5], "low": [0.2, 0.5], "high": [0.45, 0.7]}
    (bars,) = panel_of(how="measured", lines=[line]).containers
    drawn_line, _, (intervals,) = bars.lines
    assert (list(drawn_line.get_xdata()), list(drawn_line.get_ydata())) == ([0, 10], [0.25, 0.5])
    ends = [list(segment[:, 1]) for segment in intervals.get_segments()]
    assert ends == [pytest.approx([0.2, 0.45]), pytest.approx([0.5, 0.7])]


def test_where_a_line_should_lie_is_a_band_of_its_colour():
    from matplotlib.colors import to_rgb

    line = {"name": "Q", "steps": [1, 2], "values": [0.5, 0.4], "within": (0.25, 0.75)}
    panel = panel_of(how="last", lines=[line])
    (band,) = panel.patches
    assert (band.get_y(), band.get_height()) == (0.25, 0.5)
    assert band.get_facecolor()[:3] == to_rgb(panel.lines[0].get_color())


def test_a_long_run_is_drawn_smoothed_over_its_steps():
    line = {"name": "a", "steps": tuple(range(1, 41)), "values": [0.0, 1.0] * 20}
    faint, smooth = panel_of(lines=[line]).lines
    assert (faint.get_alpha(), list(faint.get_ydata())) == (0.2, [0.0, 1.0] * 20)
    assert list(smooth.get_ydata()) == [0.0] + [0.5] * 39
    (counts,) = panel_of(lines=[line], how="sum").lines
    assert list(counts.get_ydata()) == [0.0, 1.0] * 20


def test_a_file_for_each_group_that_holds_any(family: Path, write_run: Callable[..., Path], tmp_path: Path):
    paths = save_figures(family)
    assert paths == [family / "figures" / name for name in ("learning.png", "the-game.png", "health.png")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert save_figures(family) == paths  # replaced
    assert save_figures(write_run("run", [metrics(1, seats={})]), tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_strangers_names_are_only_text(write_run: Callable[..., Path], tmp_path: Path):
    names = ["$\\frac{", "_hidden", "漢字", "\x1b[31mred", "a\nb"]
    rows = [metrics(1, {name: stream() for name in names}, game={"refused": {"$": 1}})]
    assert len(save_figures(write_run("run", rows), tmp_path / "figures")) == 2
    panel = panel_of(name="$x", lines=[{"name": name, "steps": (1,), "values": [1.0]} for name in names])
    shown = [text.get_text() for text in panel.get_legend().get_texts()]
    assert (panel.get_title(), shown) == (r"\$x", [r"\$\\frac{", " _hidden", "漢字", "red", "a b"])


def test_folders_that_cannot_be_written(family: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "learning.png").symlink_to(tmp_path / "elsewhere.png")
    broken = {"file": r"cannot write .*file/learning\.png", "link": "symbolic link", "figures": "symbolic link"}
    for name, sentence in broken.items():
        with pytest.raises(RunFolderError, match=sentence):
            save_figures(family, tmp_path / name)


def test_without_matplotlib_it_says_what_to_install(family: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawn.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install matplotlib: pip install"):
        save_figures(family)

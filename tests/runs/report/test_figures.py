"""Curves by hand-computed numbers, and the charts of a run folder."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.errors import RunFolderError
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Figure, value_in_words
from lite_selfplay.games.propose_solve import propose_solve as family_of
from lite_selfplay.runs.folder import RunFolder, as_written
from lite_selfplay.runs.report.figures import GAME, SEATS, Curve, charts_of, curves_of, game_of
from lite_selfplay.runs.report.step_rows import episode_rows, warned
from lite_selfplay.testing import ScriptedTable, noisy_script
from tests.made import plays

from .conftest import FAMILY, evaluation, family_game, family_log, metrics, stream


class Family(family_of.ProposeSolve):
    """A game that logs what `family_log` makes up."""

    roles = ("proposer", "solver")
    figures = (
        *(*family_of.YIELD, *family_of.WATCHED, Figure("buffer", "buffered questions", how="last")),
        *(Figure("delta", "Delta, percentage points"), Figure("restored", "restored", "share")),
        *(Figure("invalid", "invalid a step", how="sum"), *family_of.BREAKDOWNS),
    )


def label(curve: Curve) -> str:
    return f"{curve.name}: {curve.kind}" if curve.kind else curve.name


def find(curves: Any, part: str, wanted: str) -> Curve:
    return next(curve for curve in curves if (curve.part, label(curve)) == (part, wanted))


def labels(curves: Any, part: str) -> list[str]:
    return [label(curve) for curve in curves if curve.part == part]


def test_a_curve_has_a_point_where_there_is_a_value():
    rows = [metrics(step, {"solver": stream(accuracy=value)}) for step, value in ((1, 0.5), (3, 1.0), (4, None))]
    curve = find(curves_of(Game, [*rows, metrics(2, {})]), "solver", "accuracy")
    assert (curve.steps, curve.values, curve.unit, curve.line) == ((1, 3), (0.5, 1.0), "share", "solver")


def test_the_figures_of_a_role_and_none_of_what_it_has_nothing_of():
    rows = [metrics(0, {"solver": stream(completions=8, groups=4, zero_variance_groups=3, kl=0.25, truncated=0.75)})]
    curves = curves_of(Game, rows)
    shown = ["reward", "accuracy", "well-formed", "truncated", "length in tokens", "groups without variance", "loss"]
    assert labels(curves, "solver") == [*shown, "KL"]
    assert find(curves, "solver", "groups without variance").values == (0.75,)
    assert find(curves, "solver", "KL").values == (0.25,)
    assert labels(curves, SEATS) == ["gradient norm: A"]
    alone = {"completions": 4, "groups": 4, "zero_variance_groups": 4}  # groups of one, with no variance to lose
    curves = curves_of(Game, [metrics(0, {"coach": stream(accuracy=None, well_formed=None, **alone)})])
    assert labels(curves, "coach") == ["reward", "truncated", "length in tokens", "loss"]


def test_the_figures_of_propose_and_solve():
    curves = curves_of(Family, [metrics(step + 1, game=family_log(step)) for step in range(10)])

    def points(name: str) -> dict[int, float]:
        curve = find(curves, GAME, name)
        return dict(zip(curve.steps, curve.values, strict=True))

    assert points("usable questions") == {1: 0.0, **dict.fromkeys(range(2, 10), 2 / 8)}  # the last proposes nothing
    assert points("proposals a step") == dict.fromkeys(range(1, 10), 8)
    assert points("steps without a usable question") == {1: 1.0, **dict.fromkeys(range(2, 10), 0.0)}
    assert points("pass rate") == {**dict.fromkeys(range(1, 10), 0.75), 10: 0.5}
    assert points("accuracy of labels") == {2: 1.0, 3: 0.5, 5: 1.0, 6: 0.5, 8: 1.0, 9: 0.5}  # where any was checked
    assert points("refused: off_format") == {**dict.fromkeys(range(1, 6), 3 / 8), **dict.fromkeys(range(6, 10), 1 / 8)}
    assert points("refused: truncated")[6] == 0.0
    assert points("questions by pass rate: 80 to 100%") == {**dict.fromkeys(range(1, 10), 3 / 4), 10: 0.0}
    assert points("questions by pass rate: 40 to 60%")[10] == 1.0
    assert points("restored")[5] == 1.0
    assert find(curves, GAME, "restored").unit == "share"
    assert points("invalid a step: too_easy")[1] == 2
    assert not {"phase", "empty steps", "questions", "labels checked"} & set(labels(curves, GAME))


def test_a_game_of_ones_own_is_shown_by_what_it_declares():
    class Own(Game):
        figures = (Figure("my_figure", "mine"), Figure("counts", "counts a step", how="sum"))

    log = {"my_figure": 2, "who": "text", "list": [1], "none": None, "counts": {"a": 1, "b": {"c": 2}}, "truth": True}
    curves = curves_of(Own, [metrics(0, game=log)])
    assert labels(curves, GAME) == ["mine", "counts a step: a"]


def test_figures_come_in_one_order_whatever_the_log():
    log = family_log(3)
    known = [figure.name for figure in Family.figures]
    for logged in (log, dict(reversed(log.items()))):
        shown = [name for name in labels(curves_of(Family, [metrics(0, game=logged)]), GAME) if name in known]
        assert shown == [name for name in known if name in shown]
        assert shown[:3] == ["usable questions", "proposals a step", "pass rate"]


@pytest.mark.parametrize("name", FAMILY)
def test_what_the_librarys_own_games_write_down_is_understood(name: str):
    """Their figures, and the rows of their completions: no proposal is called wrong."""
    game, rows, logs = family_game(name, 5), list[dict[str, Any]](), list[Any]()
    noise = noisy_script(game)

    def script(role: str, prompt: str, index: int) -> str:
        """Most answers state a value, so that there are labels."""
        stated = not game.accuracy_of(role).proposals and index % 3
        return "So it is <answer>5</answer>" if stated else noise(role, prompt, index)

    for step, played in enumerate(plays(game, ScriptedTable(script), 4)):
        logs.append(json.loads(json.dumps(dict(played.log))))
        advantages = [[[None] * len(group.samples) for group in stream.groups] for stream in played.streams]
        rows += episode_rows(SimpleNamespace(step=step, episode=played, advantages=advantages))
    curves = curves_of(type(game), [metrics(step, game=log) for step, log in enumerate(logs)])
    shown = set(labels(curves, GAME))
    assert {"usable questions", "pass rate", "repeated questions", "distinct tokens"} <= shown
    labelled = {"accuracy of labels"} & {figure.name for figure in game.figures}
    assert {*labelled, "steps without a usable question", "refused: off_format"} <= shown
    assert bool(labelled) is (name != "absolute-zero")  # whose labels are what programs return
    own = {
        "absolute-zero": ["right answers by kind: deduction", "tasks kept by kind: abduction"],
        "pasodoble": ["valid questions", "diversity"],
        "spice": ["variance of the answers", "questions with choices"],
        "cpmobius": ["Delta, percentage points", "accepted questions"],
    }
    assert shown.issuperset(own.get(name, []))
    assert all(0 <= value <= 1 for curve in curves if curve.unit == "share" for value in curve.values)

    assert {r["role"] for r in rows if game.accuracy_of(r["role"]).proposals} == set(game.roles) - {game.solver}
    assert not [words for words in map(game.verdict, rows) if words.startswith(("wrong", "right"))]
    met, kinds = (family_of.AGREES, family_of.DIFFERS), {found.kind for found in game.transcripts(rows)}
    assert family_of.AGREES in kinds
    assert kinds <= {*met, family_of.UNANSWERED, family_of.NO_QUESTION}
    pairs = [found for found in game.transcripts(rows) if found.kind in met]
    assert pairs
    if name != "absolute-zero":  # which asks about earlier tasks again
        assert all(len(found.rows) == 2 for found in pairs)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
OTHER = ("usable", "refused", "pass_rates", "labels_checked", "draws", "other")
KEYS = st.sampled_from([*(figure.key for figure in Family.figures), *OTHER])


@given(st.lists(st.dictionaries(KEYS, ANYTHING, max_size=6), max_size=4))
def test_no_log_breaks_it(logs):
    for curve in curves_of(Family, [metrics(step, game=log) for step, log in enumerate(logs)]):
        assert len(curve.steps) == len(curve.values) > 0
        assert all(isinstance(value, float) for value in curve.values)


# The charts of a run folder


def charts(path: Path) -> dict[str, dict[str, Any]]:
    folder = RunFolder.open(path)
    with as_written(path):
        return {chart["name"]: chart for chart in charts_of(game_of(folder)[0], folder, folder.steps())}


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


def test_values_as_text():
    assert [value_in_words(value, "share") for value in (None, 0.125, 1.0)] == ["-", "12.5%", "100%"]
    numbers = (0.0, 0.12345, -2.5, 999.4, 12345.6, 2e-8)
    assert [value_in_words(value, "number") for value in numbers] == ["0", "0.123", "-2.5", "999", "12,346", "2e-08"]


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
    rows = RunFolder.open(family).steps()
    assert warned(rows) == {"90% of the questions repeat": 3}  # by the last wording


NONE_OF_OURS = {"game": ...}, {"streams": 5}, {"streams": {"a": 5}}, {"seats": {"a": None}}


@pytest.mark.parametrize("part", NONE_OF_OURS)
def test_a_line_that_is_none(write_run: Callable[..., Path], part: dict[str, Any]):
    row = {key: value for key, value in {**metrics(1), **part}.items() if value is not ...}
    with pytest.raises(RunFolderError, match="is damaged"):
        charts(write_run("run", [row]))


def test_an_evaluation_that_is_none(write_run: Callable[..., Path]):
    path = write_run("run", [metrics(1, {"a": stream()})], [], [{**evaluation("m", 1, A=1.0), "seats": {}}])
    with pytest.raises(RunFolderError, match=r"eval/e0\.json is invalid"):
        charts(path)


def test_odd_values_are_passed_over(write_run: Callable[..., Path]):
    odd = stream(reward_mean="much", accuracy=True, groups=0, completions="many", kl=[1])
    found = charts(write_run("run", [metrics(1, {"a": odd})]))
    assert not {"reward", "accuracy", "groups without variance", "KL"} & set(found)
    assert warned([{"warnings": [5, None]}]) == {"5": 1, "None": 1}

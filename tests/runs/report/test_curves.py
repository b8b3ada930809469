"""Curves by hand-computed numbers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.games import Game, find_game
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.propose_solve.propose_solve import BREAKDOWNS, WATCHED, YIELD, ProposeSolve
from lite_selfplay.runs.report.figures import GAME, SEATS, Curve, curves_of
from lite_selfplay.testing import ScriptedTable, noisy_script
from tests.made import plays

from .conftest import FAMILY, family_game, family_log, metrics, stream


class Family(ProposeSolve):
    """A game that logs what `family_log` makes up."""

    roles = ("proposer", "solver")
    figures = (
        *YIELD,
        *WATCHED,
        Figure("buffer", "buffered questions", how="last"),
        Figure("delta", "Delta, percentage points"),
        Figure("restored", "restored", "share"),
        Figure("invalid", "invalid a step", how="sum"),
        *BREAKDOWNS,
    )


def label(curve: Curve) -> str:
    return f"{curve.name}: {curve.kind}" if curve.kind else curve.name


def find(curves: Any, part: str, wanted: str) -> Curve:
    (found,) = [curve for curve in curves if (curve.part, label(curve)) == (part, wanted)]
    return found


def labels(curves: Any, part: str) -> list[str]:
    return [label(curve) for curve in curves if curve.part == part]


def test_a_curve_has_a_point_where_there_is_a_value():
    rows = [metrics(step, {"solver": stream(accuracy=value)}) for step, value in ((1, 0.5), (3, 1.0), (4, None))]
    curve = find(curves_of(Game, [*rows, metrics(2, {})]), "solver", "accuracy")
    assert (curve.steps, curve.values, curve.unit, curve.line) == ((1, 3), (0.5, 1.0), "share", "solver")


def test_the_figures_of_a_role():
    rows = [metrics(0, {"solver": stream(completions=8, groups=4, zero_variance_groups=3, kl=0.25, truncated=0.75)})]
    curves = curves_of(Game, rows)
    assert labels(curves, "solver") == [
        *("reward", "accuracy", "well-formed", "truncated", "length in tokens", "groups without variance"),
        *("loss", "KL"),
    ]
    assert find(curves, "solver", "groups without variance").values == (0.75,)
    assert find(curves, "solver", "KL").values == (0.25,)
    assert labels(curves, SEATS) == ["gradient norm: s"]


def test_what_a_role_has_nothing_of_has_no_curve():
    silent = {"accuracy": None, "well_formed": None, "kl": None}
    alone = {"completions": 4, "groups": 4, "zero_variance_groups": 4}  # groups of one, with no variance to lose
    curves = curves_of(Game, [metrics(0, {"coach": stream(**silent, **alone)})])
    assert not {"accuracy", "well-formed", "KL", "groups without variance"} & set(labels(curves, "coach"))


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


def test_the_figures_of_agon():
    log = {"conversions": 3, "regressions": 1, "empty_summaries": 0.25, "pairs": 8}
    curves = curves_of(find_game("agon"), [metrics(0, game=log), metrics(1, game={**log, "conversions": 0})])
    assert labels(curves, GAME) == ["conversions a step", "regressions a step", "empty summaries"]
    assert find(curves, GAME, "conversions a step").values == (3.0, 0.0)


def test_a_game_of_ones_own_is_shown_by_what_it_declares():
    class Own(Game):
        figures = (Figure("my_figure", "mine"), Figure("counts", "counts a step", how="sum"))

    log = {"my_figure": 2, "who": "text", "list": [1], "none": None, "counts": {"a": 1, "b": {"c": 2}}, "truth": True}
    curves = curves_of(Own, [metrics(0, game=log)])
    assert labels(curves, GAME) == ["mine", "counts a step: a"]


def test_figures_come_in_one_order_whatever_the_log():
    log = family_log(3)
    backwards = dict(reversed(list(log.items())))
    shown, other = (labels(curves_of(Family, [metrics(0, game=logged)]), GAME) for logged in (log, backwards))
    known = [figure.name for figure in Family.figures]
    assert [each for each in other if each in known] == [each for each in shown if each in known]
    assert [each for each in shown if each in known][:3] == ["usable questions", "proposals a step", "pass rate"]


@pytest.mark.parametrize("name", FAMILY)
def test_what_the_librarys_own_games_log_is_understood(name: str):
    game = family_game(name, 4)
    noise = noisy_script(game)

    def script(role: str, prompt: str, index: int) -> str:
        """Most answers state a value, so that there are labels."""
        stated = not game.accuracy_of(role).proposals and index % 3
        return "So it is <answer>5</answer>" if stated else noise(role, prompt, index)

    logs = [json.loads(json.dumps(dict(played.log))) for played in plays(game, ScriptedTable(script), 4)]
    curves = curves_of(type(game), [metrics(step, game=log) for step, log in enumerate(logs)])
    shown = set(labels(curves, GAME))
    assert {"usable questions", "pass rate", "repeated questions", "distinct tokens"} <= shown
    assert {"accuracy of labels", "steps without a usable question", "refused: off_format"} <= shown
    for curve in curves:
        assert curve.unit != "share" or all(0 <= value <= 1 for value in curve.values), label(curve)
    own = {
        "pasodoble": {"valid questions", "diversity"},
        "cpmobius": {"Delta, percentage points", "accepted questions"},
    }
    assert own.get(name, set()) <= shown


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*(figure.key for figure in Family.figures), "usable", "refused", "pass_rates", "labels_checked", "draws", "other"]
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(KEYS, ANYTHING, max_size=6), max_size=4))
def test_no_log_breaks_it(logs):
    for curve in curves_of(Family, [metrics(step, game=log) for step, log in enumerate(logs)]):
        assert len(curve.steps) == len(curve.values) > 0
        assert all(isinstance(value, float) for value in curve.values)

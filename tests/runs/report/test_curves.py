"""Curves by hand-computed numbers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.games import Game, find_game, game_names, make_game
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.propose_solve.game import BREAKDOWNS, WATCHED, YIELD, ProposeSolve
from lite_selfplay.runs.report.analysis.curves import GAME, MOST_REASONS, SEATS, Curve, curves_of
from lite_selfplay.testing import ScriptedTable, noisy_script

from .conftest import completion, family_log, metrics, stream


class Family(ProposeSolve):
    """A game that logs what `family_log` makes up."""

    roles = ("proposer", "solver")
    figures = (
        *YIELD,
        *WATCHED,
        Figure("buffer", "buffered questions", how="last"),
        Figure("delta", "Delta, percentage points"),
        *BREAKDOWNS,
    )
    not_figures = ProposeSolve.not_figures | {"phase"}


def find(curves: Any, part: str, label: str) -> Curve:
    (found,) = [curve for curve in curves if (curve.part, curve.label) == (part, label)]
    return found


def labels(curves: Any, part: str) -> list[str]:
    return [curve.label for curve in curves if curve.part == part]


def test_a_mean_is_weighted_by_completions():
    rows = [
        metrics(0, {"solver": stream(completions=4, accuracy=0.5)}),
        metrics(1, {}),
        metrics(2, {"solver": stream(completions=12, accuracy=1.0)}),
        metrics(3, {"solver": stream(accuracy=None)}),
    ]
    accuracy = find(curves_of(Game, rows, []), "solver", "accuracy")
    assert (accuracy.steps, accuracy.values, accuracy.weights) == ((0, 2), (0.5, 1.0), (4.0, 12.0))
    assert accuracy.unit == "share"
    assert accuracy.over(0, 3) == (4 * 0.5 + 12 * 1.0) / 16
    assert accuracy.over(0, 1) == 0.5
    assert accuracy.over(1, 1) is None
    assert accuracy.over(3, 3) is None


def test_the_figures_of_a_role():
    rows = [metrics(0, {"solver": stream(completions=8, groups=4, zero_variance_groups=3, kl=0.25, truncated=0.75)})]
    curves = curves_of(Game, rows, [])
    assert labels(curves, "solver") == [
        *("reward", "accuracy", "well-formed", "length in tokens", "truncated", "KL", "loss"),
        "groups without variance",
    ]
    assert find(curves, "solver", "groups without variance").values == (0.75,)
    assert find(curves, "solver", "KL").values == (0.25,)
    assert labels(curves, SEATS) == ["gradient norm: s"]


def test_what_a_role_has_nothing_of_has_no_curve():
    curves = curves_of(Game, [metrics(0, {"coach": stream(accuracy=None, well_formed=None, kl=None)})], [])
    assert not {"accuracy", "well-formed", "KL"} & set(labels(curves, "coach"))


def test_groups_without_variance_are_a_share_of_all_groups():
    rows = [
        metrics(i, {"a": stream(completions=9, groups=n, zero_variance_groups=z)})
        for i, (n, z) in enumerate([(2, 2), (6, 1)])
    ]
    rows.append(metrics(2, {"a": stream(groups=4, zero_variance_groups=4)}))  # groups of one have none to lose
    assert find(curves_of(Game, rows, []), "a", "groups without variance").over(0, 2) == 3 / 8


def test_why_answers_were_not_right():
    rows = [metrics(0), metrics(1)]
    completions = [
        completion(0, correct=False, reason="wrong"),
        completion(0),
        completion(1, correct=False, reason="wrong"),
        completion(1, correct=False, reason="no_answer"),
        completion(1, correct=False, reason="wrong"),
        completion(1, correct=None, reason=None),  # not judged
        completion(1, "proposer", correct=None, reason=None),
    ]
    curves = curves_of(Game, rows, completions)
    assert labels(curves, "solver") == ["not right: wrong", "not right: no_answer"]
    assert find(curves, "solver", "not right: wrong").values == (1 / 2, 2 / 3)
    assert find(curves, "solver", "not right: wrong").over(0, 1) == 3 / 5
    assert find(curves, "solver", "not right: no_answer").values == (0.0, 1 / 3)
    assert labels(curves, "proposer") == []


def test_a_games_own_labels_are_called_labels():
    rows = [metrics(0, {"proposer": stream(), "solver": stream()}, game={"pass_rates": [0, 1]})]
    completions = [completion(0, role, correct=False, reason="wrong") for role in ("proposer", "solver")]
    curves = curves_of(Family, rows, completions)
    assert {"accepted proposals", "not accepted: wrong"} <= set(labels(curves, "proposer"))
    assert {"agreement with labels", "no agreement: wrong"} <= set(labels(curves, "solver"))


def test_only_the_most_frequent_reasons_have_a_curve():
    completions = [completion(0, correct=False, reason=f"reason {i}") for i in range(20) for _ in range(i + 1)]
    assert len(labels(curves_of(Game, [metrics(0)], completions), "solver")) == MOST_REASONS
    assert labels(curves_of(Game, [metrics(0)], completions), "solver")[0] == "not right: reason 19"


def test_the_figures_of_propose_and_solve():
    curves = curves_of(Family, [metrics(step, game=family_log(step)) for step in range(10)], [])

    def over(label: str, first: int = 0, last: int = 9) -> float | None:
        return find(curves, GAME, label).over(first, last)

    assert over("usable questions") == 8 * 2 / (9 * 8)  # the last step proposes nothing
    assert over("usable questions", 0, 0) == 0.0
    assert over("usable questions", 9, 9) is None
    assert over("proposals a step") == 8
    assert over("steps without a usable question") == 1
    assert over("steps without a usable question", 1, 9) == 0
    assert over("pass rate") == pytest.approx((9 * 4 * 0.75 + 2 * 0.5) / (9 * 4 + 2))  # by questions
    assert over("vote share") == 0.5
    assert over("accuracy of labels") == pytest.approx((3 * 1 * 1.0 + 3 * 2 * 0.5) / (3 * 1 + 3 * 2))  # by labels
    assert over("accuracy of labels", 0, 0) is None
    assert over("refused: off_format") == (5 * 3 + 4 * 1) / (9 * 8)
    assert over("refused: truncated", 5, 8) == 0.0
    assert over("questions by pass rate: 80 to 100%") == 27 / 38
    assert over("questions by pass rate: 40 to 60%") == 2 / 38
    assert over("buffered questions") == 3  # the last
    assert over("buffered questions", 0, 4) == 4
    assert over("Delta, percentage points", 2, 4) == 3.0
    assert over("restored") == pytest.approx(1 / 9)
    assert find(curves, GAME, "restored").unit == "share"
    assert over("invalid a step: too_easy") == 2
    assert not {"phase", "empty steps", "questions", "labels checked"} & set(labels(curves, GAME))


def test_the_figures_of_agon():
    log = {"conversions": 3, "regressions": 1, "empty_summaries": 0.25, "pairs": 8}
    curves = curves_of(find_game("agon"), [metrics(0, game=log), metrics(1, game={**log, "conversions": 0})], [])
    assert labels(curves, GAME) == ["conversions a step", "regressions a step", "empty summaries", "pairs"]
    assert find(curves, GAME, "conversions a step").over(0, 1) == 1.5


def test_a_game_of_ones_own_is_shown_under_its_own_names():
    log = {"my_figure": 2, "who": "text", "list": [1], "none": None, "counts": {"a": 1, "b": {"c": 2}}, "truth": True}
    curves = curves_of(Game, [metrics(0, game=log)], [])
    assert labels(curves, GAME) == ["my figure", "counts a step: a", "truth"]


def test_figures_come_in_one_order_whatever_the_log():
    log = family_log(3)
    backwards = dict(reversed(list(log.items())))
    shown, other = (labels(curves_of(Family, [metrics(0, game=logged)], []), GAME) for logged in (log, backwards))
    known = [figure.name for figure in Family.figures]
    assert [label for label in other if label in known] == [label for label in shown if label in known]
    assert [label for label in shown if label in known][:3] == ["usable questions", "proposals a step", "pass rate"]


FAMILY = [name for name in game_names() if issubclass(find_game(name), ProposeSolve)]
SHORT = {"rzero": {"challenger_steps": 1, "solver_steps": 1}}


@pytest.mark.parametrize("name", FAMILY)
def test_what_the_librarys_own_games_log_is_understood(name: str):
    game = make_game(name, SHORT.get(name, {}), group_size=3, problems_per_step=4)
    table = ScriptedTable(noisy_script(game))
    rows = []
    for step in range(4):
        table.open(step, game.seats(step))
        rows.append(metrics(step, game=json.loads(json.dumps(dict(game.play(step, table).log)))))
    table.close()
    curves = curves_of(type(game), rows, [])
    shown = set(labels(curves, GAME))
    assert {"usable questions", "pass rate", "repeated questions", "distinct tokens"} <= shown
    assert {"accuracy of labels", "steps without a usable question", "refused: off_format"} <= shown
    for curve in curves:
        assert curve.unit != "share" or all(0 <= value <= 1 for value in curve.values), curve.label
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
    for curve in curves_of(Family, [metrics(step, game=log) for step, log in enumerate(logs)], []):
        assert len(curve.steps) == len(curve.values) == len(curve.weights) > 0
        assert all(isinstance(value, float) for value in curve.values)
        curve.over(0, len(logs))


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), min_size=1, max_size=12), st.data())
def test_a_window_lies_between_its_lowest_and_highest_step(points, data):
    steps = tuple(range(0, 2 * len(points), 2))
    values, weights = (tuple(map(float, column)) for column in zip(*points, strict=True))
    curve = Curve("a", "b", steps, values, weights)
    first = data.draw(st.integers(0, steps[-1]))
    last = data.draw(st.integers(first, steps[-1] + 1))
    inside = [value for step, value in zip(steps, values, strict=True) if first <= step <= last]
    found = curve.over(first, last)
    assert (found is None) == (not inside)
    assert found is None or min(inside) - 1e-9 <= found <= max(inside) + 1e-9


def test_steps_without_a_reward_are_no_point_of_its_curve():
    rows = [metrics(step, {"coach": stream(reward_mean=None if step % 2 == 0 else 2.0 * step)}) for step in range(4)]
    reward = find(curves_of(Game, rows, []), "coach", "reward")
    assert (reward.steps, reward.values, reward.over(0, 3), reward.over(0, 0)) == ((1, 3), (2.0, 6.0), 4.0, None)

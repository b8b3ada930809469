"""Kuhn poker: rules, values and best responses by hand and against an independent calculation, and the exact policy."""

import itertools
import math
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from lite_selfplay.games import make_game
from lite_selfplay.games.matches.kuhn import SETS, KuhnPoker, best_response, chips, equilibrium, nash_conv, seen, value
from lite_selfplay.testing import ScriptedTable
from tests.made import play


def test_the_equilibria_and_the_uniform_policy_by_hand():
    for alpha in (0.0, 0.2, 1 / 3):
        assert nash_conv(equilibrium(alpha)) == pytest.approx(0, abs=1e-12)
        assert value(equilibrium(alpha)) == pytest.approx(-1 / 18, abs=1e-12)
    uniform = dict.fromkeys(SETS, 0.5)
    assert nash_conv(uniform) == pytest.approx(11 / 12, abs=1e-12)
    assert value(uniform) == pytest.approx(1 / 8, abs=1e-12)
    assert [best_response(uniform, player) for player in (0, 1)] == pytest.approx([0.5, 5 / 12], abs=1e-12)


def backwards(policy: Mapping[str, float], player: int) -> float:
    """A best response by backward induction over information sets, with every deal weighed by the other's moves."""
    deals = list(itertools.permutations("JQK", 2))

    def won(weights: dict[tuple[str, str], float], history: str) -> float:
        """The best responder's winnings from here, over deals in which it has one card."""
        if chips(next(iter(weights)), history) is not None:
            sign = 1 - 2 * player
            return sum(w * sign * (chips(cards, history) or 0) for cards, w in weights.items())
        if len(history) % 2 == player:
            return max(won(weights, history + move) for move in "pb")
        bets = {cards: policy[cards[1 - player] + history] for cards in weights}
        told = ({c: w * (bets[c] if move == "b" else 1 - bets[c]) for c, w in weights.items()} for move in "pb")
        return sum(won(each, history + move) for each, move in zip(told, "pb", strict=True))

    return sum(won({d: 1 / 6 for d in deals if d[player] == card}, "") for card in "JQK")


def test_random_policies_against_an_independent_calculation():
    rng = Random(7)
    for _ in range(8):
        policy = {place: rng.random() for place in SETS}
        best = [backwards(policy, player) for player in (0, 1)]
        assert [best_response(policy, player) for player in (0, 1)] == pytest.approx(best, abs=1e-9)
        assert nash_conv(policy) == pytest.approx(sum(best), abs=1e-9)
        assert nash_conv(policy) > 0


@pytest.mark.parametrize(
    ("cards", "said", "won"),
    [
        *(("KQ", "p,Pass", 1), ("JQ", "pass,p", -1), ("KJ", "B,b", 2), ("JK", "bet, BET", -2)),
        *(("JK", "b,p", 1), ("KQ", "p,b,p", -1), ("QJ", "p,b,b", 2)),
    ],
)
def test_chips_by_hand(cards: str, said: str, won: int):
    match = KuhnPoker(Random(0))
    match.cards = list(cards)
    for number, text in enumerate(said.split(",")):
        turn = match.turn()
        assert turn == (number % 2, seen(cards[number % 2] + match.history))
        match.act(turn[0], text)
    assert (match.turn(), match.returns()) == (None, [won, -won])


class Playing(ScriptedTable):
    """A table whose seats follow a policy exactly, with a tenth of illegal mass, each move in two spellings."""

    policy: Mapping[str, float] = equilibrium(0.2)

    def score(self, role: str, completions: Any, *, seat: str | None = None) -> Any:
        places = {seen(place): place for place in SETS}
        found = []
        for one, score in zip(completions, super().score(role, completions), strict=True):
            bet = self.policy[places[one.prompt]]
            p = 0.9 * {"p": (1 - bet) / 2, "pass": (1 - bet) / 2, "b": bet / 3, "Bet": 2 * bet / 3}.get(one.text, 0)
            found.append(type(score)([math.log(p) if p else -1e9], []))
        return found


def test_the_exact_policy_is_that_of_all_spellings_of_the_moves():
    game = make_game("kuhn", {"exact_every": 2}, group_size=4, problems_per_step=4)
    table = Playing({"first": ["p", "b"], "second": ["b", "p", "p"]})
    logs = [play(game, table, step).log for step in range(4)]
    assert ["nash_conv" in log for log in logs] == [True, True, False, True]
    log = logs[3]
    exact = {"nash_conv": 0, "nash_conv_average": 0, "exact_value": -1 / 18, "illegal_mass": 0.1}
    assert {key: log[key] for key in exact} == pytest.approx(exact, abs=1e-9)
    assert (log["first"]["J"], log["second"]["Qb"]) == pytest.approx((0.2, 1 / 3))
    assert len(log["first"]) == len(log["second"]) == 6
    assert "NashConv 0" in " ".join(type(game).step_words({**log, "nash_conv": 0.0}))
    assert type(game).closing(log)[0].startswith("NashConv 0.000, of the averaged policy 0.000")


def test_policies_are_averaged_by_how_often_they_are_played():
    """By hand: at step 1 a queen opens with a bet always, at step 2 never; the average weighs these by 1 and
    4. The set after pass and bet counts only where the first move was a pass."""
    game = make_game("kuhn", {"exact_every": 1}, group_size=2, problems_per_step=2)
    table = Playing({"first": ["p"], "second": ["p"]})
    for step, bet in enumerate((1.0, 0.0)):
        table.policy = dict.fromkeys(SETS, bet)
        play(game, table, step)
    average = {place: bet / (every or 1.0) for place, (bet, every) in game.state()["average"].items()}
    assert average["Q"] == pytest.approx(1 / 5)  # weights 1 and 4
    assert average["Qpb"] == 0.0  # reached at the second step alone


def test_returns_are_compared_within_what_a_player_was_dealt():
    """With decay 0.5, and only bets: a hand's mean depends on its own returns only."""
    game = make_game("kuhn", {"decay": 0.5, "weight": 0.0}, group_size=8, problems_per_step=4)
    episode = play(game, Playing({"first": ["b"], "second": ["b"]}), 0)
    means: dict[str, float] = {}
    for first, second in zip(*(stream.groups for stream in episode.streams), strict=True):
        for role, history, group in (("first", "", first), ("second", "b", second)):
            card = group.samples[0].completion.prompt.split()[1]
            key = f"{role} {card}{history}"
            assert group.baseline == means.get(key, 0.0)
            means[key] = 0.5 * means.get(key, 0.0) + 0.5 * (group.samples[0].reward or 0.0)
    assert game.state()["baseline"] == means
    assert len(means) == 6

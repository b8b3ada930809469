"""Matches between seats and against opponents by rule, counted by hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from lite_selfplay.data import Completion, Sampling
from lite_selfplay.errors import ConfigError
from lite_selfplay.games.matches.kuhn import SETS, seen
from lite_selfplay.games.matches.versus import VERSUS, deals, measure_versus
from lite_selfplay.tasks import evaluation_set

PLACES = {seen(place): place for place in SETS}


class Scripted:
    """An examiner whose seats play by rule: `bold` always bets, `timid` never does, `lost` makes no legal move."""

    sampling = Sampling()

    def __init__(self, matches: int):
        self.problems = evaluation_set(deals("kuhn"), matches)
        self.asked: list[tuple[str, str]] = []

    def progress(self, done: int, doing: str) -> None:
        assert 0 <= done < 3 * len(self.problems)  # a stage a seat

    def say(self, seat: str, prompts: Sequence[str], sampling: Sampling, about: Any) -> list[Completion]:
        self.asked += [(seat, PLACES[prompt]) for prompt in prompts]
        text = {"bold": "b", "timid": "p", "lost": "?"}[seat]
        return [Completion(prompt, text, (), (1,), (0.0,), "eos", seat, 0, sampling) for prompt in prompts]


def test_sides_are_swapped_on_the_same_deals_and_the_payoff_is_in_chips():
    examiner = Scripted(40)
    found = measure_versus(examiner, ["bold", "timid", "lost"]).seats  # type: ignore[arg-type]
    assert list(found) == [
        *(f"{seat} against {rule}" for seat in ("bold", "timid", "lost") for rule in ("random", "equilibrium")),
        *("bold against timid", "bold against lost", "timid against lost"),
    ]
    for name, won, payoff in (("bold against timid", 40, 1.0), ("timid against lost", 40, 0.5)):
        score = found[name].score
        assert (score.n, score.right, score.more["draws"], score.more["losses"], score.more["broken"]) == (
            40,
            won,
            0,
            0,
            0,
        )
        assert (score.more["payoff"], score.more["payoff_low"], score.more["payoff_high"]) == (payoff, payoff, payoff)
    # Each side once with the same cards: who always bets against a coin is called half the time, on both sides.
    bold, lost = found["bold against random"].score, found["lost against random"].score
    assert (bold.right + bold.more["losses"], bold.more["draws"]) == (40, 0)
    assert bold.more["payoff_low"] < bold.more["payoff"] < bold.more["payoff_high"]
    assert (lost.right, lost.well_formed) == (0, pytest.approx(0, abs=0.5))
    assert lost.more["payoff"] < -1
    asked = [place for seat, place in examiner.asked if seat == "bold"]
    assert {len(place) for place in asked} == {1, 2}  # it was first, and it answered a first move
    assert VERSUS.tasks is deals
    with pytest.raises(ConfigError, match="grpo has no matches between players"):
        deals("grpo")

from typing import Any

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.errors import ConfigError
from lite_selfplay.games.judging import solo_reward
from tests.games.scripted import played, small
from tests.made import rewards, samples

SIX = Problem("six", "What is 2 + 4?", "6")


def test_reward():
    assert [solo_reward(correct, formed) for correct in (0, 1) for formed in (False, True)] == [0, 0.5, 2, 2.5]


@pytest.mark.parametrize(("budget", "completions"), [("paired", 8), ("single", 4)])
def test_it_samples_a_paired_games_budget(budget: str, completions: int):
    ((episode,), _) = played(
        small("grpo", 4, 2, budget=budget, format_weight=0.5), {"solver": ["<answer>6</answer>", "no"]}, [SIX]
    )
    assert rewards(episode, "solver") == [[2.5, 0.0] * (completions // 2)] * 2
    assert {sample.completion.seat for sample in samples(episode, "solver")} == {"solver"}


# Two answer 7, one 6, and one nothing. If the majority is wrong, a right answer earns only its form.
MOST, FORMED = [2.5, 2.5, 0.5, 0.0], [0.5, 0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("reward", "answer", "paid", "verdict", "accuracy"),
    [
        ("majority", "6", MOST, [False, False, True, False], 0.0),
        ("majority", "7", MOST, [True, True, False, False], 1.0),
        ("majority", None, MOST, [None] * 4, None),
        ("format", "6", FORMED, [False, False, True, False], None),
        ("format", None, FORMED, [None] * 4, None),
    ],
)
def test_rewards_that_look_at_no_answer(reward, answer, paid, verdict, accuracy):
    game = small("grpo", reward=reward, budget="single", format_weight=0.5)
    assert not game.needs_answers
    replies = ["<answer>7</answer>", "<answer>7.0</answer>", "<answer>6</answer>", "no"]
    ((episode,), _) = played(game, {"solver": replies}, [Problem("six", "What is 2 + 4?", answer)])
    assert rewards(episode, "solver") == [paid]
    assert [s.verdict and s.verdict.correct for s in samples(episode, "solver")] == verdict
    assert episode.log.get("label_accuracy") == accuracy


def test_a_tie_pays_nobody_and_a_coin_half():
    def paid(reward: str, *values: str, **options: Any) -> list[float]:
        game = small("grpo", len(values), reward=reward, budget="single", **options)
        ((episode,), _) = played(game, {"solver": [f"<answer>{value}</answer>" for value in values]}, [SIX])
        return rewards(episode, "solver")[0]

    assert paid("majority", "7", "6") == [0.0, 0.0]
    assert paid("majority", "7", "6", format_weight=0.5) == [0.5, 0.5]
    tossed = paid("random", *["7"] * 400)
    assert set(tossed) == {0.0, 2.0}  # nothing for form, unless it is set
    assert 150 < tossed.count(2.0) < 250
    assert set(paid("random", *["7"] * 40, format_weight=0.5)) == {0.5, 2.5}
    with pytest.raises(ConfigError, match=r"game\.format_weight: is the only reward with game\.reward=format"):
        small("grpo", 2, reward="format", format_weight=0.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "2 for a right answer"),
        ({"format_weight": 0.5}, "2 for a right answer, 0.5 for the format"),
        ({"reward": "random"}, "2 by the toss of a coin"),
        ({"reward": "random", "format_weight": 0.25}, "2 by the toss of a coin, 0.25 for the format"),
        ({"reward": "majority"}, "2 for agreeing with the majority vote"),
        ({"reward": "format"}, "0.5 for the format"),
    ],
)
def test_it_says_what_it_pays(options: dict[str, Any], said: str):
    assert small("grpo", 2, **options).rewards() == {"solver": said}

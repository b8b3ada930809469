import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games.baselines.grpo import solo_reward
from tests.games.scripted import played, small
from tests.made import rewards, samples

SIX = Problem("six", "What is 2 + 4?", "6")


@pytest.mark.parametrize(
    ("correct", "well_formed", "expected"), [(0, False, 0), (0, True, 0.5), (1, False, 2), (1, True, 2.5)]
)
def test_reward(correct: int, well_formed: bool, expected: float):
    assert solo_reward(correct, well_formed) == expected


@pytest.mark.parametrize(("budget", "completions"), [("paired", 8), ("single", 4)])
def test_it_samples_a_paired_games_budget(budget: str, completions: int):
    ((episode,), _) = played(small("grpo", 4, 2, budget=budget), {"solver": ["<answer>6</answer>", "no"]}, [SIX])
    assert rewards(episode, "solver") == [[2.5, 0.0] * (completions // 2)] * 2
    assert {sample.completion.seat for sample in samples(episode, "solver")} == {"solver"}


@pytest.mark.parametrize(
    ("reward", "answer", "paid", "verdict", "accuracy"),
    [
        # Most say 7: the label is wrong, and who is right is paid for the form alone.
        ("majority", "6", [2.5, 2.5, 0.5, 0.0], [False, False, True, False], 0.0),
        ("majority", "7", [2.5, 2.5, 0.5, 0.0], [True, True, False, False], 1.0),
        ("majority", None, [2.5, 2.5, 0.5, 0.0], [None] * 4, None),
        ("format", "6", [0.5, 0.5, 0.5, 0.0], [False, False, True, False], None),
        ("format", None, [0.5, 0.5, 0.5, 0.0], [None] * 4, None),
    ],
)
def test_rewards_that_look_at_no_answer(
    reward: str, answer: str | None, paid: list[float], verdict: list[bool | None], accuracy: float | None
):
    game = small("grpo", reward=reward, budget="single")
    assert not game.needs_answers
    replies = ["<answer>7</answer>", "<answer>7.0</answer>", "<answer>6</answer>", "no"]
    ((episode,), _) = played(game, {"solver": replies}, [Problem("six", "What is 2 + 4?", answer)])
    assert rewards(episode, "solver") == [paid]
    assert [s.verdict and s.verdict.correct for s in samples(episode, "solver")] == verdict
    assert episode.log.get("label_accuracy") == accuracy


def test_a_tie_pays_nobody_and_a_coin_half():
    def paid(reward: str, *replies: str) -> list[float | None]:
        game = small("grpo", len(replies), reward=reward, budget="single")
        ((episode,), _) = played(game, {"solver": replies}, [SIX])
        return rewards(episode, "solver")[0]

    assert paid("majority", "<answer>7</answer>", "<answer>6</answer>") == [0.5, 0.5]
    tossed = paid("random", *["<answer>7</answer>"] * 400)
    assert set(tossed) == {0.5, 2.5}
    assert 150 < tossed.count(2.5) < 250

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games import make_game
from lite_selfplay.games.baselines.grpo import solo_reward
from lite_selfplay.testing import ScriptedTable
from tests.made import play

SIX = Problem("six", "What is 2 + 4?", "6")


@pytest.mark.parametrize(
    ("correct", "well_formed", "expected"), [(0, False, 0), (0, True, 0.5), (1, False, 2), (1, True, 2.5)]
)
def test_reward(correct: int, well_formed: bool, expected: float):
    assert solo_reward(correct, well_formed) == expected


def test_it_samples_a_paired_games_budget():
    for budget, completions in (("paired", 8), ("single", 4)):
        game = make_game("grpo", {"budget": budget}, group_size=4, problems_per_step=2)
        table = ScriptedTable({"solver": ["<answer>6</answer>", "no"]}, [SIX])
        episode = play(game, table)
        (stream,) = episode.streams
        assert [len(group.samples) for group in stream.groups] == [completions] * 2
        assert game.rollouts_per_step() == 2 * completions
        assert [sample.reward for sample in stream.groups[0].samples][:2] == [2.5, 0.0]
        assert {sample.completion.seat for group in stream.groups for sample in group.samples} == {"solver"}


@pytest.mark.parametrize(
    ("reward", "answer", "rewards", "verdict", "accuracy"),
    [
        # Most say 7: the label is wrong, and who is right is paid for the form alone.
        ("majority", "6", [2.5, 2.5, 0.5, 0.0], [False, False, True, False], 0.0),
        ("majority", "7", [2.5, 2.5, 0.5, 0.0], [True, True, False, False], 1.0),
        ("majority", None, [2.5, 2.5, 0.5, 0.0], None, None),
        ("format", "6", [0.5, 0.5, 0.5, 0.0], [False, False, True, False], None),
        ("format", None, [0.5, 0.5, 0.5, 0.0], None, None),
    ],
)
def test_rewards_that_look_at_no_answer(
    reward: str, answer: str | None, rewards: list[float], verdict: list[bool] | None, accuracy: float | None
):
    game = make_game("grpo", {"reward": reward, "budget": "single"}, group_size=4, problems_per_step=1)
    assert not game.needs_answers
    replies = ["<answer>7</answer>", "<answer>7.0</answer>", "<answer>6</answer>", "no"]
    table = ScriptedTable({"solver": replies}, [Problem("six", "What is 2 + 4?", answer)])
    episode = play(game, table)
    ((group,),) = [stream.groups for stream in episode.streams]
    assert [sample.reward for sample in group.samples] == rewards
    assert [s.verdict and s.verdict.correct for s in group.samples] == (verdict or [None] * 4)
    assert episode.log.get("label_accuracy") == accuracy


def test_a_tie_pays_nobody_and_a_coin_half():
    def paid(reward: str, replies: list[str]) -> list[float | None]:
        game = make_game("grpo", {"reward": reward, "budget": "single"}, group_size=len(replies), problems_per_step=1)
        table = ScriptedTable({"solver": replies}, [SIX])
        return [sample.reward for sample in play(game, table).streams[0].groups[0].samples]

    assert paid("majority", ["<answer>7</answer>", "<answer>6</answer>"]) == [0.5, 0.5]
    tossed = paid("random", ["<answer>7</answer>"] * 400)
    assert set(tossed) == {0.5, 2.5}
    assert 150 < tossed.count(2.5) < 250

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import EvalSpec, Problem
from lite_selfplay.games import make_game
from lite_selfplay.testing import ScriptedTable
from tests.made import play

SIX = Problem("six", "What is 2 + 4?", "6")
RIGHT, WRONG = "2 + 4 = 6. <answer>6</answer>", "2 + 4 = 7. <answer>7</answer>"


def played(drafts: list[str], refinements: list[str], step: int = 0, **options: object):
    game = make_game("self-refine", options, group_size=4, problems_per_step=1)
    table = ScriptedTable({"drafter": drafts, "refiner": refinements}, [SIX])
    return play(game, table, step), table


def test_rewards_of_both_passes_by_hand():
    episode, _ = played([RIGHT, WRONG, "seven", RIGHT], [RIGHT, RIGHT, "\\boxed{6}", WRONG])
    drafted, refined = episode.streams
    assert [sample.reward for sample in drafted.groups[0].samples] == [2.5, 0.5, 0.0, 2.5]
    # No bonus for a conversion: 2 + 0.5 twice, 2 without the format, 0.5.
    assert [sample.reward for sample in refined.groups[0].samples] == [2.5, 2.5, 2.0, 0.5]
    assert episode.log == {"pairs": 4, "conversions": 2, "regressions": 1, "empty_summaries": 0.0}
    (row,) = stream_advantages(refined)
    # Mean 1.875; squared deviations 0.390625 twice, 0.015625, 1.890625: 2.6875 over 3.
    assert row == pytest.approx([(r - 1.875) / ((2.6875 / 3) ** 0.5 + 1e-4) for r in (2.5, 2.5, 2.0, 0.5)])


def test_one_seat_plays_both_at_agons_budget():
    game, agon = (make_game(name, {}, group_size=8, problems_per_step=4) for name in ("self-refine", "agon"))
    assert [set(game.seats(step).values()) for step in (0, 1)] == [{"solver"}] * 2
    assert game.trained_seats() == ("solver",)
    assert game.rollouts_per_step() == agon.rollouts_per_step() == 64
    assert game.evaluation() == EvalSpec("self-refine", ("solver",))
    episode, table = played([RIGHT], [WRONG], step=1)
    assert {s.completion.seat for stream in episode.streams for g in stream.groups for s in g.samples} == {"solver"}
    assert sum(len(prompts) * n for _, prompts, n in table.asked) == 8

"""CPMobius: rounds of two steps, the filter, both rewards and rollback."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Completion, Episode, Problem, Restore, Sampling, Snapshot
from lite_selfplay.errors import GameError
from lite_selfplay.games import Game, make_game
from lite_selfplay.games.cpmobius.game import BEST, read_task
from lite_selfplay.games.cpmobius.rewards import (
    Taught,
    coach_reward,
    player_reward,
    progress,
    token_weighted,
)
from lite_selfplay.testing import ScriptedTable
from tests.made import completion, plays, rewards

TWO, THREE, NONE = "<answer>2</answer>", "<answer>3</answer>", "no idea"
VALIDATION = [Problem(f"v-{i}", f"What is {i} - {i}?", "0") for i in range(1, 5)]
RIGHT, WRONG = "<answer>0</answer>", "<answer>1</answer>"


# Arithmetic


def test_the_players_rewards():
    assert [player_reward(agrees) for agrees in (True, False)] == [1, 0]
    assert [player_reward(agrees, "signed") for agrees in (True, False)] == [1, -1]


@pytest.mark.parametrize(
    ("kind", "delta", "reward"),
    [("mean", 2.0, 1.5), ("mean", -2.0, -1.5), ("delta", -2.0, -2.0), ("advantage", 2.0, -0.5), ("mean", 0.0, 0.0)],
)
def test_the_coachs_reward(kind: str, delta: float, reward: float):
    assert coach_reward(kind, delta, 0.75, -0.25) == reward


@given(st.sampled_from(["mean", "delta"]), st.floats(-100, 100), st.floats(0, 1), st.floats(-4, 4))
def test_the_coach_is_never_paid_more_than_the_progress(kind: str, delta: float, share: float, advantage: float):
    assert abs(coach_reward(kind, delta, share, advantage)) <= abs(delta)


def test_the_token_weighted_mean_by_hand():
    # 10 tokens at 1, 30 at -0.5; the third is 0 and counts for nothing.
    assert token_weighted([1.0, -0.5, 0.0], [10, 30, 99]) == pytest.approx((10 - 15) / 40)
    assert token_weighted([0.0, 0.0], [5, 5]) == token_weighted([], []) == 0


def test_progress_by_hand():
    # One gained, one of ten: 10 points; mean 0.1, squared deviations 0.81 + 9 * 0.01 = 0.9 over 9, over 10.
    assert progress([False] * 10, [True] + [False] * 9) == pytest.approx((10.0, 10.0))
    # Gained and lost: no progress, but an error.
    assert progress([True, False], [False, True]) == pytest.approx((0.0, 100.0))
    assert progress([True], [False]) == (-100.0, None)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2))
def test_progress_is_the_difference_of_the_accuracies(pairs: list[tuple[bool, bool]]):
    before, after = zip(*pairs, strict=True)
    delta, error = progress(before, after)
    assert delta == pytest.approx(100 * (sum(after) - sum(before)) / len(pairs))
    assert (delta == 0) == (sum(after) == sum(before))
    assert error is not None
    assert (error == 0) == (len({a - b for b, a in pairs}) == 1)


def test_progress_over_several_answers_is_paired_by_problem():
    # Two answers each to four problems, from 1, 2, 0, 1 right to 2, 1, 2, 2: changes 1, -1, 2, 1 of 2. Their mean is
    # 0.75 / 2; squared deviations 0.0625 + 3.0625 + 1.5625 + 0.0625 = 4.75 over 3, over 4, and half of the root.
    before, after = [1, 2, 0, 1], [2, 1, 2, 2]
    error = 100 * (4.75 / 3 / 4) ** 0.5 / 2
    assert progress(before, after, 2) == pytest.approx((37.5, error))
    assert progress([3], [5], 10) == (20.0, None)
    # Answers that always agree with each other tell no more than one of them.
    assert progress([2, 0, 0], [2, 2, 0], 2) == pytest.approx(progress([1, 0, 0], [1, 1, 0]))


def test_progress_reads_back_what_it_kept():
    said = Completion("p", "t", (1,), (2, 3), (-0.5, -1.0), "eos", "coach", 4, Sampling(stop=("x",)), "<think>")
    task = Taught("q-0-1", said, 0.5, -0.25)
    assert Taught.from_json(json.loads(json.dumps(asdict(task)))) == task


# Reading tasks


@pytest.mark.parametrize(
    ("text", "stop", "reason", "question"),
    [
        (" What is 2 + 5? ", "eos", "", "What is 2 + 5?"),
        ("<think>hard or easy?</think>What is 2 + 5?", "eos", "", "What is 2 + 5?"),
        ("<think>never closed", "eos", "off_format", ""),
        ("", "eos", "empty", ""),
        ("What is 2 + 5? And what", "length", "truncated", None),
        ("What is 2 + 5? <answer>7</answer>", "eos", "leaks", None),
        ("What is 2 + 5? \\boxed{7}", "eos", "leaks", None),
        ("", "prompt_too_long", "prompt_too_long", ""),
    ],
)
def test_a_task_is_the_text_after_the_reasoning(text: str, stop: str, reason: str, question: str | None):
    proposal = read_task(completion(text, stop))
    assert proposal.reason == reason
    assert question is None or proposal.question == question


# Rounds


def cpmobius(group_size: int = 4, problems_per_step: int = 1, **options: Any) -> Game:
    return make_game("cpmobius", options, group_size=group_size, problems_per_step=problems_per_step)


def play(
    game: Game,
    player: Sequence[str],
    measured: Sequence[str],
    steps: int = 2,
    coach: Sequence[str] = ("What is 1 + 1?",),
) -> list[Episode]:
    """So many steps of a game, the lists read in a circle from the first step on; `play.table` is the table."""
    play.table = ScriptedTable({"coach": coach, "player": player, "player, measured": measured}, VALIDATION)
    return plays(game, play.table, steps)


# 1 of 4 right before, 3 of 4 after the first update: Delta is 50 points.
UP = [RIGHT, WRONG, WRONG, WRONG, RIGHT, RIGHT, RIGHT, WRONG]


def test_a_round_by_hand():
    # The filter sees 3 of 4 agree; the fresh answers, which train, 2 of 4.
    learn, teach = play(cpmobius(), [TWO, TWO, TWO, THREE, TWO, TWO, NONE, THREE], UP)
    assert rewards(learn, "player") == [[1, 1, 0, 0]]
    assert [s.info["question"] for s in learn.streams[1].groups[0].samples] == ["q-0-0"] * 4
    assert learn.streams[1].groups[0].problem == Problem("q-0-0", "What is 1 + 1?", "2")
    assert stream_advantages(learn.streams[0]) == [[None]]  # the coach's task is on record, and trains nobody
    assert learn.log["validation_accuracy"] == 25
    assert (teach.streams[0].role, teach.streams[0].credit) == ("coach", "reinforce")
    assert rewards(teach, "coach") == [[25.0]]  # 2 of 4 agree, times 50 points
    assert stream_advantages(teach.streams[0]) == [[25.0]]
    assert (teach.log["delta"], teach.log["validation_accuracy"]) == (50, 75)
    # Changes 0, 1, 1, 0: variance 1/3 over 4.
    assert teach.log["delta_error"] == pytest.approx(100 * (1 / 12) ** 0.5)


def test_a_task_without_a_fresh_majority_is_left_out():
    learn, teach = play(cpmobius(), [TWO, TWO, TWO, THREE, TWO, TWO, THREE, THREE], UP)
    assert [s.role for s in learn.streams] == ["coach"]
    assert (learn.log["kept"], learn.log["lost_majority"], learn.log["usable"]) == (1, 1, 0)
    assert teach.streams == []


def test_the_releases_rewards():
    signed, teach = play(cpmobius(reward="signed", coach_reward="advantage", resample=False), [TWO, TWO, TWO, NONE], UP)
    assert rewards(signed, "player") == [[1, 1, 1, -1]]
    (group,) = signed.streams[1].groups
    lengths = [len(s.completion.token_ids) for s in group.samples]
    (advantages,) = stream_advantages(signed.streams[1])
    weighted = sum(a * n for a, n in zip(advantages, lengths, strict=True)) / sum(lengths)
    assert rewards(teach, "coach") == [[pytest.approx(50 * weighted)]]
    _, teach = play(cpmobius(coach_reward="delta"), [TWO, TWO, TWO, THREE], UP)
    assert rewards(teach, "coach") == [[50.0]]


def test_tasks_are_drawn_until_there_are_enough_and_the_first_are_taken():
    # The first batch: too easy and kept; the second: both kept. Of three kept tasks, two are taken.
    sure, split = [TWO] * 4, [TWO, TWO, TWO, THREE]
    coach = ["What is 1 + 1?", "Two and nothing?", "Three less one?", "One twice?"]
    game = cpmobius(problems_per_step=2, resample=False)
    (learn,) = play(game, sure + split + split + split, UP, steps=1, coach=coach)
    assert [g.problem.id for g in learn.streams[1].groups] == ["q-0-1", "q-0-2"]
    assert [g.samples[0].info["fate"] for g in learn.streams[0].groups] == ["too_easy", "kept", "kept", "kept"]
    assert (learn.log["draws"], learn.log["kept"], learn.log["too_easy"], learn.log["short"]) == (4, 3, 1, 0)
    assert learn.log["acceptance"] == 0.75


def test_draws_are_bounded_and_a_short_round_is_warned_of():
    sure, split = [TWO] * 4, [TWO, TWO, TWO, THREE]
    game = cpmobius(problems_per_step=2, max_draws=3, resample=False)
    (learn,) = play(game, split + sure * 5, UP, steps=1)
    assert (learn.log["draws"], learn.log["short"], learn.log["too_easy"]) == (6, 1, 5)
    assert any("only 1 of the 2 tasks of this round were found in 6 draws" in line for line in game.warnings(learn.log))
    (given_up,) = play(game, sure, UP, steps=1)
    assert (given_up.log["draws"], given_up.log["short"]) == (2, 2)
    assert [s.role for s in given_up.streams] == ["coach"]
    full = {**learn.log, "short": 0}
    assert not any("were found" in line for line in game.warnings(full))


def test_without_the_filter_what_is_too_easy_trains():
    (learn,) = play(cpmobius(filter=False), [TWO], UP, steps=1)
    assert rewards(learn, "player") == [[1, 1, 1, 1]]


def test_no_progress_moves_nothing():
    game = cpmobius()
    _, same, _, again = play(game, [TWO, TWO, TWO, THREE], [RIGHT, WRONG, WRONG, WRONG], steps=4)
    assert (same.streams, same.log["delta"], same.log["rounds_without_progress"]) == ([], 0, 1)
    assert (again.streams, again.log["rounds_without_progress"]) == ([], 2)


def test_without_a_task_nothing_is_measured_again():
    game = cpmobius(max_draws=1)
    learn, teach = play(game, [NONE], UP)
    assert (teach.streams, teach.log["delta"], learn.log["empty_steps"]) == ([], 0, 1)
    assert [role for role, _, _ in play.table.asked].count("player, measured") == 1
    with pytest.raises(GameError, match=r"2 steps in a row brought no question.*What is 1 \+ 1\?"):
        play(cpmobius(max_draws=1, max_empty_steps=2), [NONE], UP, steps=3)


def test_a_frozen_coach_is_never_paid():
    for episode in play(cpmobius(freeze_coach=True), [TWO, TWO, TWO, THREE], UP, steps=6):
        assert all(
            sample.masked for s in episode.streams if s.role == "coach" for g in s.groups for sample in g.samples
        )


def test_the_same_problems_are_measured_once_before_and_once_a_round():
    play(cpmobius(), [TWO, TWO, TWO, THREE], UP, steps=4)
    measured = [prompts for role, prompts, _ in play.table.asked if role == "player, measured"]
    assert len(measured) == 3
    assert measured[0] == measured[1] == measured[2]
    assert "What is 1 - 1?" in measured[0][0]


def rights(*counts: int) -> list[str]:
    """What the player says on the validation set each time: so many of four right."""
    return [RIGHT if place < count else WRONG for count in counts for place in range(4)]


def test_the_best_player_is_kept_and_put_back():
    game = cpmobius(rollback=2)
    # Before 1 of 4; after the rounds 3, 2 (worse, patience left), 1 (worse, patience gone: back to 3), 2.
    taught = play(game, [TWO, TWO, TWO, THREE], rights(1, 3, 2, 1, 2), steps=8)[1::2]
    assert [list(e.actions) for e in taught] == [
        [Snapshot("player", BEST)],
        [],
        [Restore("player", BEST, reset_optimizer=True)],
        [],
    ]
    # After the restore the player is the one that had 3 right: 2 are 25 points less.
    assert [e.log["delta"] for e in taught] == [50, -25, -25, -25]
    assert [e.log["stale_rounds"] for e in taught] == [0, 1, 0, 1]
    assert [e.log["restored"] for e in taught] == [False, False, True, False]


def test_a_player_is_put_back_where_it_is_below_the_best_score():
    taught = play(cpmobius(rollback=1), [TWO, TWO, TWO, THREE], rights(1, 3, 0, 1, 1), steps=8)[1::2]
    assert [[type(a) for a in e.actions] for e in taught] == [[Snapshot], [Restore], [Restore], [Restore]]
    taught = play(cpmobius(rollback=2), [TWO, TWO, TWO, THREE], rights(1, 3, 0, 1, 1, 0), steps=10)[1::2]
    # Better than the round before, but stale for two rounds and below the best score of 3: back to that.
    assert [[type(a) for a in e.actions] for e in taught] == [[Snapshot], [], [Restore], [], [Restore]]
    assert [e.log["delta"] for e in taught] == [50, -75, 25, -50, -25]
    level = play(cpmobius(rollback=1), [TWO, TWO, TWO, THREE], rights(1, 3, 3, 3, 2), steps=8)[1::2]
    # As good as the best: there is nothing to go back to, whatever the patience.
    assert [[type(a) for a in e.actions] for e in level] == [[Snapshot], [], [], [Restore]]
    assert [e.log["stale_rounds"] for e in level] == [0, 1, 2, 0]


def test_the_best_score_may_be_the_one_before_training():
    game = cpmobius(rollback=2)
    assert game.kept_at_start() == [Snapshot("player", BEST)]
    taught = play(game, [TWO, TWO, TWO, THREE], rights(3, 1, 2, 2), steps=6)[1::2]
    assert [list(e.actions) for e in taught] == [[], [Restore("player", BEST, reset_optimizer=True)], []]
    assert [e.log["best_validation_accuracy"] for e in taught] == [75, 75, 75]
    assert [e.log["delta"] for e in taught] == [-50, 25, -25]  # the last against the player put back
    assert cpmobius().kept_at_start() == []


def test_rounds_count_towards_a_rollback_from_a_given_one_on():
    # Below the best in every round; two in a row count from the third round on.
    taught = play(cpmobius(rollback=2, rollback_from=3), [TWO, TWO, TWO, THREE], rights(3, *[1] * 6), steps=12)[1::2]
    assert [e.log["stale_rounds"] for e in taught] == [0, 0, 1, 0, 1, 0]
    assert [e.log["restored"] for e in taught] == [False, False, False, True, False, True]
    # A new best before that is kept all the same.
    taught = play(cpmobius(rollback=1, rollback_from=9), [TWO, TWO, TWO, THREE], rights(1, 2, 0, 0), steps=6)[1::2]
    assert [[type(a) for a in e.actions] for e in taught] == [[Snapshot], [], []]


def test_several_answers_to_each_validation_problem():
    # Of two answers to each of four problems: 1, 1, 0, 0 right before, 2, 1, 1, 0 after.
    before, after = [RIGHT, WRONG, RIGHT, WRONG, *[WRONG] * 4], [RIGHT, RIGHT, RIGHT, WRONG, WRONG, RIGHT, WRONG, WRONG]
    learn, teach = play(cpmobius(validation_samples=2), [TWO, TWO, TWO, THREE], before + after)
    assert [(n, len(prompts)) for role, prompts, n in play.table.asked if role == "player, measured"] == [(2, 4)] * 2
    assert (learn.log["validation_accuracy"], teach.log["validation_accuracy"], teach.log["delta"]) == (25, 50, 25)
    # Changes 1, 0, 1, 0 of 2: variance 1/3 over 4, and half of the root.
    assert teach.log["delta_error"] == pytest.approx(100 * (1 / 12) ** 0.5 / 2)
    assert rewards(teach, "coach") == [[0.75 * 25]]


def test_without_rollback_no_player_is_kept():
    taught = play(cpmobius(), [TWO, TWO, TWO, THREE], rights(1, 3, 0, 0, 2), steps=8)
    assert not any(episode.actions for episode in taught)


def test_a_dry_run_names_rounds_draws_and_validation():
    lines = "\n".join(cpmobius(16, 16).describe(2000))
    assert "rounds: 1000" in lines
    assert "at most 320 a round" in lines
    assert "528 to 5,696 completions" in lines
    assert "rollback" not in lines
    lines = "\n".join(cpmobius(2, 3, rollback=4, filter=False, resample=False, freeze_coach=True).describe(3))
    assert "rounds: 2" in lines
    assert "3 tasks at a time until 3 are kept (a majority)" in lines
    assert "9 to 180 completions" in lines
    assert "after 4 rounds without a new best, counted from round 1 on" in lines
    assert "and 1 of each validation problem" in lines
    assert "and 10 of each validation problem" in "\n".join(cpmobius(2, 3, validation_samples=10).describe(2))
    assert "the coach stays as it is" in lines


def test_the_most_it_samples():
    # A round: 20 draws of 2 tasks with 3 answers each, and 3 fresh answers to 2 kept tasks; its second step, nothing.
    assert [cpmobius(3, 2).most_rollouts(steps) for steps in (0, 1, 2, 3)] == [0, 166, 166, 332]
    assert cpmobius(3, 2, resample=False, max_draws=1).most_rollouts(2) == 8
    for player in ([TWO], [TWO, TWO, TWO, THREE], [TWO] * 8 + [TWO, THREE] * 4):
        play(game := cpmobius(), player, UP, steps=5)
        sampled = [len(prompts) * n for role, prompts, n in play.table.asked if "measured" not in role]
        assert sum(sampled) <= game.most_rollouts(5)


def test_the_coach_learns_to_write_problems_and_nothing_else():
    told = Problem("p", "Ann has 2 pens and buys 3. How many?", "5", extra={"solution": "2 + 3 = 5."})
    coach = cpmobius().cold_start("coach", told, random.Random(0), thinks=False)
    assert (coach.completion, "Ann" in coach.prompt) == (told.text, False)
    thinking = cpmobius().cold_start("coach", told, random.Random(0), thinks=True)
    assert thinking.completion == f"<think>\n2 + 3 = 5.\n</think>\n\n{told.text}"
    player = cpmobius().cold_start("player", told, random.Random(0), thinks=False)
    assert (told.text in player.prompt, "<answer>5</answer>" in player.completion) == (True, True)
    # Without a solution there is a task all the same, and nothing for the player.
    bare = {role: cpmobius().cold_start(role, Problem("p", "2 + 2?", "4"), random.Random(0), thinks=False)
            for role in ("coach", "player")}  # fmt: skip
    assert (bare["coach"] and bare["coach"].completion, bare["player"]) == ("2 + 2?", None)

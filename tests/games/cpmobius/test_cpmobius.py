"""CPMobius: rounds of two steps, the filter, both rewards and rollback."""

from typing import Any

import pytest

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode, Problem, Restore, Snapshot
from lite_selfplay.games.cpmobius.cpmobius import BEST, coach_reward, player_reward, progress, read_task, token_weighted
from tests.games.scripted import NONE, THREE, TWO, played, small
from tests.made import completion, rewards

SPLIT = [TWO, TWO, TWO, THREE]  # three of four answers agree
VALIDATION = [Problem(f"v-{i}", f"What is {i} - {i}?", "0") for i in range(1, 5)]
RIGHT, WRONG = "<answer>0</answer>", "<answer>1</answer>"


def test_rewards():
    agrees = [(True,), (False,), (True, "signed"), (False, "signed")]
    assert [player_reward(*each) for each in agrees] == [1, 0, 1, -1]
    paid = [("mean", 2.0), ("mean", -2.0), ("delta", -2.0), ("advantage", 2.0), ("mean", 0.0)]
    assert [coach_reward(kind, delta, 0.75, -0.25) for kind, delta in paid] == [1.5, -1.5, -2.0, -0.5, 0.0]


def test_the_token_weighted_mean_by_hand():
    # 10 tokens at 1, 30 at -0.5; the third is 0 and does not count.
    assert token_weighted([1.0, -0.5, 0.0], [10, 30, 99]) == pytest.approx((10 - 15) / 40)
    assert token_weighted([0.0, 0.0], [5, 5]) == token_weighted([], []) == 0


def test_progress_by_hand():
    # One gained, one of ten: 10 points; mean 0.1, squared deviations 0.81 + 9 * 0.01 = 0.9 over 9, over 10.
    assert progress([False] * 10, [True] + [False] * 9) == pytest.approx((10.0, 10.0))
    # Gained and lost: no progress, but an error.
    assert progress([True, False], [False, True]) == pytest.approx((0.0, 100.0))
    assert progress([True], [False]) == (-100.0, None)
    # Two answers each to four problems, from 1, 2, 0, 1 right to 2, 1, 2, 2, paired by problem: changes 1, -1, 2, 1 of
    # 2. Their mean is 0.75 / 2; squared deviations 0.0625 + 3.0625 + 1.5625 + 0.0625 = 4.75 over 3, over 4, and half of
    # the root.
    error = 100 * (4.75 / 3 / 4) ** 0.5 / 2
    assert progress([1, 2, 0, 1], [2, 1, 2, 2], 2) == pytest.approx((37.5, error))
    assert progress([3], [5], 10) == (20.0, None)
    # Answers that always agree with each other have no more information than one of them.
    assert progress([2, 0, 0], [2, 2, 0], 2) == pytest.approx(progress([1, 0, 0], [1, 1, 0]))


@pytest.mark.parametrize(
    ("text", "stop", "reason", "question"),
    [
        (" What is 2 + 5? ", "eos", "", "What is 2 + 5?"),
        ("<think>hard or easy?</think>What is 2 + 5?", "eos", "", "What is 2 + 5?"),
        ("What is 2 + 5? And what", "length", "truncated", None),
        ("What is 2 + 5? <answer>7</answer>", "eos", "leaks", None),
        ("What is 2 + 5? \\boxed{7}", "eos", "leaks", None),
    ],
)
def test_a_task_is_the_text_after_the_reasoning(text: str, stop: str, reason: str, question: str | None):
    proposal = read_task(completion(text, stop))
    assert proposal.reason == reason
    assert question is None or proposal.question == question


def play(player: Any, measured: Any, steps: int = 2, coach: Any = ("What is 1 + 1?",), **options: Any) -> list[Episode]:
    """The episodes of `steps` steps, with the lists repeated as needed; `play.asked` has the prompts."""
    script = {"coach": coach, "player": player, "player, measured": measured}
    episodes, table = played(small("cpmobius", **options), script, VALIDATION, steps=steps)
    play.asked = table.asked
    return episodes


# 1 of 4 right before, 3 of 4 after the first update: Delta is 50 points.
UP = [RIGHT, WRONG, WRONG, WRONG, RIGHT, RIGHT, RIGHT, WRONG]


def test_a_round_by_hand():
    # The filter sees 3 of 4 agree; the fresh answers, which train, 2 of 4.
    learn, teach = play([*SPLIT, TWO, TWO, NONE, THREE], UP)
    assert rewards(learn, "player") == [[1, 1, 0, 0]]
    assert [s.info["question"] for s in learn.streams[1].groups[0].samples] == ["q-0-0"] * 4
    assert learn.streams[1].groups[0].problem == Problem("q-0-0", "What is 1 + 1?", "2")
    assert stream_advantages(learn.streams[0]) == [[None]]  # the coach's task is recorded, and trains no seat
    assert learn.log["validation_accuracy"] == 25
    assert (teach.streams[0].role, teach.streams[0].credit) == ("coach", "reinforce")
    assert rewards(teach, "coach") == [[25.0]]  # 2 of 4 agree, times 50 points
    assert stream_advantages(teach.streams[0]) == [[25.0]]
    assert (teach.log["delta"], teach.log["validation_accuracy"]) == (50, 75)
    # Changes 0, 1, 1, 0: variance 1/3 over 4.
    assert teach.log["delta_error"] == pytest.approx(100 * (1 / 12) ** 0.5)


def test_the_releases_rewards():
    signed, teach = play([TWO, TWO, TWO, NONE], UP, reward="signed", coach_reward="advantage", resample=False)
    assert rewards(signed, "player") == [[1, 1, 1, -1]]
    (group,) = signed.streams[1].groups
    lengths = [len(s.completion.token_ids) for s in group.samples]
    (advantages,) = stream_advantages(signed.streams[1])
    weighted = sum(a * n for a, n in zip(advantages, lengths, strict=True)) / sum(lengths)
    assert rewards(teach, "coach") == [[pytest.approx(50 * weighted)]]
    _, teach = play(SPLIT, UP, coach_reward="delta")
    assert rewards(teach, "coach") == [[50.0]]


def test_tasks_are_drawn_until_there_are_enough_and_the_first_are_taken():
    # The first batch: too easy and kept; the second: both kept. Of three kept tasks, two are taken.
    coach = ["What is 1 + 1?", "Two and nothing?", "Three less one?", "One twice?"]
    (learn,) = play([TWO] * 4 + SPLIT * 3, UP, 1, coach, problems_per_step=2, resample=False)
    assert [g.problem.id for g in learn.streams[1].groups] == ["q-0-1", "q-0-2"]
    assert [g.samples[0].info["fate"] for g in learn.streams[0].groups] == ["too_easy", "kept", "kept", "kept"]
    found = {"draws": 4, "kept": 3, "too_easy": 1, "short": 0, "acceptance": 0.75}
    assert {key: learn.log[key] for key in found} == found


def test_draws_are_bounded_and_a_short_round_is_warned_of():
    options = {"problems_per_step": 2, "max_draws": 3, "resample": False}
    ((learn,), (given_up,)) = (play(said, UP, 1, **options) for said in (SPLIT + [TWO] * 20, [TWO]))
    assert (learn.log["draws"], learn.log["short"], learn.log["too_easy"]) == (6, 1, 5)
    assert (given_up.log["draws"], given_up.log["short"]) == (2, 2)
    assert [s.role for s in given_up.streams] == ["coach"]
    said = ["\n".join(small("cpmobius", **options).warnings({**learn.log, "short": short})) for short in (1, 0)]
    assert ["only 1 of the 2 tasks of this round were found in 6 draws" in lines for lines in said] == [True, False]


def test_rounds_without_a_task_or_without_progress_move_nothing():
    learn, teach = play([*SPLIT, TWO, TWO, THREE, THREE], UP)  # the fresh answers have no majority
    assert [s.role for s in learn.streams] == ["coach"]
    assert (learn.log["kept"], learn.log["lost_majority"], learn.log["usable"]) == (1, 1, 0)
    assert teach.streams == []
    _, same, _, again = play(SPLIT, [RIGHT, WRONG, WRONG, WRONG], 4)
    assert (same.streams, same.log["delta"], same.log["rounds_without_progress"]) == ([], 0, 1)
    assert (again.streams, again.log["rounds_without_progress"]) == ([], 2)
    learn, teach = play([NONE], UP, max_draws=1)
    assert (teach.streams, teach.log["delta"], learn.log["empty_steps"]) == ([], 0, 1)
    assert [role for role, _, _ in play.asked].count("player, measured") == 1  # nothing is measured again


def test_the_same_problems_are_measured_once_before_and_once_a_round():
    play(SPLIT, UP, 4)
    measured = [prompts for role, prompts, _ in play.asked if role == "player, measured"]
    assert len(measured) == 3
    assert measured[0] == measured[1] == measured[2]
    assert "What is 1 - 1?" in measured[0][0]


def rights(*counts: int) -> list[str]:
    """The player's answers on the validation set each time: this many of four right."""
    return [RIGHT if place < count else WRONG for count in counts for place in range(4)]


KEYS = {"best": "best_validation_accuracy", "stale": "stale_rounds", "delta": "delta"}
TWICE, LATE = {"rollback": 2}, {"rollback": 2, "rollback_from": 3}
KEPT, BACK = Snapshot("player", BEST), Restore("player", BEST, reset_optimizer=True)


@pytest.mark.parametrize(
    ("options", "right", "actions", "log"),
    [
        # Worse, with patience left, then without: the player with 3 right is restored, and 2 are 25 points less.
        (TWICE, (1, 3, 2, 1, 2), (KEPT, None, BACK, None), {"delta": [50, *[-25] * 3], "stale": [0, 1, 0, 1]}),
        ({"rollback": 1}, (1, 3, 0, 1, 1), (KEPT, BACK, BACK, BACK), {}),
        # Better than the round before, but stale for two rounds and below the best score of 3: that one is restored.
        (TWICE, (1, 3, 0, 1, 1, 0), (KEPT, None, BACK, None, BACK), {"delta": [50, -75, 25, -50, -25]}),
        # As good as the best: nothing is restored, whatever the patience.
        ({"rollback": 1}, (1, 3, 3, 3, 2), (KEPT, None, None, BACK), {"stale": [0, 1, 2, 0]}),
        # The best score is the one before training; the last delta is relative to the restored player.
        (TWICE, (3, 1, 2, 2), (None, BACK, None), {"best": [75] * 3, "delta": [-50, 25, -25]}),
        # Below the best in every round; two in a row count from the third round on.
        (LATE, (3, *[1] * 6), (None, None, None, BACK, None, BACK), {"stale": [0, 0, 1, 0, 1, 0]}),
        # A new best before that is kept as well.
        ({"rollback": 1, "rollback_from": 9}, (1, 2, 0, 0), (KEPT, None, None), {}),
        ({}, (1, 3, 0, 0, 2), (None,) * 4, {}),
    ],
)
def test_the_best_player_is_kept_and_put_back(options, right, actions, log):
    taught = play(SPLIT, rights(*right), 2 * len(actions), **options)[1::2]
    assert [list(e.actions) for e in taught] == [[action] if action else [] for action in actions]
    assert {key: [e.log[KEYS[key]] for e in taught] for key in log} == log
    if options:
        assert [e.log["restored"] for e in taught] == [action is BACK for action in actions]
    assert small("cpmobius", **options).kept_at_start() == ([KEPT] if options else [])


def test_several_answers_to_each_validation_problem():
    # Of two answers to each of four problems: 1, 1, 0, 0 right before, 2, 1, 1, 0 after.
    before, after = [RIGHT, WRONG, RIGHT, WRONG, *[WRONG] * 4], [RIGHT, RIGHT, RIGHT, WRONG, WRONG, RIGHT, WRONG, WRONG]
    learn, teach = play(SPLIT, before + after, validation_samples=2)
    assert [(n, len(prompts)) for role, prompts, n in play.asked if role == "player, measured"] == [(2, 4)] * 2
    assert (learn.log["validation_accuracy"], teach.log["validation_accuracy"], teach.log["delta"]) == (25, 50, 25)
    # Changes 1, 0, 1, 0 of 2: variance 1/3 over 4, and half of the root.
    assert teach.log["delta_error"] == pytest.approx(100 * (1 / 12) ** 0.5 / 2)
    assert rewards(teach, "coach") == [[0.75 * 25]]


def test_the_most_it_samples():
    # A round: 20 draws of 2 tasks with 3 answers each, and 3 fresh answers to 2 kept tasks; its second step, nothing.
    assert [small("cpmobius", 3, 2).most_rollouts(steps) for steps in (0, 1, 2, 3)] == [0, 166, 166, 332]
    assert small("cpmobius", 3, 2, resample=False, max_draws=1).most_rollouts(2) == 8

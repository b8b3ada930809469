"""The arithmetic of a game: what becomes of an attacked step, and what its roles earn by that."""

from collections.abc import Sequence

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games.spc.cases import Case, Trial, critic_reward, read_critique, rewrite_reply
from lite_selfplay.games.spc.steps import split_steps
from tests.made import completion

PROBLEM = Problem("eggs", "A duck lays 16 eggs. Ann eats 3 and sells the rest at $2 each. What does she get?", "26")
STEPS = split_steps("Ann sells 16 - 3 = 13 eggs.\n\nShe gets 13 * 2 = 26 dollars. \\boxed{26}")
ATTACK = rewrite_reply("arithmetic slip", "13 becomes 12.", "Ann sells 16 - 3 = 12 eggs.")
CORRECT, INCORRECT = "All holds. <answer>Correct</answer>", "16 - 3 is 13. <answer>Incorrect</answer>"


def case(
    original: Trial, attack: str | None = None, sneaky: Trial | None = None, critiques: Sequence[str] = ()
) -> Case:
    """The first step of the solution, and what was seen of it."""
    said = [completion(text) for text in (attack or "", *critiques)]
    return Case(
        "case",
        PROBLEM,
        tuple(STEPS[:1]),
        "base",
        original,
        None if attack is None else said[0],
        sneaky,
        tuple(said[1:]),
    )


@pytest.mark.parametrize(("right", "of", "stable"), [(3, 4, True), (2, 4, False), (6, 8, True), (5, 8, False)])
def test_an_original_step_must_be_solved_from_in_three_of_four(right: int, of: int, stable: bool):
    assert case(Trial(right, of)).is_stable() is stable


def test_one_right_completion_makes_a_sneaky_step_harmless():
    assert case(Trial(4, 4), ATTACK, Trial(0, 4)).is_valid
    assert not case(Trial(8, 8), ATTACK, Trial(1, 8)).is_valid


@pytest.mark.parametrize(("right", "of"), [(-1, 4), (5, 4), (0, 0)])
def test_counts_that_cannot_be(right: int, of: int):
    with pytest.raises(ValueError, match="at least one completion"):
        Trial(right, of)


def test_the_bar_for_a_stable_step_can_be_another():
    assert case(Trial(2, 4), "no tags").fate(stable=0.5) == "refused"
    assert case(Trial(3, 4), "no tags").fate(stable=1.0) == "unstable"


@pytest.mark.parametrize(
    "attacked", [case(Trial(4, 4)), case(Trial(4, 4), ATTACK), case(Trial(4, 4), ATTACK, Trial(0, 4))]
)
def test_a_game_that_is_not_over_has_no_fate(attacked: Case):
    with pytest.raises(ValueError, match=r"has no rewrite|was not tried|was not judged"):
        attacked.fate()


@pytest.mark.parametrize(("text", "reward"), [(CORRECT, 1), (INCORRECT, -1), ("hm", -1)])
def test_a_correct_step_is_accepted_or_wrongly_rejected(text: str, reward: float):
    assert critic_reward(read_critique(completion(text)), correct=True) == reward

"""What SPC's roles are asked, how their replies are read, and what becomes of an attacked step."""

from collections.abc import Sequence
from typing import Any

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games.spc.cases import (
    KINDS,
    OPENING,
    Case,
    Critique,
    Rewrite,
    Trial,
    critic_prompt,
    critic_reward,
    critique_reply,
    read_critique,
    read_rewrite,
    rewrite_reply,
    sneaky_prompt,
    solver_prompt,
)
from lite_selfplay.games.spc.steps import split_steps
from tests.made import completion

ORIGINAL = "She sells 16 - 3 = 13 eggs."
SLIP = rewrite_reply("arithmetic slip", "13 becomes 12.", "She sells 16 - 3 = 12 eggs.")


def rewritten(kind: str, step: str) -> str:
    return f"<error>{kind}</error> <change>c</change> <step>{step}</step>"


def test_prompts_hold_what_the_roles_need():
    sneaky = sneaky_prompt("How many?", "First.\n\n", ORIGINAL)
    assert all(kind in sneaky for kind in KINDS)
    assert len(KINDS) == 5
    assert all(part in sneaky for part in ("How many?", "First.", ORIGINAL, "<step>"))
    critic = critic_prompt("How many?", "", ORIGINAL)
    assert OPENING in critic
    assert "<answer>Correct</answer> or <answer>Incorrect</answer>" in critic
    assert OPENING not in critic_prompt("How many?", "First.", ORIGINAL)
    assert "\\boxed{}" in solver_prompt("How many?")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SLIP, ""),
        (f"<think>{rewritten('no such', 'a')}</think>{SLIP}", ""),
        (rewritten("none", "x") + SLIP, ""),  # the last block counts
        (rewritten(" Arithmetic\nSlip. ", "12 eggs"), ""),
        (f"<think>{SLIP}", "off_format"),
        ("She sells 12 eggs.", "off_format"),
        ("<step>12 eggs</step>", "off_format"),
        ("<error>arithmetic slip</error><step>12 eggs", "off_format"),
        (rewritten("typo", "12 eggs"), "unknown_kind"),
        (rewritten("arithmetic slip", " "), "empty"),
        (rewritten("arithmetic slip", "She sells 16-3 = 13 eggs."), "unchanged"),
        (rewritten("arithmetic slip", "She wrongly sells 12 eggs."), "announces"),
        (rewritten("arithmetic slip", "By mistake she sells 12."), "announces"),
        (rewritten("arithmetic slip", "12 eggs, so \\boxed{24}."), "answers"),
        (rewritten("arithmetic slip", "12. <answer>24</answer>"), "answers"),
    ],
)
def test_why_a_rewrite_cannot_be_used(text: str, reason: str):
    assert read_rewrite(completion(text), ORIGINAL).reason == reason


def test_what_a_rewrite_may_hold():
    read = read_rewrite(completion(SLIP), ORIGINAL)
    assert read == Rewrite("She sells 16 - 3 = 12 eggs.", "arithmetic slip")
    rewrite = rewritten("invalid inference", "The error is 3, so \\boxed{3}.")  # what the original has
    assert read_rewrite(completion(rewrite), "The error is 2, so \\boxed{2}.").reason == ""


@pytest.mark.parametrize(
    ("text", "judgement", "reason"),
    [
        (critique_reply("So far good.", "13 is right.", True), "correct", ""),
        (critique_reply("So far good.", "13 is wrong.", False), "incorrect", ""),
        ("<Answer>INCORRECT</Answer>", "incorrect", ""),
        ("<answer> **correct**. </answer> That is all.", "correct", ""),
        ("<think><answer>Correct</answer></think><answer>Incorrect</answer>", "incorrect", ""),
        ("<answer>yes</answer> I mean <answer>correct</answer>", "correct", ""),
        ("The step is correct.", None, "off_format"),
        ("<answer>Correct", None, "off_format"),
        ("<think><answer>Correct</answer>", None, "off_format"),
        ("<answer>It is not correct</answer>", None, "unclear"),
        ("<answer></answer>", None, "unclear"),
        ("<answer>Correct</answer> or <answer>Incorrect</answer>", None, "contradictory"),
    ],
)
def test_verdicts(text: str, judgement: str | None, reason: str):
    assert read_critique(completion(text)) == Critique(judgement, reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "rewrite", "critique"),
    [
        (completion("<answer>Correct</answer>", prefill="<think>"), "off_format", "off_format"),  # still reasoning
        (completion("no</think><answer>Correct</answer>", prefill="<think>"), "off_format", ""),
        (completion("<error>arith", "length"), "truncated", "truncated"),
        (completion(SLIP, "length"), "", "truncated"),
        (completion("", "prompt_too_long"), "prompt_too_long", "prompt_too_long"),
    ],
)
def test_replies_that_were_opened_by_the_template_cut_off_or_never_asked_for(said: Any, rewrite: str, critique: str):
    assert (read_rewrite(said, ORIGINAL).reason, read_critique(said).reason) == (rewrite, critique)


def test_agreement():
    assert Critique("correct").agrees(True)
    assert Critique("incorrect").agrees(False)
    assert not Critique("correct").agrees(False)
    assert not Critique().agrees(True)
    assert not Critique().agrees(False)


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

"""The prompts of SPC's roles, how their replies are read, and the outcomes of an attacked step."""

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
    read_critique,
    read_rewrite,
    sneaky_prompt,
    solver_prompt,
)
from tests.made import completion

ORIGINAL = "She sells 16 - 3 = 13 eggs."


def rewritten(kind: str, step: str) -> str:
    return f"<error>{kind}</error> <change>c</change> <step>{step}</step>"


SLIP = rewritten("arithmetic slip", "She sells 16 - 3 = 12 eggs.")


def test_prompts_hold_what_the_roles_need():
    sneaky = sneaky_prompt("How many?", "First.\n\n", ORIGINAL)
    assert len(KINDS) == 5
    assert all(part in sneaky for part in (*KINDS, "How many?", "First.", ORIGINAL, "<step>"))
    critic = critic_prompt("How many?", "", ORIGINAL)
    assert OPENING in critic
    assert "<answer>Correct</answer> or <answer>Incorrect</answer>" in critic
    assert OPENING not in critic_prompt("How many?", "First.", ORIGINAL)
    assert "\\boxed{}" in solver_prompt("How many?")


REWRITES = {
    SLIP: "",
    f"<think>{rewritten('no such', 'a')}</think>{SLIP}": "",
    rewritten("none", "x") + SLIP: "",  # the last block counts
    rewritten(" Arithmetic\nSlip. ", "12 eggs"): "",
    f"<think>{SLIP}": "off_format",
    "She sells 12 eggs.": "off_format",
    "<step>12 eggs</step>": "off_format",
    "<error>arithmetic slip</error><step>12 eggs": "off_format",
    rewritten("typo", "12 eggs"): "unknown_kind",
    rewritten("arithmetic slip", " "): "empty",
    rewritten("arithmetic slip", "She sells 16-3 = 13 eggs."): "unchanged",
    rewritten("arithmetic slip", "She wrongly sells 12 eggs."): "announces",
    rewritten("arithmetic slip", "By mistake she sells 12."): "announces",
    rewritten("arithmetic slip", "12 eggs, so \\boxed{24}."): "answers",
    rewritten("arithmetic slip", "12. <answer>24</answer>"): "answers",
}


def test_why_a_rewrite_cannot_be_used():
    assert {text: read_rewrite(completion(text), ORIGINAL).reason for text in REWRITES} == REWRITES


def test_what_a_rewrite_may_hold():
    read = read_rewrite(completion(SLIP), ORIGINAL)
    assert read == Rewrite("She sells 16 - 3 = 12 eggs.", "arithmetic slip")
    rewrite = rewritten("invalid inference", "The error is 3, so \\boxed{3}.")  # what the original has
    assert read_rewrite(completion(rewrite), "The error is 2, so \\boxed{2}.").reason == ""


@pytest.mark.parametrize(
    ("text", "judgement", "reason"),
    [
        ("So far good. 13 is right.\n\n<answer>Correct</answer>", "correct", ""),
        ("So far good. 13 is wrong.\n\n<answer>Incorrect</answer>", "incorrect", ""),
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
def test_a_critique_agrees_or_not_and_is_paid_for_it(text: str, judgement: str | None, reason: str):
    read = read_critique(completion(text))
    assert read == Critique(judgement, reason)  # type: ignore[arg-type]
    assert [read.agrees(right) for right in (True, False)] == [judgement == "correct", judgement == "incorrect"]
    assert critic_reward(read, correct=True) == (1 if judgement == "correct" else -1)


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


PROBLEM = Problem("eggs", "A duck lays 16 eggs. Ann eats 3 and sells the rest at $2 each. What does she get?", "26")
ATTACK = rewritten("arithmetic slip", "Ann sells 16 - 3 = 12 eggs.")


def case(original: Trial, attack: str | None = None, sneaky: Trial | None = None) -> Case:
    """The first step of a solution, and its trials."""
    attacked = None if attack is None else completion(attack)
    return Case("case", PROBLEM, ("Ann sells 16 - 3 = 13 eggs.\n\n",), "base", original, attacked, sneaky, ())


def test_which_steps_are_stable_and_which_sneaky_steps_are_errors():
    """Three of four completions from a stable step are right, and none from a sneaky one."""
    tried = [case(Trial(right, of)).is_stable() for right, of in ((3, 4), (2, 4), (6, 8), (5, 8))]
    assert tried == [True, False, True, False]
    assert case(Trial(2, 4), "no tags").fate(stable=0.5) == "refused"
    assert case(Trial(3, 4), "no tags").fate(stable=1.0) == "unstable"
    assert case(Trial(4, 4), ATTACK, Trial(0, 4)).is_valid
    assert not case(Trial(8, 8), ATTACK, Trial(1, 8)).is_valid


def test_counts_that_cannot_be_and_an_error_that_no_critic_has_judged():
    for right, of in ((-1, 4), (5, 4), (0, 0)):
        with pytest.raises(ValueError, match="at least one completion"):
            Trial(right, of)
    assert case(Trial(4, 4), ATTACK, Trial(0, 4)).fate() == "undecided"

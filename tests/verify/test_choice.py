"""Answers that are letters: which option of a multiple choice a completion names, and the toy task's letters."""

from typing import Any

import pytest

from lite_selfplay.data import Problem, Verdict
from lite_selfplay.errors import TaskError
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.choice import chosen_letter
from tests.made import completion

OPTIONS = ["12 m/s", r"$\frac{1}{2}$ of it", "Hydrogen", "none of these"]


READ: dict[str | None, tuple[str | None, ...]] = {
    "C": (
        *("C", "c", "(C)", "[C]", "C.", "C)", r"\text{C}", r"\textbf{(C)}", "$C$", "**C**"),
        *("C. Hydrogen", "(C) Hydrogen", "(C): Hydrogen", "Option C", "Hydrogen", "hydrogen."),
    ),
    "D": ("answer (d)", "None of  these"),
    "B": (r"\frac{1}{2} of it",),
    None: ("E", "C or D", "C, D", "CD", "Helium", "A large one", "", None),
}


@pytest.mark.parametrize(("letter", "answer"), [(letter, answer) for letter in READ for answer in READ[letter]])
def test_the_letter_of_an_answer(letter: str | None, answer: str | None) -> None:
    assert chosen_letter(answer, OPTIONS) == letter


def test_options_with_one_text_are_told_apart_by_letter_alone() -> None:
    assert chosen_letter("x", ["x", "x", "y"]) is None
    assert chosen_letter("b", ["x", "x", "y"]) == "B"


def judge(text: str, **changes: Any) -> Any:
    problem = Problem("p", "Which?", "C", kind="choice", extra={"options": OPTIONS, **changes})
    with Verifier() as verifier:
        return verifier.verify([(completion(text), problem)])[0]


@pytest.mark.parametrize(
    ("text", "correct", "answer", "reason"),
    [
        ("So <answer>C</answer>", True, "C", ""),
        ("So <answer>(c) Hydrogen</answer>", True, "C", ""),
        (r"It is \boxed{\text{C}}.", True, "C", ""),
        ("The answer is (C).", True, "C", ""),
        ("<answer>Hydrogen</answer>", True, "C", ""),
        ("<answer>B</answer>", False, "B", "wrong"),
        ("<answer>C or D</answer>", False, "C or D", "no_answer"),
        ("I do not know.", False, None, "no_answer"),
        ("<think>It is C", False, None, "no_answer"),
    ],
)
def test_verdicts(text: str, correct: bool, answer: str | None, reason: str) -> None:
    verdict = judge(text)
    assert (verdict.correct, verdict.score, verdict.answer, verdict.reason) == (correct, float(correct), answer, reason)


def test_a_problem_without_options() -> None:
    with pytest.raises(TaskError, match="multiple-choice problem p has no options"):
        judge("<answer>C</answer>", options=[])


@pytest.mark.parametrize(
    ("text", "prefill", "found", "well_formed"),
    [
        ("zzcz", "", "c", False),
        ("ABC", "", None, False),
        ("", "abc", None, False),  # what was there already is no answer
        ("</think><answer>a</answer>", "<think>", "h", True),
    ],
)
def test_any_letter_that_the_toy_task_names_is_right(text: str, prefill: str, found: str, well_formed: bool) -> None:
    problem = Problem("p", "?", "abcdefgh", kind="letters")
    with Verifier() as verifier:
        (verdict,) = verifier.verify([(completion(text, prefill=prefill), problem)], thinks=True)
    right = found is not None
    assert verdict == Verdict(right, float(right), found, well_formed, "" if right else "wrong")


@pytest.mark.parametrize("answer", ["", None, 5, ["a"]])
def test_a_problem_without_letters(answer: object) -> None:
    with Verifier() as verifier, pytest.raises(TaskError, match="letters"):
        verifier.verify([(completion("a"), Problem("p", "?", answer, kind="letters"))])

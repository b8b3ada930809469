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
    # Options with one text are told apart by their letters alone.
    assert [chosen_letter(each, ["x", "x", "y"]) for each in ("x", "b")] == [None, "B"]


def judge(text: str, **changes: Any) -> Any:
    problem = Problem("p", "Which?", "C", kind="choice", extra={"options": OPTIONS, **changes})
    with Verifier() as verifier:
        return verifier.verify([(completion(text), problem)])[0]


@pytest.mark.parametrize(
    ("text", "correct", "answer", "reason"),
    [
        ("So <answer>C</answer>", True, "C", ""),
        (r"It is \boxed{\text{C}}.", True, "C", ""),
        ("The answer is (C).", True, "C", ""),
        ("<answer>B</answer>", False, "B", "wrong"),
        ("<answer>C or D</answer>", False, "C or D", "no_answer"),
        ("I do not know.", False, None, "no_answer"),
        ("<think>It is C", False, None, "no_answer"),
    ],
)
def test_verdicts(text: str, correct: bool, answer: str | None, reason: str) -> None:
    verdict = judge(text)
    assert (verdict.correct, verdict.score, verdict.answer, verdict.reason) == (correct, float(correct), answer, reason)


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


def test_a_problem_without_options_or_letters() -> None:
    with pytest.raises(TaskError, match="multiple-choice problem p has no options"):
        judge("<answer>C</answer>", options=[])
    for answer in ("", None, 5, ["a"]):
        with Verifier() as verifier, pytest.raises(TaskError, match="letters"):
            verifier.verify([(completion("a"), Problem("p", "?", answer, kind="letters"))])

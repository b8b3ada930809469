"""Checking answers that are letters: the option of a multiple choice, or any letter named by the toy task `letters`."""

import re
import string
from collections.abc import Sequence
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.checking import Checking, verdict
from lite_selfplay.verify.extract import AnswerFormat, completion_text, extract_answer
from lite_selfplay.verify.latex import plain

KIND = "choice"

_MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol)\{([^{}]*)\}|[$*`]")
_LABEL = re.compile(
    r"(?:(?:option|choice|answer)\s+)?[(\[]?([A-Za-z]|[1-9]\d?)[)\]]?(?:\s*[).:\-]+(?P<rest>\s+.*)?)?",
    re.DOTALL | re.IGNORECASE,
)
# The labels of options, in their order.
LETTERS = tuple(string.ascii_uppercase)
NUMBERS = tuple(map(str, range(1, len(LETTERS) + 1)))


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of problems of kind `choice`, whose answer is a label (a letter, or a number as text) and whose
    `extra` has the options. The reason is empty, "wrong", or "no_answer" if no option is named. Raises TaskError for a
    problem without options."""
    return [_judge(completion, problem, expected) for completion, problem in pairs]


def check_letters(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of the toy task `letters`: right if the sampled text has any letter of the answer, in its case.

    The verdict's `answer` is the first such letter. A random model solves about half of these problems. Raises
    TaskError unless the answer is a non-empty string.
    """
    return [_first_letter(completion, problem.answer, expected) for completion, problem in pairs]


def label_in(text: str, labels: Sequence[str], *, alone: bool = False) -> str | None:
    """The label in a text such as `C`, `(C)` or `C. 42 m`, with `alone` only if nothing follows it; None without one of
    these labels."""
    match = _LABEL.fullmatch(_plain(text))
    named = match[1].upper() if match and not (alone and match["rest"]) else None
    return named if named in labels else None


def labels_for(options: Sequence[str]) -> Sequence[str]:
    """Letters; numbers if several options are themselves letters, as blood groups are, among them one of these."""
    alone = [len(text := _plain(option)) == 1 and text.isalpha() for option in options]
    taken = any(label_in(option, LETTERS[: len(options)], alone=True) for option in options)
    return NUMBERS if taken and sum(alone) > 1 else LETTERS


def chosen_letter(answer: str | None, options: Sequence[str], labels: Sequence[str] = LETTERS) -> str | None:
    """The label that a written answer names: `C`, `(C)`, `C. 42 m`, or the text of the third option; else None. A label
    is read before the texts."""
    if answer is None:
        return None
    labels, text = labels[: len(options)], _plain(answer)
    spoken = [_plain(option).casefold() for option in options]
    alone = label_in(text, labels, alone=True)
    if alone is None and spoken.count(text.casefold()) == 1:
        return labels[spoken.index(text.casefold())]
    return alone or label_in(text, labels)


def unproven(problem: Problem) -> str | None:
    """The first label of a problem that the checker does not read as its own option, or judges unlike the reference;
    None if each label is read, and only the right one is right."""
    labels = (LETTERS if problem.answer in LETTERS else NUMBERS)[: len(problem.extra["options"])]
    judged = {label: _judge(f"<answer>{label}</answer>", problem, AnswerFormat()) for label in labels}
    return next((each for each, v in judged.items() if v.answer != each or v.correct != (each == problem.answer)), None)


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub(r"\1", plain(text)).split()).rstrip(".")


def _first_letter(completion: Completion, letters: Any, expected: AnswerFormat) -> Verdict:
    if not isinstance(letters, str) or not letters:
        raise TaskError(f"a problem of kind 'letters' needs a string of letters as its answer, got {letters!r}")
    found = next((character for character in completion.text if character in letters), None)
    return verdict(completion, expected, found, "" if found else "wrong")


def _judge(completion: str | Completion, problem: Problem, expected: AnswerFormat) -> Verdict:
    options = problem.extra.get("options")
    if not options or not isinstance(problem.answer, str):
        raise TaskError(f"the multiple-choice problem {problem.id} has no options, or no label as its answer")
    answer = extract_answer(plain(completion_text(completion)), block_only=expected.block_only)
    letter = chosen_letter(answer, options, NUMBERS if problem.answer in NUMBERS else LETTERS)
    reason = "" if letter == problem.answer else "no_answer" if letter is None else "wrong"
    return verdict(completion, expected, letter or answer, reason)

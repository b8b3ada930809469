"""Checking answers that are letters: the option of a multiple choice, or any letter named by the toy task `letters`."""

import re
from collections.abc import Sequence
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.checking import Checking, verdict
from lite_selfplay.verify.extract import AnswerFormat, completion_text, extract_answer
from lite_selfplay.verify.latex import plain

KIND = "choice"

_MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol)\{([^{}]*)\}|[$*`]")
_LETTER = re.compile(
    r"(?:(?:option|choice|answer)\s+)?[(\[]?([A-Za-z])[)\]]?(?:\s*[).:\-]+(?:\s+.*)?)?", re.DOTALL | re.IGNORECASE
)


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of problems of kind `choice`, whose answer is a letter and whose `extra` has the options. The
    reason is empty, "wrong", or "no_answer" if no option is named. Raises TaskError for a problem without options."""
    return [_judge(completion, problem, expected) for completion, problem in pairs]


def check_letters(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of the toy task `letters`: right if the sampled text has any letter of the answer, in its case.

    The verdict's `answer` is the first such letter. A random model solves about half of these problems. Raises
    TaskError unless the answer is a non-empty string.
    """
    return [_first_letter(completion, problem.answer, expected) for completion, problem in pairs]


def chosen_letter(answer: str | None, options: Sequence[str]) -> str | None:
    """The letter that a written answer names: `C`, `(C)`, `C. 42 m`, or the text of the third option; else None."""
    if answer is None:
        return None
    text = _plain(answer)
    spoken = [_plain(option).casefold() for option in options]
    if spoken.count(text.casefold()) == 1:
        return chr(ord("A") + spoken.index(text.casefold()))
    match = _LETTER.fullmatch(text)
    letter = match[1].upper() if match else None
    return letter if letter is not None and ord(letter) - ord("A") < len(options) else None


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub(r"\1", plain(text)).split()).rstrip(".")


def _first_letter(completion: Completion, letters: Any, expected: AnswerFormat) -> Verdict:
    if not isinstance(letters, str) or not letters:
        raise TaskError(f"a problem of kind 'letters' needs a string of letters as its answer, got {letters!r}")
    found = next((character for character in completion.text if character in letters), None)
    return verdict(completion, expected, found, "" if found else "wrong")


def _judge(completion: Completion, problem: Problem, expected: AnswerFormat) -> Verdict:
    options = problem.extra.get("options")
    if not options or not isinstance(problem.answer, str):
        raise TaskError(f"the multiple-choice problem {problem.id} has no options, or no letter as its answer")
    answer = extract_answer(plain(completion_text(completion)), block_only=expected.block_only)
    letter = chosen_letter(answer, options)
    reason = "" if letter == problem.answer else "no_answer" if letter is None else "wrong"
    return verdict(completion, expected, letter or answer, reason)

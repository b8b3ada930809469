r"""Checking mathematical answers: extract the answer from a completion and compare it with its reference.

No algebra is done on an answer, so the work is bounded by its length and needs no separate process.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.checking import Checking, verdict
from lite_selfplay.verify.exact import counts_another, judge, restates
from lite_selfplay.verify.extract import AnswerFormat, completion_text, extract_answer
from lite_selfplay.verify.keys import MAX_CHARACTERS, answer_key
from lite_selfplay.verify.latex import plain, values

__all__ = ["REASONS", "answer_key", "check", "check_all", "check_batch", "extract_answer", "references"]

# Every `reason` that a verdict of this module can have; a correct answer's is empty.
REASONS = ("", "wrong", "no_answer", "hedged", "restated", "unparsable")


def check(
    completion: str | Completion, answer: Any, *, thinks: bool = False, block_only: bool = False, problem: str = ""
) -> Verdict:
    r"""Judge a completion against a reference answer.

    Args:
        completion: The text, or a Completion, whose prefill counts as part of it.
        answer: The reference: a number or a string (LaTeX or plain; in a GSM8K solution the part after "####"), a list
            of values that are all required, in any order, or {"any_of": [...]}, references of which one is enough.
        thinks: Whether the format requires a reasoning block; affects `well_formed` only.
        block_only: Accept an answer in an `<answer>` block only.
        problem: The problem's text, if known: a noun in the answer must then occur there or in the reference.

    Returns a verdict with a score of 0 or 1 and a reason from `REASONS`. An answer with several different values is
    "hedged" if the reference has only one. An answer that leaves an operation unevaluated which its reference evaluates
    ("48+24" for 72) is "restated". Raises TaskError if there is no reference.
    """
    given = extract_answer(plain(completion_text(completion)), block_only=block_only)
    return verdict(completion, AnswerFormat(thinks, block_only), given, _reason(references(answer), given, problem))


def check_all(
    pairs: Sequence[tuple[str | Completion, Any]], *, thinks: bool = False, block_only: bool = False
) -> list[Verdict]:
    """Judge (completion, reference) pairs like `check`."""
    return [check(completion, answer, thinks=thinks, block_only=block_only) for completion, answer in pairs]


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of problems of kind `math`; `checking` is not used."""
    return [check(completion, problem.answer, problem=problem.text, **vars(expected)) for completion, problem in pairs]


def references(answer: Any) -> list[list[str]]:
    """A reference answer as alternatives, each a list of values that are all required. Raises TaskError for None. A
    reference without any value gives an empty list, which no answer matches."""
    if answer is None:
        raise TaskError("the problem has no reference answer to check against")
    if isinstance(answer, Mapping):
        if set(answer) != {"any_of"}:
            raise TaskError(
                f'a reference answer that is a mapping must be {{"any_of": [...]}}, got keys {list(answer)}'
            )
        return [alternative for item in answer["any_of"] for alternative in references(item)]
    items = answer if isinstance(answer, list | tuple | set | frozenset) else [answer]
    texts = [str(item).rpartition("####")[2] for item in items]
    # An overlong reference is not split: it is refused later.
    return [[value for text in texts for value in (values(text) if len(text) <= MAX_CHARACTERS else [text])]]


def _reason(wanted: list[list[str]], given: str | None, problem: str) -> str:
    """Why an answer is wrong; empty if it is right."""
    if given is None:
        return "no_answer"
    size = max(len(given), sum(len(value) for alternative in wanted for value in alternative))
    if size > MAX_CHARACTERS or not any(wanted):
        return "unparsable"
    if judge(wanted, given):
        return "wrong" if counts_another([*chain(*wanted)], given, problem) else ""
    if any(restates(alternative, given) for alternative in wanted):
        return "restated"
    wants_one = all(len(alternative) == 1 for alternative in wanted)
    return "hedged" if wants_one and len(values(given)) > 1 else "wrong"

"""The checker of the `letters` toy task: a completion is right if it contains one of the letters the problem names.

A randomly initialised model solves about half of these problems, so that a run of such a model can learn something.
"""

from collections.abc import Sequence
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.checking import Checking
from lite_selfplay.verify.extract import AnswerFormat
from lite_selfplay.verify.format import well_formed


def check(completion: str | Completion, answer: Any, thinks: bool = False) -> Verdict:
    """Judge a completion by whether its sampled text contains any letter of `answer` (case matters).

    The verdict's `answer` is the first such letter. Raises TaskError unless `answer` is a non-empty string.
    """
    if not isinstance(answer, str) or not answer:
        raise TaskError(f"a problem of kind 'letters' needs a string of letters as its answer, got {answer!r}")
    text, prefill = (completion, "") if isinstance(completion, str) else (completion.text, completion.prefill)
    found = next((character for character in text if character in answer), None)
    return Verdict(
        correct=found is not None,
        score=float(found is not None),
        answer=found,
        well_formed=well_formed(text, thinks, prefill),
        reason="" if found else "wrong",
    )


def check_all(pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking) -> list[Verdict]:
    """Judge a batch; `checking` is not used."""
    return [check(completion, problem.answer, expected.thinks) for completion, problem in pairs]

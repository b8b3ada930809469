"""Problems are refused as they are read where no answer could be right, or every one would be."""

from collections.abc import Iterable
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.math import check_all, references
from lite_selfplay.verify.programs.cases import read_tests
from lite_selfplay.verify.programs.checker import KIND as PROGRAM
from lite_selfplay.verify.programs.idle import faults


def checked(found: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """The problems, each given after what names it in an error.

    Raises TaskError for a reference that no answer matches, and for tests that no program fails.
    """
    pairs = list(found)
    for where, problem in pairs:
        if problem.kind == "math" and problem.answer is not None and not _can_be_right(problem.answer):
            short = str(problem.answer)[:80]
            raise TaskError(
                f"{where}: no answer can be right: the reference {short!r} as an answer is not right itself"
            )
    tested = [(where, read_tests(problem.answer, where)) for where, problem in pairs if problem.kind == PROGRAM]
    for (where, _), fault in zip(tested, faults([tests for _, tests in tested]), strict=True):
        if fault:
            raise TaskError(f"{where}: {fault}")
    return [problem for _, problem in pairs]


def _can_be_right(answer: Any) -> bool:
    given = [f"<answer>{', '.join(values)}</answer>" for values in references(answer)]
    return any(verdict.correct for verdict in check_all([(text, answer) for text in given]))

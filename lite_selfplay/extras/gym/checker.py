"""Checking answers to problems of the reasoning-gym package, whose data sets each score answers by their own rule.

Some of these rules evaluate the answer as code or algebra, so they run in processes that can be killed, never here.
"""

import base64
import dataclasses
import pickle
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import TaskError, UnknownNameError
from lite_selfplay.extras.gym.pool import WorkerPool
from lite_selfplay.verify.checking import Checking
from lite_selfplay.verify.extract import AnswerFormat, completion_text, extract_answer
from lite_selfplay.verify.format import well_formed

KIND = "reasoning-gym"
# A longer text is not an answer, and would only keep the scorer busy.
MAX_CHARACTERS = 10_000

_GIVEN = ("seed", "size")


def open_dataset(name: str, options: Mapping[str, Any], *, seed: int = 0, size: int = 100) -> Any:
    """A data set of the package: rows by index, and `score_answer(answer, row)`.

    Raises TaskError if the package is missing or refuses the options, UnknownNameError if it does not know the name.
    """
    with warnings.catch_warnings():  # its warnings are of no use to users of this library
        warnings.simplefilter("ignore")
        try:
            from reasoning_gym.factory import DATASETS, create_dataset
        except ImportError as error:
            raise TaskError(
                f"tasks of reasoning-gym need a package that cannot be imported ({error}): pip install reasoning-gym"
            ) from None
        if name not in DATASETS:
            raise UnknownNameError("data set of reasoning-gym", name, DATASETS)
        known = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in _GIVEN]
        unknown = next((option for option in options if option not in known), None)
        if unknown is not None:
            raise TaskError(f"{KIND}:{name} has no option {unknown!r}; it takes {', '.join(known) or 'none'}")
        try:
            return create_dataset(name, seed=seed, size=size, **options)
        except Exception as error:  # assertions and anything else that a data set's own checks raise
            given = ", ".join(f"{key}={value}" for key, value in options.items()) or "none"
            raise TaskError(f"{KIND}:{name} refuses its options ({given}): {error or type(error).__name__}") from None


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions by the scorers of the problems' data sets, which run in processes of their own.

    A score of 1 is a correct answer. Raises TaskError for a problem that does not come from such a data set.
    """
    answers = [extract_answer(completion_text(completion), block_only=expected.block_only) for completion, _ in pairs]
    asked: dict[int, dict[str, Any]] = {}
    for index, ((_, problem), answer) in enumerate(zip(pairs, answers, strict=True)):
        question = _question(problem)
        if answer is not None and len(answer) <= MAX_CHARACTERS:
            asked[index] = {**question, "answer": answer}
    pool = checking.kept(KIND, lambda: WorkerPool(checking.workers, checking.deadline, poll=checking.poll))
    outcomes = dict(zip(asked, pool.ask(list(asked.values())), strict=True)) if asked else {}
    return [
        _verdict(
            completion, answer, outcomes.get(index, "no_answer" if answer is None else "unparsable"), expected.thinks
        )
        for index, ((completion, _), answer) in enumerate(zip(pairs, answers, strict=True))
    ]


def _question(problem: Problem) -> dict[str, Any]:
    extra = problem.extra
    if not {"dataset", "options", "entry"} <= set(extra):
        raise TaskError(f"{problem.id} is of kind {KIND!r} and does not say which data set and entry it comes from")
    # Entries contain tuples and fractions, which JSON would change.
    entry = base64.b64encode(pickle.dumps(extra["entry"])).decode()
    return {"dataset": extra["dataset"], "options": dict(extra["options"]), "entry": entry}


def _verdict(completion: Completion, answer: str | None, outcome: str, thinks: bool) -> Verdict:
    kind, _, figure = outcome.partition(" ")
    score = min(1.0, max(0.0, float(figure))) if kind == "score" else 0.0
    reason = {"score": "wrong", "crash": "unparsable"}.get(kind, kind)
    return Verdict(
        correct=score >= 1.0,
        score=score,
        answer=answer,
        well_formed=well_formed(completion.text, thinks, completion.prefill),
        reason="" if score >= 1.0 else reason,
    )

"""`letters`, with answers that are checked for seconds, in the processes that math answers are checked in."""

from collections.abc import Sequence
from dataclasses import replace

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.extras.gym import WorkerPool
from lite_selfplay.tasks import Task
from lite_selfplay.tasks.procedural import Procedural, letters
from lite_selfplay.verify import AnswerFormat, Checking, register_checker
from lite_selfplay.verify.choice import check_letters

KIND = "slow letters"
LONG = r"\int_0^1 x^{2} \cos(x) dx"
"""Its value takes computer algebra two seconds of the processor at first."""


def check_slowly(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Right is what `letters` calls right, and what the processes then say the same of."""
    found = check_letters(pairs, expected, checking)
    answers = [LONG.replace("x", "t") if verdict.correct else LONG.replace("2", "3") for verdict in found]
    workers = checking.kept(KIND, lambda: WorkerPool(checking.workers, checking.deadline, poll=checking.poll))
    outcomes = workers.ask([{"references": [[LONG]], "answer": answer} for answer in answers])
    return [
        replace(verdict, correct=outcome == "same", score=float(outcome == "same"), reason=outcome)
        for verdict, outcome in zip(found, outcomes, strict=True)
    ]


def slow_letters(seed: int, held_out: bool) -> Task:
    """The problems of `letters`."""
    register_checker(KIND, check_slowly)
    plain = letters(seed, held_out, named="4")

    def make(index: int, attempt: int) -> Problem:
        return replace(plain.problems[index], kind=KIND)

    return Task("slow letters", Procedural("slow letters", 1000, held_out, make), 8, procedural=True)

"""`letters`, with answers that are checked for seconds, in processes such as those of reasoning-gym's scorers.

As a program it is such a process.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.extras.gym import WorkerPool
from lite_selfplay.extras.gym.scoring import run
from lite_selfplay.tasks import Task
from lite_selfplay.tasks.procedural import Procedural, letters
from lite_selfplay.verify import AnswerFormat, Checking, register_checker
from lite_selfplay.verify.choice import check_letters

KIND = "slow letters"
SECONDS = 2.0
"""Of the processor, that an answer is checked for."""


def check_slowly(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Right is what `letters` calls right, and what the processes then say the same of."""
    found = check_letters(pairs, expected, checking)
    command = [sys.executable, __file__, str(checking.deadline), "4096"]
    pool = checking.kept(KIND, lambda: WorkerPool(checking.workers, checking.deadline, command=command))
    outcomes = pool.work([{"answer": "same" if verdict.correct else "other"} for verdict in found], checking.poll)
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


def reply_to(question: dict[str, str]) -> dict[str, str]:
    until = time.process_time() + SECONDS
    while time.process_time() < until:
        pass
    return {"outcome": question["answer"]}


if __name__ == "__main__":
    run(lambda: reply_to)

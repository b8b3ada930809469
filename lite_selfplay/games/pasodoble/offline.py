"""Offline PasoDoble's memory: the alternating phases, and the buffer of questions for the solver.

    proposer phase: `proposer_steps` updates, the solver frozen; valid questions enter the buffer
    solver phase:   `solver_steps` updates, the proposer frozen; buffered questions in order, cyclically

Both are plain state, saved as JSON. Source: "Better LLM Reasoning via Dual-Play" (PasoDoble), section 3.6 and
appendices D and G. Ours: a bound on a phase's attempts, so that every phase ends.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lite_selfplay.data import Problem

Phase = Literal["proposer", "solver"]
_STATE = ("phase", "iteration", "updates", "attempts")


class OfflineSchedule:
    """The current phase and its progress. An iteration is a proposer phase and the solver phase after it."""

    def __init__(self, proposer_steps: int = 10, solver_steps: int = 5, attempts: int = 3):
        self._steps: dict[Phase, int] = {"proposer": proposer_steps, "solver": solver_steps}
        self._attempts_a_step = attempts
        self.phase: Phase = "proposer"
        self.iteration = self.updates = self.attempts = 0

    def advance(self, *, updated: bool, buffered: int) -> None:
        """Count a finished step. `updated`: it updated the phase's seat. `buffered`: questions in the buffer.

        A phase ends with its last update, or after `attempts` times as many steps. The solver's also ends when the
        buffer is empty, and is skipped if it is empty at the start.
        """
        self.attempts += 1
        self.updates += updated
        steps = self._steps[self.phase]
        if self.updates >= steps or self.attempts >= steps * self._attempts_a_step:
            self._enter("solver" if self.phase == "proposer" else "proposer")
        if self.phase == "solver" and not buffered:
            self._enter("proposer")

    def _enter(self, phase: Phase) -> None:
        self.phase, self.updates, self.attempts = phase, 0, 0
        self.iteration += phase == "proposer"

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


@dataclass
class Buffered:
    """A question waiting for the solver. `peak`: its best pass rate so far; `stale`: attempts since that rate rose."""

    id: str
    question: str
    answer: str
    peak: float
    stale: int = 0


@dataclass
class QuestionBuffer:
    """Questions with their answers in the order they were added, and a cursor that cycles through them.

    The cursor may be behind the last question: the next question added is then the next one taken.
    """

    questions: list[Buffered] = field(default_factory=list)
    cursor: int = 0

    def __len__(self) -> int:
        return len(self.questions)

    def add(self, problem: Problem, rate: float) -> None:
        """Add a question that was valid when it was proposed, with its pass rate then."""
        self.questions.append(Buffered(problem.id, problem.text, str(problem.answer), rate))

    def take(self, n: int) -> list[Problem]:
        """The next `n` questions, continuing with the first after the last; none if the buffer is empty."""
        places = [(self.cursor + i) % len(self.questions) for i in range(n if self.questions else 0)]
        self.cursor = places[-1] + 1 if places else self.cursor
        taken = [self.questions[place] for place in places]
        return [Problem(held.id, held.question, held.answer) for held in taken]

    def evict(self, rates: Sequence[tuple[str, float]], margin: float = 0.01, patience: int = 3) -> int:
        """Count a step's attempts, given as question ids with pass rates, and drop the questions that are used up.

        A question is dropped if it was solved every time, or if its pass rate did not exceed its peak by more than
        `margin` in the last `patience` attempts (appendix D). A question that occurs several times in the step counts
        as one attempt at its mean pass rate (ours). The first peak is the rate at which the question was proposed
        (ours). Returns the number of dropped questions.
        """
        gone = set[str]()
        for held in self.questions:
            if seen := [rate for name, rate in rates if name == held.id]:
                rate = math.fsum(seen) / len(seen)
                held.peak, held.stale = (rate, 0) if rate > held.peak + margin else (held.peak, held.stale + 1)
                if rate >= 1 or held.stale >= patience:
                    gone.add(held.id)
        self.cursor -= sum(held.id in gone for held in self.questions[: self.cursor])
        self.questions = [held for held in self.questions if held.id not in gone]
        return len(gone)

"""Offline PasoDoble's memory: the phases that take turns, and the buffer of questions that the solver walks.

    proposer phase: `proposer_steps` updates, the solver frozen; valid questions enter the buffer
    solver phase:   `solver_steps` updates, the proposer frozen; buffered questions in order, in a circle

Both are plain state, saved as JSON. Source: "Better LLM Reasoning via Dual-Play" (PasoDoble), section 3.6 and
appendices D and G. Ours: a bound on the attempts of a phase, so that neither can go on for ever.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lite_selfplay.data import Problem

Phase = Literal["proposer", "solver"]


class OfflineSchedule:
    """Which phase it is, and how far it has come. An iteration is a proposer phase and the solver phase after it."""

    def __init__(self, proposer_steps: int = 10, solver_steps: int = 5, attempts: int = 3):
        self._steps: dict[Phase, int] = {"proposer": proposer_steps, "solver": solver_steps}
        self._attempts_a_step = attempts
        self.phase: Phase = "proposer"
        self.iteration = self.updates = self.attempts = 0

    def advance(self, *, updated: bool, buffered: int) -> None:
        """Note a step that is over. `updated`: it was one of the phase's updates. `buffered`: questions in the buffer.

        A phase ends with its last update, or after `attempts` times as many steps. The solver's ends as soon as the
        buffer is empty, and does not begin where it is.
        """
        self.attempts += 1
        self.updates += updated
        steps = self._steps[self.phase]
        over = self.updates >= steps or self.attempts >= steps * self._attempts_a_step
        if over:
            self._enter("solver" if self.phase == "proposer" else "proposer")
        if self.phase == "solver" and not buffered:
            self._enter("proposer")

    def _enter(self, phase: Phase) -> None:
        self.phase, self.updates, self.attempts = phase, 0, 0
        self.iteration += phase == "proposer"

    def shares(self, steps: int) -> tuple[int, int]:
        """How many of so many steps are the proposer's and the solver's where every one is an update."""
        whole, rest = divmod(steps, self.fewest_steps())
        proposer = whole * self._steps["proposer"] + min(rest, self._steps["proposer"])
        return proposer, steps - proposer

    def fewest_steps(self) -> int:
        """The steps of an iteration in which every attempt is an update."""
        return sum(self._steps.values())

    def most_steps(self) -> int:
        """The steps of an iteration in which as many attempts as possible are in vain."""
        return self.fewest_steps() * self._attempts_a_step

    def state(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "iteration": self.iteration,
            "updates": self.updates,
            "attempts": self.attempts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.phase, self.iteration = state["phase"], state["iteration"]
        self.updates, self.attempts = state["updates"], state["attempts"]


@dataclass
class Buffered:
    """A question that waits for the solver. `peak` is the best pass rate it has had, `stale` the attempts since."""

    id: str
    question: str
    answer: str
    peak: float
    stale: int = 0


class QuestionBuffer:
    """Questions with their answers in the order they came, and a cursor that walks them in a circle.

    The cursor may stand behind the last question: what enters then is what comes next.
    """

    def __init__(self) -> None:
        self._held: list[Buffered] = []
        self.cursor = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, problem: Problem, rate: float) -> None:
        """A question that was valid when it was proposed, with its pass rate then."""
        self._held.append(Buffered(problem.id, problem.text, str(problem.answer), rate))

    def take(self, n: int) -> list[Problem]:
        """The next `n` questions, from the first one again after the last; none where the buffer is empty."""
        taken = []
        for _ in range(n if self._held else 0):
            self.cursor %= len(self._held)
            held = self._held[self.cursor]
            taken.append(Problem(held.id, held.question, held.answer))
            self.cursor += 1
        return taken

    def evict(self, rates: Sequence[tuple[str, float]], margin: float = 0.01, patience: int = 3) -> int:
        """Note a step's attempts, by question id and pass rate, and drop what they show to be used up.

        Dropped is a question that was solved every time, and one whose pass rate was not more than `margin` above its
        peak in the last `patience` attempts (appendix D). A question that the walk met several times in the step was
        tried once, at the mean of its pass rates (ours). The first peak is the rate at which the question was proposed
        (ours). Returns how many were dropped.
        """
        by_id, gone = {held.id: held for held in self._held}, set()
        met: dict[str, list[float]] = {}
        for name, rate in rates:
            met.setdefault(name, []).append(rate)
        for name, seen in met.items():
            held, rate = by_id[name], math.fsum(seen) / len(seen)
            if rate > held.peak + margin:
                held.peak, held.stale = rate, 0
            else:
                held.stale += 1
            if rate >= 1 or held.stale >= patience:
                gone.add(name)
        before = sum(held.id in gone for held in self._held[: self.cursor])
        self._held = [held for held in self._held if held.id not in gone]
        self.cursor -= before
        return len(gone)

    def state(self) -> dict[str, Any]:
        return {"questions": [asdict(held) for held in self._held], "cursor": self.cursor}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._held = [Buffered(**held) for held in state["questions"]]
        self.cursor = state["cursor"]

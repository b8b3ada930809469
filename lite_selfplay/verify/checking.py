"""Limits and resources that a verifier passes to its checkers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.verify.extract import AnswerFormat, completion_text
from lite_selfplay.verify.format import well_formed

K = TypeVar("K")


@dataclass
class Checking:
    """Limits and resources of checkers during a verifier's lifetime.

    - `deadline`: seconds one answer may take before it counts as wrong.
    - `workers`: the largest number of processes at a time; None: 2, or 1 on a machine with one core.
    - `poll`: must be called often while answers are checked elsewhere; it may raise to stop.
    - `unsafe_code`: programs may run even if no sandbox is available.
    """

    deadline: float = 5.0
    workers: int | None = None
    poll: Callable[[], None] = lambda: None
    unsafe_code: bool = False
    _kept: dict[str, Any] = field(default_factory=dict)

    def kept(self, name: str, make: Callable[[], K]) -> K:
        """A checker's resource of this name, such as a pool of processes: made on first use, and closed (by its method
        `close`) with the verifier."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def close(self) -> None:
        """Close all resources; they are made again when needed."""
        while self._kept:
            self._kept.popitem()[1].close()


def verdict(completion: str | Completion, expected: AnswerFormat, answer: str | None, reason: str) -> Verdict:
    """The verdict on an answer that is right unless there is a `reason` against it."""
    formed = well_formed(completion_text(completion), expected.thinks)
    return Verdict(not reason, float(not reason), answer, formed, reason)


# (pairs of one kind, the expected format, limits and resources) -> verdicts in the same order
Checker = Callable[[Sequence[tuple[Completion, Problem]], AnswerFormat, Checking], list[Verdict]]

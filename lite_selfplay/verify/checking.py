"""What a verifier lends its checkers: how long an answer may take, and a place for what they keep between batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.verify.extract import AnswerFormat

K = TypeVar("K")


@dataclass
class Checking:
    """What checkers may use, for as long as a verifier lives.

    - `deadline`: seconds one answer may take before it counts as wrong.
    - `workers`: the largest number of processes at a time; None: 2, or 1 on a machine with one core.
    - `poll`: to be called often while answers are checked elsewhere; it may raise to stop.
    - `unsafe_code`: programs may run where no sandbox can be had as well.
    """

    deadline: float = 5.0
    workers: int | None = None
    poll: Callable[[], None] = lambda: None
    unsafe_code: bool = False
    _kept: dict[str, Any] = field(default_factory=dict)

    def kept(self, name: str, make: Callable[[], K]) -> K:
        """What a checker keeps under a name, such as a pool of processes: made when it is first asked for, and closed
        (it has a method `close`) with the verifier."""
        if name not in self._kept:
            self._kept[name] = make()
        found: K = self._kept[name]
        return found

    def close(self) -> None:
        """End all that is kept; the next answer that needs one makes it again."""
        while self._kept:
            self._kept.popitem()[1].close()


# (pairs of one kind, the expected format, what may be used) -> verdicts in the same order
Checker = Callable[[Sequence[tuple[Completion, Problem]], AnswerFormat, Checking], list[Verdict]]

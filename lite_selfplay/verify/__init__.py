"""Judging completions: one `Verifier` per run, with a checker for each kind of problem."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import UnknownNameError
from lite_selfplay.verify import choice, gym, letters, math
from lite_selfplay.verify.extract import AnswerFormat, completion_text, extract_answer
from lite_selfplay.verify.programs import checker as programs
from lite_selfplay.verify.programs.sandbox import close_sandbox
from lite_selfplay.verify.workers import WorkerPool

__all__ = ["AnswerFormat", "Checker", "Counters", "Verifier", "register_checker"]

# (pairs of one kind, the expected format, processes for comparisons that may never end) -> verdicts in the same order
Checker = Callable[[Sequence[tuple[Completion, Problem]], AnswerFormat, WorkerPool], list[Verdict]]

_CHECKERS: dict[str, Checker] = {
    "math": math.check_batch,
    "letters": letters.check_all,
    choice.KIND: choice.check_batch,
    gym.KIND: gym.check_batch,
}


def register_checker(kind: str, checker: Checker) -> None:
    """Judge problems of this `kind` with `checker`, which replaces an earlier checker of the same kind."""
    _CHECKERS[kind] = checker


@dataclass
class Counters:
    """Totals of a verifier: completions judged, and those among them whose check ran out of time."""

    checked: int = 0
    timeouts: int = 0


class Verifier:
    """Judges completions, each by the checker of its problem's kind.

    A context manager; its processes start when they are first needed.

    Args:
        deadline: Seconds one answer may take before it counts as wrong.
        workers: Maximum number of checking processes; by default 2, or 1 on a machine with one core.
        poll: Called often while answers are checked in processes; it may raise to stop.
        block_only: Accept answers in `<answer>` blocks only, and none in boxes or sentences.
        unsafe_code: Run programs where no sandbox can be had as well.
    """

    def __init__(
        self,
        deadline: float = 5.0,
        workers: int | None = None,
        poll: Callable[[], None] = lambda: None,
        *,
        block_only: bool = False,
        unsafe_code: bool = False,
    ):
        self.counters = Counters()
        self._block_only = block_only
        self._workers = WorkerPool(size=workers, deadline=deadline, poll=poll)
        self._check_programs = partial(programs.check_batch, seconds=deadline, unsafe_code=unsafe_code, poll=poll)

    def verify(self, pairs: Sequence[tuple[Completion, Problem]], thinks: bool = False) -> list[Verdict]:
        """Verdicts in the order of the pairs. `thinks`: the output format requires a closed reasoning block.

        Raises UnknownNameError for a kind without a checker and TaskError for a problem without a usable reference;
        then nothing is counted.
        """
        by_kind: dict[str, list[int]] = {}
        for index, (_, problem) in enumerate(pairs):
            if problem.kind not in _CHECKERS and problem.kind != programs.KIND:
                raise UnknownNameError("kind of problem", problem.kind, [*_CHECKERS, programs.KIND])
            by_kind.setdefault(problem.kind, []).append(index)
        verdicts: dict[int, Verdict] = {}
        expected = AnswerFormat(thinks, self._block_only)
        for kind, indices in by_kind.items():
            own = [pairs[index] for index in indices]
            if kind in _CHECKERS:
                judged = _CHECKERS[kind](own, expected, self._workers)
            else:
                judged = self._check_programs(own, expected)
            verdicts.update(zip(indices, judged, strict=True))
        self.counters.checked += len(pairs)
        self.counters.timeouts += sum(verdict.reason == "timeout" for verdict in verdicts.values())
        return [verdicts[index] for index in range(len(pairs))]

    def read_answer(self, completion: Completion) -> str | None:
        """The answer that a completion gives, or None."""
        return extract_answer(completion_text(completion), block_only=self._block_only)

    def close(self) -> None:
        """End the checking processes; the next answer that needs one starts them again."""
        self._workers.close()
        close_sandbox()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

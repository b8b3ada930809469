"""Judging completions: one `Verifier` per run, with a checker for each kind of problem."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.scan import Registry
from lite_selfplay.verify.checking import Checker, Checking
from lite_selfplay.verify.extract import AnswerFormat, completion_text, extract_answer
from lite_selfplay.verify.latex import plain

__all__ = ["AnswerFormat", "Checker", "Checking", "Verifier", "register_checker"]

_CHECKERS = Registry[Checker](
    "kind of problem",
    {
        "math": "verify.math:check_batch",
        "letters": "verify.choice:check_letters",
        "choice": "verify.choice:check_batch",
        "program": "verify.programs:check_batch",
        "call": "verify.programs.calls:check_batch",
        "reasoning-gym": "extras.gym:check_batch",
    },
)


def register_checker(kind: str, checker: Checker) -> None:
    """Judge problems of this `kind` with `checker`, which replaces an earlier checker of the same kind."""
    _CHECKERS.known[kind] = lambda: checker


class Verifier(AbstractContextManager["Verifier", None]):
    """Judges completions, each by the checker of its problem's kind.

    A context manager; its processes start when first needed. `reasons` counts the verdicts so far by reason.

    Args:
        deadline: Seconds one answer may take before it counts as wrong.
        workers: Maximum number of checking processes; by default 2, or 1 on a machine with one core.
        poll: Called often while answers are checked in processes; it may raise to stop.
        block_only: Accept answers in `<answer>` blocks only, and none in boxes or sentences.
        unsafe_code: Run programs even if no sandbox is available.
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
        self.reasons = Counter[str]()
        self._block_only = block_only
        self._checking = Checking(deadline, workers, poll, unsafe_code)

    def verify(self, pairs: Sequence[tuple[Completion, Problem]], thinks: bool = False) -> list[Verdict]:
        """Verdicts in the order of the pairs. `thinks`: the output format requires a closed reasoning block.

        Raises UnknownNameError for a kind without a checker and TaskError for a problem without a usable reference;
        then nothing is counted.
        """
        expected = AnswerFormat(thinks, self._block_only)
        checkers = {kind: _CHECKERS.find(kind) for kind in dict.fromkeys(problem.kind for _, problem in pairs)}
        verdicts: dict[int, Verdict] = {}
        for kind, checker in checkers.items():
            indices = [index for index, (_, problem) in enumerate(pairs) if problem.kind == kind]
            judged = checker([pairs[index] for index in indices], expected, self._checking)
            verdicts.update(zip(indices, judged, strict=True))
        self.reasons.update(verdict.reason for verdict in verdicts.values())
        return [verdicts[index] for index in range(len(pairs))]

    def read_answer(self, completion: Completion) -> str | None:
        """The answer that a completion gives, or None."""
        return extract_answer(plain(completion_text(completion)), block_only=self._block_only)

    def close(self) -> None:
        """Close the checkers' resources, such as processes; they start again when needed."""
        self._checking.close()

    def __exit__(self, *_: object) -> None:
        self.close()

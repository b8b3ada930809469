"""Completions that are checked against a problem's answer, and what each earns by itself."""

from collections.abc import Callable, Sequence

from lite_selfplay.data import Completion, Group, Problem, Sample, Verdict
from lite_selfplay.games.prompts import PROGRAM
from lite_selfplay.games.table import Table

Pay = Callable[[Completion, Verdict, Problem], Sample]


def verified(table: Table, problems: Sequence[Problem], rows: Sequence[Sequence[Completion]], pay: Pay) -> list[Group]:
    """A group for each problem, of the completions in its row, verified in one call and rewarded by `pay`."""
    verdicts = iter(table.verify([(c, problem) for problem, row in zip(problems, rows, strict=True) for c in row]))
    return [
        Group([pay(c, next(verdicts), problem) for c in row], problem)
        for problem, row in zip(problems, rows, strict=True)
    ]


def why_unread(completion: Completion) -> str:
    """Why a completion without the expected marks has none."""
    cut = "truncated" if completion.cut_off else "off_format"
    return "prompt_too_long" if completion.stop == "prompt_too_long" else cut


def answer_sample(answer: Completion, verdict: Verdict, problem: Problem, reward: float | None = None) -> Sample:
    """A solver's answer with its reward: by default 1 for a right one, else 0."""
    return Sample(answer, float(verdict.correct) if reward is None else reward, verdict, info={"question": problem.id})


def earned(verdict: Verdict, problem: Problem) -> float:
    """A completion's correctness c: its score; for a program 1 if it passes all tests, else 0 (Agon, section 5.3).

    A user's own reward function gives no reason, so its number is used as it is.
    """
    return 0.0 if problem.kind == PROGRAM and verdict.reason else verdict.score


def solo_reward(correct: float, well_formed: bool, format_weight: float = 0.5) -> float:
    """`2 c + lambda phi`: the reward of a completion that is compared with no other (Agon, equation 2)."""
    return 2 * correct + format_weight * well_formed


def judged(table: Table, problems: list[Problem], answers: list[list[Completion]], format_weight: float) -> list[Group]:
    """Groups of completions, verified in one batch and rewarded one by one."""

    def sample(completion: Completion, verdict: Verdict, problem: Problem) -> Sample:
        return Sample(completion, solo_reward(earned(verdict, problem), verdict.well_formed, format_weight), verdict)

    return verified(table, problems, answers, sample)

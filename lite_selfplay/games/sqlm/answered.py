"""SQLM's rewards (equations 1 to 4), and a question with its answers, judged by a vote or by the proposer's tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.games.propose_solve.voting import verdicts_by_vote, vote
from lite_selfplay.games.table import Table


def solver_reward(score: float, well_formed: bool, kind: Literal["majority", "format"] = "majority") -> float:
    """1 for an answer that is the majority's, else 0 (equation 1), or the share of tests that a program passes
    (equation 3); the baseline (section 5.2): 1 for its format."""
    return float(well_formed if kind == "format" else score)


def proposer_reward(votes: int, n: int) -> float:
    """1 where more than one of a question's `n` answers agree and not all do, else 0 (equation 2, section 5.1)."""
    return float(1 < votes < n)


def proposer_reward_by_tests(share: float) -> float:
    """1 where the answers to a question pass some of its tests and not all, else 0 (equation 4, over all n answers)."""
    return float(0 < share < 1)


@dataclass(frozen=True)
class Answered:
    """A question, its answers and their verdicts.

    `share` says how far the answers got: the share that agrees with the majority, or the mean share of tests passed.
    `pays`: whether that is neither nothing nor everything, for which a proposer is paid; `fate` says why not. `label`
    is what the majority says, None without one; `votes` how many agree, None where tests judge.
    """

    problem: Problem
    answers: Sequence[Completion]
    verdicts: Sequence[Verdict]
    share: float
    pays: bool
    fate: str = ""
    label: str | None = None
    votes: int | None = None

    @property
    def unread(self) -> bool:
        """Whether the question was too long to be asked."""
        return all(answer.stop == "prompt_too_long" for answer in self.answers)


def by_votes(
    table: Table, problems: Sequence[Problem], answers: Sequence[Sequence[Completion]], *, figures: bool
) -> list[Answered]:
    """Questions labelled by the majority of their answers. A small gap between generating and verifying: equation 2."""
    found = []
    for problem, row, counted in zip(problems, answers, vote(table, answers, figures=figures), strict=True):
        pays = proposer_reward(counted.votes, counted.of) == 1
        fate = "" if pays else "all_agree" if counted.votes == counted.of else "none_agree"
        labelled = Problem(problem.id, problem.text, counted.label)
        verdicts = verdicts_by_vote(row, counted, thinks=table.thinks)
        found.append(Answered(labelled, row, verdicts, counted.share, pays, fate, counted.label, counted.votes))
    return found


def by_tests(table: Table, problems: Sequence[Problem], answers: Sequence[Sequence[Completion]]) -> list[Answered]:
    """Questions whose answers are programs, judged by the proposer's tests. A large gap: equations 3 and 4.

    The verdict's score is equation 3, the share of the tests that a program passes.
    """
    judged = iter(table.verify([(each, p) for p, row in zip(problems, answers, strict=True) for each in row]))
    found = []
    for problem, row in zip(problems, answers, strict=True):
        verdicts = [next(judged) for _ in row]
        share = sum(verdict.score for verdict in verdicts) / len(verdicts)
        pays = proposer_reward_by_tests(share) == 1
        fate = "" if pays else "all_pass" if share == 1 else "none_pass"
        found.append(Answered(problem, row, verdicts, share, pays, fate))
    return found

"""A question with what was answered, judged by a vote or by the proposer's own tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.games.propose_solve.voting import verdicts_by_vote, vote
from lite_selfplay.games.sqlm.rewards import proposer_reward, proposer_reward_by_tests
from lite_selfplay.games.table import Table


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

"""Answers whose check got no time on a busy machine: they earn nobody anything, wherever a verdict is read."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lite_selfplay.data import NOT_JUDGED, Completion, Group, Problem, Sample, Verdict
from lite_selfplay.errors import WorkerStartError
from lite_selfplay.evaluation.examiner import LiveExaminer
from lite_selfplay.games import make_game
from lite_selfplay.games.pasodoble.pasodoble import pass_rate
from lite_selfplay.games.propose_solve.questions import Proposal, answered, by_answer
from lite_selfplay.games.spc.cases import Case, sneaky_reward, tried
from lite_selfplay.testing import ScriptedTable
from lite_selfplay.verify.programs.calls import CALL
from tests.games.scripted import small
from tests.made import completion

STARVED = Verdict(False, 0.0, None, True, NOT_JUDGED)
RIGHT, WRONG = Verdict(True, 1.0, "2", True), Verdict(False, 0.0, "3", True, "wrong")


class Busy(ScriptedTable):
    """A table in which the checks of some answers get no time: `starves` tells which, by number and problem."""

    starves: Callable[[int, Problem], bool] = staticmethod(lambda number, problem: True)

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        verdicts = super().verify(pairs)
        return [STARVED if self.starves(i, pairs[i][1]) else each for i, each in enumerate(verdicts)]


def busy(script: Any, starves: Callable[[int, Problem], bool], problems: Sequence[Problem] = ()) -> Busy:
    table = Busy(script, problems)
    table.starves = starves  # type: ignore[method-assign]
    return table


def test_a_proposers_program_and_the_answers_to_it():
    proposal = "<program>\ndef f(a):\n    return a * 2\n</program>\n<input>3</input>"
    script = {"proposer": [proposal], "solver": ["<answer>6</answer>"]}
    game = small("absolute-zero", 4, 1, kinds=["deduction"])
    table = busy(script, lambda _, problem: problem.kind == CALL and "inputs" in problem.answer)
    table.open(0, game.seats(0))
    episode = game.play(0, table)
    assert [sample.masked for group in episode.streams[0].groups for sample in group.samples] == [True]
    assert episode.log["refused"] == {NOT_JUDGED: 1}
    table = busy(script, lambda _, problem: problem.kind == CALL and "inputs" not in problem.answer)
    table.open(0, game.seats(0))
    episode = game.play(1, table)
    assert all(sample.masked for stream in episode.streams for group in stream.groups for sample in group.samples)


def test_shares_are_of_judged_answers():
    samples = [Sample(completion("x"), float(v.correct), v) for v in (RIGHT, STARVED, WRONG, STARVED)]
    assert pass_rate(Group(samples)) == 0.5
    table = busy({"solver": ["<answer>2</answer>", "<answer>3</answer>"]}, lambda i, _: i > 1)
    proposals = [Proposal(completion("?"), "What is 1 + 1?", "2")]
    judge: Any = by_answer
    (found,) = answered(table, "solver", proposals, 4, "q", judge=judge)
    assert (found.share, found.proposal.reason) == (0.5, "")
    table.starves = lambda i, _: True  # type: ignore[method-assign]
    (found,) = answered(table, "solver", proposals, 4, "q", judge=judge)
    assert (found.group, found.proposal.reason) == (None, NOT_JUDGED)


def test_a_challenge_to_an_unjudged_draft():
    game = small("agon", 2, 1)
    calls = iter([[False, True], [False, False]])
    table = Busy({"drafter": ["<answer>2</answer>"], "challenger": ["<answer>2</answer>"]})
    verify = ScriptedTable.verify

    def starving(pairs: Any) -> list[Verdict]:
        return [STARVED if s else v for s, v in zip(next(calls), verify(table, pairs), strict=True)]

    table.verify = starving  # type: ignore[method-assign]
    table.open(0, game.seats(0))
    episode = game.play(0, table)
    drafts, challenges = (stream.groups[0].samples for stream in episode.streams)
    assert [sample.masked for sample in drafts] == [sample.masked for sample in challenges] == [False, True]
    assert episode.log["pairs"] == 1


def test_a_players_measure_does_not_change_where_nothing_was_judged():
    game: Any = make_game("cpmobius", {"validation_samples": 2})
    problems = [Problem("a", ""), Problem("b", "")]
    rows = [RIGHT, RIGHT, RIGHT, WRONG]
    table: Any = SimpleNamespace(everything=lambda _: problems, evaluate=lambda *_: rows)
    game._before = game._measure(table)
    assert game._before == [2, 1]
    rows = [STARVED, STARVED, STARVED, RIGHT]
    assert game._measure(table) == [2, 2]


def test_steps_are_counted_by_judged_continuations():
    case = Case("c", Problem("p", "What is 1 + 2 + 3?", "6"), ("1 + 2 = 3.\n", "3 + 3 = 6.\n"), "solver")
    script = {"solver": ["<answer>6</answer>"]}
    (found,) = tried(busy(script, lambda i, _: i > 0), [case], 4, "original")
    assert found.original is not None
    assert (found.original.right, found.original.of) == (1, 1)
    (found,) = tried(busy(script, lambda i, _: True), [case], 4, "original")
    assert (found.original, found.fate(), sneaky_reward(found.fate())) == (None, "unstable", None)


class Late:
    """A table that judges answers after so many calls."""

    def __init__(self, calls: int):
        self.calls = calls

    def verify(self, pairs: Sequence[Any]) -> list[Verdict]:
        self.calls -= 1
        return [STARVED if self.calls >= 0 else RIGHT for _ in pairs]


def test_an_evaluation_asks_again_and_never_counts_them():
    answers: Any = [(completion("2"), 0), (completion("3"), 0)]
    about: dict[str, Any] = {"problems": [Problem("p", "1 + 1?", "2")]}
    examiner: Any = SimpleNamespace(table=Late(2), **about)
    assert [each.correct for each in LiveExaminer.judge(examiner, answers)] == [True, True]
    with pytest.raises(WorkerStartError, match="2 answers of an evaluation could not be judged"):
        LiveExaminer.judge(SimpleNamespace(table=Late(9), **about), answers)  # type: ignore[arg-type]

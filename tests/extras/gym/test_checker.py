"""Answers to problems of reasoning-gym: scored by the data sets' own rules, in processes that can be killed."""

from collections.abc import Iterator

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.extras import gym
from lite_selfplay.extras.gym import open_dataset
from lite_selfplay.verify import Verifier
from tests.made import completion

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym")

DATASETS = "chain_sum leg_counting spell_backward gcd basic_arithmetic".split()
DATASETS += "group_anagrams simple_equations n_queens rearc countdown".split()
"""Whose scorers compare text, numbers, JSON, grids, tuples, and any solution that fits."""


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1) as verifier:
        yield verifier


def row(name: str, index: int = 0, **options: object) -> Problem:
    entry = open_dataset(name, options, seed=11)[index]
    extra = {"dataset": name, "options": options, "entry": entry}
    return Problem(f"{name}-{index}", entry["question"], entry["answer"], kind=gym.KIND, extra=extra)


def judged(verifier: Verifier, text: str, problem: Problem) -> tuple[bool, float, str]:
    (verdict,) = verifier.verify([(completion(text), problem)])
    return verdict.correct, verdict.score, verdict.reason


def test_the_reference_answer_is_right_and_another_one_is_not(verifier: Verifier) -> None:
    problems = [row(name, index) for name in DATASETS for index in range(3)]
    right = verifier.verify([(completion(f"So: <answer>{p.answer}</answer>"), p) for p in problems])
    assert [(v.correct, v.score, v.reason) for v in right] == [(True, 1.0, "")] * len(problems)
    assert [verdict.answer for verdict in right] == [str(problem.answer).strip() for problem in problems]
    assert all(verdict.well_formed for verdict in right)
    wrong = verifier.verify([(completion("<answer>-77777</answer>"), p) for p in problems])
    assert not any(verdict.correct for verdict in wrong)
    assert all(verdict.score < 0.5 for verdict in wrong)
    assert {verdict.reason for verdict in wrong} <= {"wrong", "unparsable"}


def test_a_partial_score_is_wrong_and_kept_and_any_valid_solution_right(verifier: Verifier) -> None:
    # The plain rule scores an answer that holds the reference by their lengths.
    problem = row("count_bits")
    length = len(problem.answer)
    assert judged(verifier, f"<answer>0{problem.answer}</answer>", problem) == (False, length / (length + 1), "wrong")
    problem = row("countdown")
    assert eval(problem.answer) == problem.extra["entry"]["metadata"]["target"]
    # The first has a number that is not among the given ones.
    assert not judged(verifier, rf"\boxed{{0 + ({problem.answer}) - 0}}", problem)[0]
    assert judged(verifier, rf"\boxed{{({problem.answer})}}", problem)[0]


@pytest.mark.parametrize(
    ("text", "name", "reasons"),
    [
        ("I do not know", "chain_sum", {"no_answer"}),
        (f"<answer>{'1' * (gym.MAX_CHARACTERS + 1)}</answer>", "chain_sum", {"unparsable"}),
        ("<answer>((((</answer>", "chain_sum", {"wrong"}),
        # The rule of this data set would evaluate the answer as Python.
        ("<answer>__import__('os')._exit(3)</answer>", "binary_matrix", {"wrong", "unparsable"}),
    ],
)
def test_unusable_answers(verifier: Verifier, text: str, name: str, reasons: set[str]) -> None:
    correct, score, reason = judged(verifier, text, row(name))
    assert (correct, score) == (False, 0.0)
    assert reason in reasons


def test_format_is_judged_separately(verifier: Verifier) -> None:
    problem = row("chain_sum")
    silent = completion(f"<answer>{problem.answer}</answer>")
    thought = completion(f"why</think>{silent.text}", prefill="<think>")
    verdicts = verifier.verify([(thought, problem), (silent, problem)], thinks=True)
    assert [(verdict.correct, verdict.well_formed) for verdict in verdicts] == [(True, True), (True, False)]


def test_an_answer_that_never_ends_is_stopped_and_workers_end_with_the_verifier() -> None:
    problem = row("binary_matrix")
    endless = (completion("<answer>9**9**9</answer>"), problem)
    right = (completion(f"<answer>{problem.answer}</answer>"), problem)
    verifier = Verifier(deadline=3.0, workers=1)
    assert [verdict.reason for verdict in verifier.verify([endless, right])] == ["timeout", ""]
    assert verifier.reasons["timeout"] == 1
    (process,) = (worker.process for worker in verifier._checking._kept[gym.KIND]._workers)
    del verifier
    assert process.poll() is not None


@pytest.mark.parametrize("extra", [{}, {"dataset": "gcd"}, {"entry": {}, "options": {}}])
def test_a_problem_from_elsewhere_is_refused(verifier: Verifier, extra: dict[str, object]) -> None:
    problem = Problem("mine", "?", "1", kind=gym.KIND, extra=extra)
    with pytest.raises(TaskError, match="mine is of kind 'reasoning-gym' but does not name its data set"):
        verifier.verify([(completion("<answer>1</answer>"), problem)])

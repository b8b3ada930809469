"""Answers to problems of reasoning-gym: scored by the data sets' own rules, in processes that can be killed."""

import importlib.util
from collections.abc import Iterator

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.extras.gym import checker as gym
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.checking import Checking
from lite_selfplay.verify.extract import AnswerFormat
from tests.made import completion

pytestmark = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")

# Data sets whose scorers compare text, numbers, JSON, grids, tuples, and any solution that fits.
DATASETS = [
    "chain_sum",
    "leg_counting",
    "spell_backward",
    "gcd",
    "basic_arithmetic",
    "group_anagrams",
    "simple_equations",
    "n_queens",
    "rearc",
    "countdown",
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(workers=1) as verifier:
        yield verifier


def row(name: str, index: int = 0, **options: object) -> Problem:
    entry = gym.open_dataset(name, options, seed=11)[index]
    extra = {"dataset": name, "options": options, "entry": entry}
    return Problem(f"{name}-{index}", entry["question"], entry["answer"], kind=gym.KIND, extra=extra)


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


def test_a_partial_score_is_wrong_and_kept(verifier: Verifier) -> None:
    # The plain rule scores an answer that holds the reference by their lengths.
    problem = row("count_bits")
    length = len(problem.answer)
    (verdict,) = verifier.verify([(completion(f"<answer>0{problem.answer}</answer>"), problem)])
    assert (verdict.correct, verdict.score, verdict.reason) == (False, length / (length + 1), "wrong")


def test_any_valid_solution_is_right(verifier: Verifier) -> None:
    problem = row("countdown")
    assert eval(problem.answer) == problem.extra["entry"]["metadata"]["target"]
    (verdict,) = verifier.verify([(completion(rf"\boxed{{0 + ({problem.answer}) - 0}}"), problem)])
    assert not verdict.correct  # a number that is not among the given ones
    (verdict,) = verifier.verify([(completion(rf"\boxed{{({problem.answer})}}"), problem)])
    assert verdict.correct


def test_the_scorer_has_the_options_of_the_problem(verifier: Verifier) -> None:
    problem = row("chain_sum", min_terms=6, max_terms=6)
    assert verifier.verify([(completion(f"The answer is {problem.answer}."), problem)])[0].correct


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I do not know", "no_answer"),
        ("<think>so 4", "no_answer"),
        (f"<answer>{'1' * (gym.MAX_CHARACTERS + 1)}</answer>", "unparsable"),
        ("<answer>((((</answer>", "wrong"),
    ],
)
def test_unusable_answers(verifier: Verifier, text: str, reason: str) -> None:
    verdict = verifier.verify([(completion(text), row("chain_sum"))])[0]
    assert (verdict.correct, verdict.score, verdict.reason) == (False, 0.0, reason)


def test_format_is_judged_separately(verifier: Verifier) -> None:
    problem = row("chain_sum")
    said = f"why</think><answer>{problem.answer}</answer>"
    (thought,) = verifier.verify([(completion(said, prefill="<think>"), problem)], thinks=True)
    assert thought.correct
    assert thought.well_formed
    (silent,) = verifier.verify([(completion(f"<answer>{problem.answer}</answer>"), problem)], thinks=True)
    assert silent.correct
    assert not silent.well_formed


def test_an_answer_that_never_ends_is_stopped() -> None:
    # The rule of this data set evaluates the answer as Python.
    problem = row("binary_matrix")
    with Verifier(deadline=3.0, workers=1) as verifier:
        endless = (completion("<answer>[x for x in iter(int, 1)]</answer>"), problem)
        right = (completion(f"<answer>{problem.answer}</answer>"), problem)
        verdicts = verifier.verify([endless, right])
        assert [verdict.reason for verdict in verdicts] == ["timeout", ""]
        assert verifier.counters.timeouts == 1


def test_an_answer_that_ends_the_process_is_wrong(verifier: Verifier) -> None:
    problem = row("binary_matrix")
    for answer in ("exit()", "__import__('os')._exit(3)"):
        (verdict,) = verifier.verify([(completion(f"<answer>{answer}</answer>"), problem)])
        assert (verdict.correct, verdict.score) == (False, 0.0)


@pytest.mark.parametrize("extra", [{}, {"dataset": "gcd"}, {"entry": {}, "options": {}}])
def test_a_problem_from_elsewhere_is_refused(verifier: Verifier, extra: dict[str, object]) -> None:
    problem = Problem("mine", "?", "1", kind=gym.KIND, extra=extra)
    with pytest.raises(TaskError, match="mine is of kind 'reasoning-gym' and does not say which data set"):
        verifier.verify([(completion("no answer"), problem)])


def test_its_workers_end_with_the_verifier() -> None:
    checking = Checking(workers=1)
    problem = row("gcd")
    pairs = [(completion(f"<answer>{problem.answer}</answer>"), problem)]
    assert gym.check_batch(pairs, AnswerFormat(), checking)[0].correct
    (process,) = (worker.process for worker in checking._kept[gym.KIND]._workers)
    del checking
    assert process.poll() is not None

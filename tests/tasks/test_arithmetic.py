"""Arithmetic by rule: checked against Python's own evaluation, step by step."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.games.agon.recap import summarise
from lite_selfplay.games.worked_examples import worked_example
from lite_selfplay.tasks import content_key, load_task
from lite_selfplay.tasks.arithmetic import _content, _solve, _written
from lite_selfplay.tasks.procedural import SIZE

OPS = ["+", "-", "*", "+-", "+*", "-*", "+-*"]
STEP = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)\.")


def expression(problem: Problem) -> str:
    found = re.fullmatch(r"What is (\d+(?: [-+*] \d+)+)\?", problem.text)
    assert found, problem.text
    return found[1]


def terms(problem: Problem) -> list[int]:
    return [int(term) for term in re.findall(r"\d+", problem.text)]


@st.composite
def problems(draw) -> tuple[Problem, int, int, str]:
    digits, count, ops = draw(st.integers(1, 6)), draw(st.integers(2, 6)), draw(st.sampled_from(OPS))
    task = load_task(f"arithmetic:digits={digits},terms={count},ops={ops}", seed=draw(st.integers(0, 9)))
    return task.problems[draw(st.integers(0, SIZE - 1))], digits, count, ops


@settings(deadline=None)
@given(problems())
def test_the_answer_is_that_of_python(drawn):
    problem, digits, count, ops = drawn
    assert problem.answer == str(eval(expression(problem)))
    assert len(terms(problem)) == count
    assert all(1 <= term < 10**digits for term in terms(problem))
    assert set(re.findall(r"[-+*]", problem.text)) <= set(ops)
    assert problem.kind == "math"
    # Equal contents are equal sums.
    assert eval(content_key(problem)) == int(problem.answer)
    assert sorted(re.findall(r"\d+", content_key(problem))) == sorted(re.findall(r"\d+", problem.text))


@settings(deadline=None)
@given(problems())
def test_the_worked_solution_leads_to_the_answer_step_by_step(drawn):
    problem, _, count, _ = drawn
    solution = problem.extra["solution"]
    steps = STEP.findall(solution)
    assert " ".join(f"{a} {op} {b} = {c}." for a, op, b, c in steps) == solution
    assert len(steps) == count - 1
    for a, op, b, c in steps:
        assert int(c) == eval(f"{a}{op}{b}") >= 0
    assert steps[-1][3] == problem.answer
    operators = [op for _, op, _, _ in steps]
    assert operators == sorted(operators, key="*".__ne__)
    sums = [step for step in steps if step[1] != "*"]
    assert all(before[3] == after[0] for before, after in pairwise(sums))
    example = worked_example(problem, "?", thinks=False)
    assert example is not None
    assert summarise(example.completion, problem.text, thinks=False) == solution  # a recap keeps them


@pytest.mark.parametrize(
    ("parts", "text", "steps", "value"),
    [
        ([("+", [27]), ("+", [14]), ("-", [6])], "27 + 14 - 6", "27 + 14 = 41. 41 - 6 = 35.", 35),
        # Products come first.
        (
            [("+", [12]), ("+", [3, 4, 2]), ("-", [5]), ("-", [2, 2])],
            "12 + 3 * 4 * 2 - 5 - 2 * 2",
            "3 * 4 = 12. 12 * 2 = 24. 2 * 2 = 4. 12 + 24 = 36. 36 - 5 = 31. 31 - 4 = 27.",
            27,
        ),
    ],
)
def test_steps_by_hand(parts: list[tuple[str, list[int]]], text: str, steps: str, value: int):
    found, result = _solve(parts)
    assert (_written(parts), " ".join(found), result) == (text, steps, value)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([("+", [27]), ("+", [14]), ("-", [6])], [("+", [14]), ("+", [27]), ("-", [6])], True),
        ([("+", [27]), ("+", [14]), ("-", [6])], [("+", [27]), ("-", [6]), ("+", [14])], True),
        ([("+", [27]), ("+", [14]), ("-", [6])], [("+", [27]), ("-", [14]), ("+", [6])], False),
        ([("+", [2, 3]), ("+", [4])], [("+", [4]), ("+", [3, 2])], True),
        ([("+", [2, 3]), ("+", [4])], [("+", [2]), ("+", [3, 4])], False),
        ([("+", [2]), ("+", [3])], [("+", [2, 3])], False),
        ([("+", [1]), ("+", [23])], [("+", [12]), ("+", [3])], False),
        ([("+", [2]), ("+", [2])], [("+", [2]), ("+", [2]), ("+", [2])], False),
    ],
)
def test_the_order_of_terms_and_factors_does_not_matter(one, other, equal):
    assert (_content(one) == _content(other)) == equal


def test_the_largest_term_and_the_largest_last_one():
    task = load_task("arithmetic:max=30,last=3,digits=1,ops=-+")
    drawn = [terms(problem) for problem in task.problems[:2000]]
    assert {last for *_, last in drawn} == {1, 2, 3}
    assert {first for first, *_ in drawn} == set(range(1, 31))
    wide = load_task("arithmetic:max=3,last=50,ops=+").problems[:2000]
    assert max(terms(problem)[-1] for problem in wide) == 50
    assert max(max(terms(problem)[:-1]) for problem in wide) == 3


def test_every_operator_and_sign_occurs():
    drawn = [expression(problem) for problem in load_task("arithmetic:ops=+-*").problems[:500]]
    assert {tuple(re.findall(r"[-+*]", text)) for text in drawn} == {(a, b) for a in "+-*" for b in "+-*"}


def test_differences_that_just_fit():
    # Five ones can be taken from 5 at the least, so that every first term is from 5 to 9.
    for problem in load_task("arithmetic:ops=-,digits=1,terms=6").problems[:200]:
        assert terms(problem)[0] >= 5


def test_seeds():
    assert load_task("arithmetic:seed=3", seed=4).problems[:9] == load_task("arithmetic", seed=7).problems[:9]
    assert load_task("arithmetic:seed=3").problems[:9] != load_task("arithmetic").problems[:9]
    assert load_task("arithmetic:ops=+-").problems[:9] == load_task("arithmetic:ops=-+").problems[:9]


@pytest.mark.parametrize("ops", ["+-", "+-*"])
@pytest.mark.parametrize("terms", [2, 3, 6])
@pytest.mark.parametrize("digits", [1, 2, 6])
def test_a_worked_solution_fits_at_one_token_per_character(digits, terms, ops):
    task = load_task(f"arithmetic:digits={digits},terms={terms},ops={ops}")
    assert task.max_completion_tokens <= 256
    lengths = []
    for problem in task.problems[:200]:
        example = worked_example(problem, "?", thinks=False)
        assert example is not None
        lengths.append(len(example.completion))
    assert max(lengths) <= task.max_completion_tokens or (task.max_completion_tokens == 256 and ops == "+-*")


def test_a_single_problem_lies_on_one_side():
    refused = []
    for held_out in (False, True):
        try:
            assert load_task("arithmetic:max=1,terms=2,ops=+", held_out=held_out).problems[7].text == "What is 1 + 1?"
        except TaskError as error:
            refused.append(str(error))
    assert len(refused) == 1
    assert "too few different problems" in refused[0]

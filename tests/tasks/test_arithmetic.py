"""Arithmetic by rule: checked against Python's own evaluation, step by step."""

import re
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.games.agon.recap import summarise
from lite_selfplay.games.worked_examples import worked_example
from lite_selfplay.tasks import content_key, load_task
from lite_selfplay.tasks.procedural import SIZE
from lite_selfplay.verify.math import check_all

OPS = ["+", "-", "*", "+-", "+*", "-*", "+-*"]


def expression(problem: Problem) -> str:
    found = re.fullmatch(r"What is (\d+(?: [-+*] \d+)+)\?", problem.text)
    assert found, problem.text
    return found[1]


def terms(problem: Problem) -> list[int]:
    return [int(term) for term in re.findall(r"\d+", problem.text)]


def steps_of(problem: Problem) -> list[list[str]]:
    """The steps of a worked solution, each a calculation and its value: they are right, and the last has the answer."""
    steps = [step.split(" = ") for step in problem.extra["solution"].removesuffix(".").split(". ")]
    assert all(eval(left) == int(right) >= 0 for left, right in steps), problem
    assert steps[-1][1] == problem.answer
    return steps


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
    solution, steps = problem.extra["solution"], [(*left.split(), right) for left, right in steps_of(problem)]
    assert all(len(step) == 4 for step in steps)
    assert len(steps) == count - 1
    operators = [op for _, op, _, _ in steps]
    assert operators == sorted(operators, key="*".__ne__)
    sums = [step for step in steps if step[1] != "*"]
    assert all(before[3] == after[0] for before, after in pairwise(sums))
    example = worked_example(problem, "?", thinks=False)
    assert example is not None
    assert summarise(example.completion, problem.text, thinks=False) == solution  # a recap keeps them


def test_the_largest_term_and_the_largest_last_one():
    task = load_task("arithmetic:max=30,last=3,digits=1,ops=-+")
    drawn = [terms(problem) for problem in task.problems[:500]]
    assert {last for *_, last in drawn} == {1, 2, 3}
    assert {first for first, *_ in drawn} == set(range(1, 31))
    wide = load_task("arithmetic:max=3,last=50,ops=+").problems[:500]
    assert max(terms(problem)[-1] for problem in wide) == 50
    assert max(max(terms(problem)[:-1]) for problem in wide) == 3


def test_every_operator_and_sign_occurs_and_differences_just_fit():
    drawn = [expression(problem) for problem in load_task("arithmetic:ops=+-*").problems[:500]]
    assert {tuple(re.findall(r"[-+*]", text)) for text in drawn} == {(a, b) for a in "+-*" for b in "+-*"}
    # Five ones can be taken from 5 at the least, so that every first term is from 5 to 9.
    assert all(terms(problem)[0] >= 5 for problem in load_task("arithmetic:ops=-,digits=1,terms=6").problems[:200])


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
    examples = [worked_example(problem, "?", thinks=False) for problem in task.problems[:200]]
    assert max(len(example.completion) for example in examples) <= task.max_completion_tokens or (
        task.max_completion_tokens == 256 and ops == "+-*"
    )


def value(side: str, **at: Fraction) -> Fraction:
    """A sum of terms such as `3x - 4y + 7` at a point."""
    return eval(re.sub(r"(?<=\d)(?=[xy])", "*", side), dict(at))


def equations_in(text: str) -> list[tuple[str, str]]:
    """The equations of a text, each as its two sides."""
    term = r"-?\d*[xy]?"
    side = rf"{term}(?: [-+] {term})?"
    return [(m[1], m[2]) for m in re.finditer(rf"(?<![\w/-])({side}) = ({side})(?=[ .]|$)", text)]


@pytest.mark.parametrize("digits", [1, 2, 3, 6])
def test_products(digits: int) -> None:
    factors = set()
    for problem in load_task(f"multiplication:digits={digits}").problems[: 20 if digits == 1 else 200]:
        assert re.fullmatch(r"What is \d+ \* \d+\?", problem.text)
        a, b = terms(problem)
        factors |= {a, b}
        assert problem.answer == str(a * b)
        assert steps_of(problem)
        assert content_key(problem) == f"{min(a, b)} * {max(a, b)}"  # in another order it is the same problem
    # From 0 on, so that a tenth of them is shorter.
    assert max(factors) < 10**digits
    assert {len(str(factor)) for factor in factors} >= {digits, digits - 1} - {0}


def test_equations_in_one_variable() -> None:
    found = load_task("equations").problems[:400]
    for problem in found:
        ((left, right),) = equations_in(problem.text)
        x = Fraction(problem.answer)
        assert value(left, x=x) == value(right, x=x)
        steps = problem.extra["solution"]
        assert steps.endswith(f"x = {problem.answer}.")
        for left, right in equations_in(steps):
            assert value(left, x=x) == value(right, x=x), steps
    assert 0.2 < sum("/" in p.answer for p in found) / len(found) < 0.9


@pytest.mark.parametrize("largest", [3, 12, 999])
def test_equations_in_two_variables(largest: int) -> None:
    for problem in load_task(f"equations:variables=2,max={largest}").problems[:200]:
        x, y = map(Fraction, problem.answer.strip("()").split(", "))
        assert max(abs(x), abs(y)) <= largest
        pair = equations_in(problem.text)
        assert len(pair) == 2
        (a, b), (c, d) = ([value(left, x=Fraction(i == 0), y=Fraction(i == 1)) for i in (0, 1)] for left, _ in pair)
        assert a * d != b * c, "one solution alone"
        for left, right in [*pair, *equations_in(problem.extra["solution"])]:
            assert value(left, x=x, y=y) == value(right, x=x, y=y), problem
        assert problem.extra["solution"].endswith(f"y = {y}.")


@pytest.mark.parametrize("spec", ["multiplication", "equations", "equations:variables=2"])
def test_answers_are_right_and_others_are_wrong(spec: str) -> None:
    training, held_out = (load_task(spec, seed=3, held_out=side).problems[:150] for side in (False, True))
    for form in ("<answer>%s</answer>", r"\boxed{%s}"):
        assert all(v.correct for v in check_all([(form % p.answer, p.answer) for p in training]))
    wrong = [(f"<answer>{other.answer}</answer>", p.answer) for p, other in zip(training, held_out, strict=True)]
    same = sum(p.answer == other.answer for p, other in zip(training, held_out, strict=True))
    assert sum(v.correct for v in check_all(wrong)) == same


@pytest.mark.parametrize(("spec", "count", "most"), [("stories", 2, 20), ("stories:steps=1,max=30", 1, 30)])
def test_a_storys_solution_is_right_and_uses_its_numbers(spec: str, count: int, most: int):
    for problem in load_task(spec).problems[:300]:
        steps = [left.split() for left, _ in steps_of(problem)]
        values = [value for _, value in steps_of(problem)]
        assert len(steps) == count
        assert [first for first, _, _ in steps[1:]] == values[:-1]
        assert [str(term) for term in terms(problem)] == [steps[0][0], *(last for _, _, last in steps)]
        assert max(terms(problem)) <= most


def test_stories_have_two_steps_and_few_come_twice():
    problems = load_task("stories").problems[:500]
    assert load_task("stories:steps=2").problems[7] == problems[7]
    assert len({problem.text for problem in problems}) > 450


def test_names_and_things_do_not_belong_to_the_content():
    by_content: dict[str, set[str]] = {}
    for held_out in (False, True):
        for problem in load_task("stories:max=3", held_out=held_out).problems[:2000]:
            by_content.setdefault(content_key(problem), set()).add(problem.text)
    # Numbers from 1 to 3: two stories a + b - c with 26 choices, two a - b + c with 18, a + b + c with 27, a - b - c
    # with 4.
    assert len(by_content) == 2 * 26 + 2 * 18 + 27 + 4
    assert max(len(texts) for texts in by_content.values()) > 10
    for texts in by_content.values():
        assert len({tuple(re.findall(r"\d+", text)) for text in texts}) == 1

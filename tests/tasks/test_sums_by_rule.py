"""Multiplication and linear equations: every answer and every step by arithmetic of their own."""

import re
from fractions import Fraction

import pytest

from lite_selfplay.tasks import content_key, load_task
from lite_selfplay.verify.math import check_all

_SIDE = re.compile(r"(-?\d*)([xy])|(-?\d+)")


def value(side: str, **at: Fraction) -> Fraction:
    """A sum of terms such as `3x - 4y + 7` at a point."""
    terms = side.replace("- ", "-").replace("+ ", "").split()
    total = Fraction(0)
    for term in terms:
        match = _SIDE.fullmatch(term)
        assert match, term
        coefficient = {"": 1, "-": -1}.get(match[1], match[1]) if match[2] else match[3]
        total += Fraction(coefficient) * (at[match[2]] if match[2] else 1)
    return total


def equations_in(text: str) -> list[tuple[str, str]]:
    """The equations of a text, each as its two sides."""
    term = r"-?\d*[xy]?"
    side = rf"{term}(?: [-+] {term})?"
    return [(m[1], m[2]) for m in re.finditer(rf"(?<![\w/-])({side}) = ({side})(?=[ .]|$)", text)]


@pytest.mark.parametrize("digits", [1, 2, 3, 6])
def test_products(digits: int) -> None:
    factors = set()
    for problem in load_task(f"multiplication:digits={digits}").problems[: 20 if digits == 1 else 200]:
        match = re.fullmatch(r"What is (\d+) \* (\d+)\?", problem.text)
        assert match
        a, b = int(match[1]), int(match[2])
        factors |= {a, b}
        assert problem.answer == str(a * b)
        steps = problem.extra["solution"].removesuffix(".").split(". ")
        for step in steps:
            left, right = step.split(" = ")
            assert eval(left) == int(right)
        assert steps[-1].endswith(f"= {a * b}")
    # From 0 on, so that a tenth of them is shorter.
    assert max(factors) < 10**digits
    assert {len(str(factor)) for factor in factors} >= {digits, digits - 1} - {0}


def test_factors_in_another_order_are_the_same_problem() -> None:
    found = load_task("multiplication").problems[:300]
    keys = {problem.text: content_key(problem) for problem in found}
    for text, key in keys.items():
        a, b = re.findall(r"\d+", text)
        assert key == f"{min(int(a), int(b))} * {max(int(a), int(b))}"


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

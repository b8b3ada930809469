"""Arithmetic by hand, against Python's own, and what is refused."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.verify.formulas import calculate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("48 + 24", 72),
        ("12 + 5 * 3", 27),
        ("(12 + 5) x 3", 51),
        ("12 ÷ 8", Fraction(3, 2)),
        ("8 / 2 / 2", 2),
        ("6 / 2 * 3", 9),
        ("5 - -3", 8),
        ("2 × −3", -6),
        ("−5 − 3", -8),
        ("$1,234 + $5", 1239),
        ("1.5 · 3", Fraction(9, 2)),
        ("7", 7),
    ],
)
def test_by_hand(text: str, value: Fraction | int):
    assert calculate(text) == value


UNFINISHED = ("", "1 / 0", "1 / (2 - 2)", "3 +", "(3 + 4", "3 4", "2 ** 3", "a + 1")
HOSTILE = ("2 * " + "-" * 5000 + "1", "-(" * 5000 + "1", "9" * 5000, "1 + " * 500 + "1", "(" * 90 + "1" + ")" * 90)


@pytest.mark.parametrize("text", [*UNFINISHED, *HOSTILE])
def test_what_is_no_calculation_has_no_value(text: str):
    assert calculate(text) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-*/"), st.integers(1, 10**12)), max_size=12), st.integers(0, 10**12))
def test_as_python_does(rest: list[tuple[str, int]], first: int):
    text = f"{first}" + "".join(f" {sign} {number}" for sign, number in rest)
    expected = eval(f"Fraction({first})" + "".join(f" {sign} Fraction({number})" for sign, number in rest))
    assert calculate(text) == expected

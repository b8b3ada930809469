"""Arithmetic by hand, against Python's own, and what is refused."""

from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.verify.formulas import calculate

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "value"), CASES["calculations"].items())
def test_by_hand(text: str, value: int | str):
    assert calculate(text) == Fraction(value)


UNFINISHED = ("", "1 / 0", "1 / (2 - 2)", "3 +", "(3 + 4", "3 4", "2 ** 3", "a + 1")
HOSTILE = ("-(" * 5000 + "1", "9" * 5000, "1 + " * 500 + "1", "(" * 90 + "1" + ")" * 90)


@pytest.mark.parametrize("text", [*UNFINISHED, *HOSTILE])
def test_what_is_no_calculation_has_no_value(text: str):
    assert calculate(text) is None


def test_thousands_of_signs_are_one_sign():
    assert calculate("2 * " + "-" * 5001 + "1") == -2


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-*/"), st.integers(1, 10**12)), max_size=12), st.integers(0, 10**12))
def test_as_python_does(rest: list[tuple[str, int]], first: int):
    text = f"{first}" + "".join(f" {sign} {number}" for sign, number in rest)
    expected = eval(f"Fraction({first})" + "".join(f" {sign} Fraction({number})" for sign, number in rest))
    assert calculate(text) == expected

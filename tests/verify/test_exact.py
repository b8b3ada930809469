r"""Comparisons: normalisation, plain numbers, lists, tuples, inequalities, words."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.latex import canonical, tidy, values
from lite_selfplay.verify.quantity import quantity


def decide(gold: str, answer: str) -> bool:
    return judge([values(gold)], answer)


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (["25", "025"], 25),
        (["+2"], 2),
        (["-4", "\u22124"], -4),
        (["1,234", r"1\,234"], 1234),
        ([r"10,\!080"], 10080),
        ([r"11,\! 111,\! 111,\! 100"], 11_111_111_100),
        (["1{,}234.5"], Fraction(2469, 2)),
        ([".35625"], Fraction(57, 160)),
        (["12.", "12 km/h", "12kg", "**12**", r"\(12\)", r"\boxed{12}", "is approximately 12"], 12),
        (["$18", "18 dollars per day."], 18),
        ([r"-\$5"], -5),
        (["€1,000", "10^{3}"], 1000),
        ([r"\$32,\!348"], 32348),
        (["3/4", r"\frac{3}{4}", r"\dfrac34", r"\frac 34"], Fraction(3, 4)),
        ([r"\frac9{19}"], Fraction(9, 19)),
        ([r"-\frac{-1}{1997}"], Fraction(1, 1997)),
        ([r"1\frac{4}{5}", "1 4/5"], Fraction(9, 5)),
        ([r"137 \frac{1}{2}"], Fraction(275, 2)),
        (["2½"], Fraction(5, 2)),
        ([r"3 \times 10^{8}"], 3 * 10**8),
        (["3 x 10^-2"], Fraction(3, 100)),
        (["4.5e3"], 4500),
        (["1e-5"], Fraction(1, 10**5)),
        ([r"90^\circ", r"90^{\circ}"], 90),
        ([r"1950^\circ C"], 1950),
        ([r"5.4 \text{ cents}"], Fraction(27, 5)),
        ([r"864 \mbox{ inches}^2"], 864),
        ([r"15\mbox{ cm}^2"], 15),
        ([r"15000 \text{ kcal m}^{-2} \text{yr}^{-1}"], 15000),
        ([r"\frac{270}7\text{ degrees}"], Fraction(270, 7)),
        (["12 thousand"], 12000),
    ],
)
def test_plain_numbers(texts: list[str], value: int | Fraction) -> None:
    found = {text: quantity(tidy(text)) for text in texts}
    assert {text: read and read.number for text, read in found.items()} == dict.fromkeys(texts, value)


NO_NUMBERS = [
    *("", "x", "2k", "5 xy", "5m", "5 m", "3i", r"2\pi", r"\sqrt{2}", "48+24", "12 or 13", "12 dozen", "12 squared"),
    *("1/0", r"\frac{1}{0}", "1e9999", "1,2345", "1.2.3", "12 is wrong", "12 apples & pears", "5!"),
]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_texts_that_are_not_plain_numbers(text: str) -> None:
    found = quantity(tidy(text))
    assert found is None or found.number is None


@given(st.integers(), st.integers(min_value=2, max_value=10**6))
def test_a_fraction_equals_itself_however_written(top: int, bottom: int) -> None:
    assume(top % bottom)
    spellings = [f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}", f"{3 * top}/{3 * bottom}", f"x = {top} / {bottom}"]
    for gold in spellings:
        assert all(decide(gold, answer) for answer in spellings)
        assert decide(gold, f"{top + 1}/{bottom}") is False


@given(st.integers(min_value=-(10**12), max_value=10**12))
def test_an_integer_with_separators(value: int) -> None:
    assert decide(str(value), f"{value:,}")
    assert decide(str(value), f"${value:,}.00")
    assert decide(str(value), f"{value + 1:,}") is False


@given(st.sets(st.integers(min_value=-99, max_value=99), min_size=1, max_size=5))
def test_the_order_of_a_list_does_not_matter(numbers: set[int]) -> None:
    gold, answer = sorted(numbers), sorted(numbers, reverse=True)
    assert decide("; ".join(map(str, gold)), ", ".join(map(str, answer)))
    assert decide("; ".join(map(str, gold)), ", ".join(map(str, [*answer, 100]))) is False
    assert decide("; ".join(map(str, [*gold, 100])), ", ".join(map(str, answer))) is False


@given(st.text(max_size=80), st.text(alphabet=r"0123456789,.()[]{}\frac/^_=+-%$ exor" + "\n", max_size=80))
def test_nothing_raises_and_equal_texts_agree(first: str, second: str) -> None:
    for text in (first, second):
        assert canonical(tidy(text)) == canonical(tidy(text).strip())
        assert decide(text, text) or not values(text)
    assert decide(first, second) in (True, False)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("piece", ["(1,", "{", r"\frac", "1,", r"\pm", " ", "√(", "1 ", r"\text{", "=", "x_", "or "])
def test_repetitive_answers_are_quick(piece: str) -> None:
    text = piece * (2000 // len(piece))
    decide(text, text)
    decide("12", text)

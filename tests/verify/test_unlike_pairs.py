r"""Answers that are no plain mathematics, as a person judges them: dates, sizes, words, nouns, times, spellings.

Each line has a reference, answers that are right, and answers that are wrong. The labels were written before the rules.
"""

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.keys import states_nothing, vote_key
from lite_selfplay.verify.latex import plain, tidy
from lite_selfplay.verify.math import check
from tests.made import completion

NO_ARITHMETIC = [
    ("2024-03-05", ["2024-03-05", "2024-3-5", "2024–03–05"], ["2016", "2024-05-03", "2024-03-06", "2024", "2019-3"]),
    ("10-15", ["10-15", "10 – 15", "10 to 15"], ["20-25", "-5", "15-10", "10", "15", "5-10"]),
    ("5-7 days", ["5-7 days", "5–7 days"], ["-2 days", "6-8 days", "-2"]),
    ("3-1", ["3-1", "3 - 1"], ["2", "4-2", "1-3"]),
    ("555-1234", ["555-1234"], ["-679", "556-1235"]),
    ("3/5/2024", ["3/5/2024", "03/05/2024"], ["5/3/2024", "3/10120", "6/10/2024"]),
    ("12/25", ["12/25", "24/50", "0.48"], ["25/12", "12", "12-25"]),
    ("3 × 4", ["3 × 4", "3 x 4", r"3 \times 4", "3*4"], ["4 × 3", "12", "2 × 6", "6 x 2"]),
    ("2 × 3 × 5", ["2 x 3 x 5"], ["5 × 3 × 2", "30", "1 × 5 × 6"]),
    ("2^2·3", ["2^2 · 3", r"2^2 \cdot 3", "3·2^2", "2^2 × 3", "2·2·3"], ["2·6", "12", "4·3", "2·3^2", "2^3·3"]),
    (r"2 \cdot 3 \cdot 7", [r"7 \cdot 3 \cdot 2", "2·3·7"], ["42", "6·7", r"2 \cdot 21"]),
    ("2^{10}-1", ["1023", "2^{10} - 1"], ["1024", "2^9"]),
    ("7-10 minutes", ["7-10 minutes"], ["-3 minutes", "10-7 minutes", "8-11 minutes"]),
    ("1-2-3", ["1-2-3"], ["-4", "3-2-1", "1-3-2"]),
]
LETTERS = [
    ("saw", ["saw", "Saw", r"\text{saw}"], ["was", "swa", "s"]),
    ("cat", ["cat", "Cat", "CAT", "**cat**"], ["act", "tac", "dog"]),
    ("tea", ["tea"], ["eat", "ate"]),
    ("God", ["God", "god"], ["dog", "Dog"]),
    ("no", ["No", "no"], ["on", "yes"]),
    ("am", ["am"], ["ma", "pm"]),
    ("vi", ["vi", "VI"], ["iv", "IV"]),
    ("xyz", ["xyz", "zyx", "x y z", r"x \cdot y \cdot z"], ["xy", "xyw"]),
    ("ab", ["ba", "a b", "ab", "a*b"], ["a+b", "abb"]),
    ("mgh", ["mgh", "m g h", r"m \cdot g \cdot h"], ["mg", "mgh^2"]),
    ("2ab", ["2ba", "2 a b"], ["ab", "2a+b"]),
    ("on", ["on"], ["no"]),
    ("tar", ["tar"], ["rat", "art"]),
]
NOUNS = [
    ("5", ["5 apples", "5 units", "5 red marbles", "5 more"], ["5 lakh", "5 crore", "5 dozen eggs", "5 grand"]),
    (
        "5",
        ["5 degrees", "5 degrees Celsius", "5 m"],
        ["5 degrees below zero", "5 below", "5 under par", "5 below zero"],
    ),
    ("5", ["5 years old", "5 days"], ["5 score", "5 gross", "5 quadrillion", "5 past three", "5 BC"]),
    ("-5", ["-5 degrees", "-5"], ["5 degrees"]),
    ("500000", ["5 lakh", "500,000", "500 thousand"], ["5", "5 crore", "50 lakh"]),
    ("2 crore", ["20000000", "2 crore rupees", "20 million"], ["2", "2 lakh", "2 million"]),
    ("3 apples", ["3", "3 apples", "three apples"], ["3 oranges", "4 apples", "3 dozen apples"]),
    ("12", ["12 students"], ["12 trillion", "12 thousandths", "12 degrees below freezing", "12 lakhs"]),
]
SPELLINGS = [
    ("50%", ["50％", "５０％", "５０%", "0.5"], ["５％", "５１％"]),
    ("1/2", ["１／２", "1⁄2", "½", "1∕2"], ["２／１", "⅓", "１"]),
    ("-5", ["－5", "−5", "‒5", "–5", "﹣5"], ["５", "＋5"]),
    ("1.5 × 10^{-3}", ["1.5 × 10⁻³", "0.0015", "1.5·10⁻³", "1.5e-3"], ["1.5 × 10³", "1.5 × 10⁻²", "1.5 × 10 - 3"]),
    ("1.5", ["1 1⁄2", "1½", "１.５", "1 1/2"], ["11⁄2", "1 1⁄3", "11/2"]),
    ("5", ["5\u200b", "\u200b5", "\ufeff5", "\u20605", "٥", "５"], ["\u200b6", "٦"]),
    ("1000", ["1\u202f000", "1\u00a0000", "１０００", "1，000"], ["1\u202f00", "１００"]),
    ("x^2", ["x²", "x^2", "x^{2}"], ["x³", "x2", "2x"]),
    ("2^{10}", ["2¹⁰", "1024"], ["2¹⁰⁰", "210", "2¹ ⁰1"]),
    ("x_1", ["x₁", "x_{1}"], ["x₂", "x^1"]),
    ("(1, 2)", ["（1，2）", "(1，2)"], ["（2，1）"]),
    ("7/8", ["⅞", "7⁄8"], ["⅝"]),
    ("20^\\circ C", ["20℃", "20 °C"], ["21℃", "20℉"]),
]
COMPOUND = [
    ("3:45 pm", ["3:45 PM", "3:45 p.m.", "3:45pm", "3:45 P.M.", "15:45"], ["3:45 am", "3:54 pm", "945", "3:45 a.m."]),
    ("7 am", ["7:00 am", "7 a.m.", "7:00 AM", "7AM"], ["7 pm", "7:30 am", "19:00"]),
    ("12:30 am", ["12:30 AM", "00:30"], ["12:30 pm", "0:03"]),
    (
        "2.5 hours",
        ["2 hours 30 minutes", "2 hours and 30 minutes", "2 hr 30 min", "150 minutes"],
        ["2 hours 3 minutes"],
    ),
    ("150 minutes", ["2 hours 30 minutes", "2 hours, 30 minutes"], ["2 hours 20 minutes", "2 hours or 30 minutes"]),
    ("$5.25", ["5 dollars and 25 cents", "5 dollars 25 cents", "525 cents"], ["5 dollars and 52 cents", "25 cents"]),
    ("5.5 feet", ["5 feet 6 inches", "5 ft 6 in", "66 inches"], ["5 feet 5 inches", "6 feet 5 inches"]),
    ("3661 seconds", ["1 hour, 1 minute and 1 second", "1 hour 1 minute 1 second"], ["1 hour 1 minute"]),
    ("27 months", ["2 years 3 months", "2 years and 3 months"], ["3 years 2 months", "2 years and 3 days"]),
    ("3:4", ["3 to 4", "3∶4", "3 : 4", "3：4"], ["4 to 3", "4:3", "3 to 5", "6∶4"]),
    ("10:15", ["10 to 15", "10∶15"], ["15 to 10", "10 to 51"]),
    ("9:30 am", ["9:30 AM"], ["9:30 pm", "21:30", "9:03 am"]),
]
WORDED = [
    (
        "-5",
        ["negative five", "minus five", "negative 5", "x = negative five"],
        ["five", "negative six", "positive five"],
    ),
    ("1.5", ["one and a half", "1 and a half", "1 and 1/2", "one and one half"], ["two and a half", "one or a half"]),
    ("2.75", ["two and three quarters", "two and three-fourths"], ["two and a quarter", "two and three"]),
    ("-1/2", ["negative one half", "minus one half", "negative one-half"], ["one half", "negative two"]),
    ("1.5 hours", ["one and a half hours", "1 and a half hours"], ["one and a half minutes"]),
    ("105", ["one hundred and five", "a hundred and five"], ["one hundred and a half", "one hundred, five"]),
    (
        "no solution",
        ["There is no solution", "No solutions", "no solution.", "There are no solutions"],
        ["solution", "0"],
    ),
    ("none", ["None", "There are none"], ["one", "nine"]),
    ("(1,2) \\cup (3,4)", ["(1,2) U (3,4)", "(1,2)U(3,4)", "(3,4) ∪ (1,2)", "(1,2) union (3,4)"], ["(1,2) U (3,5)"]),
    ("5", ["5 (five)", "five (5)", "5 (five) apples", "5 (5.0)"], ["5 (six)", "5 (or six)", "five (6)", "5 (4)"]),
    ("1/2", ["1/2 (0.5)", "0.5 (1/2)", "50% (1/2)"], ["1/2 (0.6)", "1/2 (one third)"]),
    ("12", ["12 (twelve)"], ["12 (13)", "twelve and a half", "minus twelve", "12 (or twenty)"]),
]
MARKED = [
    ("5", ["#### **5**", "#### 5.\n", "#### 5.", "#### *5*", "#### 5\n\n", "####5", "#### __5__", "#### $5$."], []),
    ("-5", ["#### −5", "#### **-5**", "#### －5"], ["#### **5**", "#### 5.\n", "#### 5. Subtract -5\n"]),
    ("0.5", ["#### .5\n", "#### **50%**.\n", "#### 0.5."], ["#### **5**\n", "#### 1. Half\n"]),
    ("1000", ["#### **1,000**", "#### 1,000.\n", "#### $1,000.\n"], ["#### **1,00**", "#### 1. 1000 apples\n"]),
]
GROUPS = {
    "no arithmetic": NO_ARITHMETIC,
    "letters": LETTERS,
    "nouns": NOUNS,
    "spellings": SPELLINGS,
    "compound": COMPOUND,
    "worded": WORDED,
    "marked": MARKED,
}
PAIRS = [
    (name, reference, answer, label)
    for name, group in GROUPS.items()
    for reference, *both in group
    for answers, label in zip(both, (True, False), strict=True)
    for answer in answers
]


MISJUDGED = {("1.5", "1 and 1/2", True)}
"""Two values as well as one: digits with "and" between them are a list."""
FORMS = ["<answer>%s</answer>", r"so \boxed{%s}.", "Therefore, the final answer is **%s**."]


def paid(name: str, reference: str, answer: str, form: str = FORMS[0]) -> bool:
    return check(answer if name == "marked" else form % answer, reference).correct


def test_there_are_enough_pairs() -> None:
    right = sum(label for *_, label in PAIRS)
    assert len(set(PAIRS)) == len(PAIRS) >= 400
    assert abs(right / len(PAIRS) - 0.5) < 0.03


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GROUPS)
def test_pairs_are_judged_as_labelled(name: str, form: str) -> None:
    rows = [row for row in PAIRS if row[0] == name]
    assert {row[1:] for row in rows if paid(*row[:3], form) != row[3]} <= MISJUDGED


APART = {
    "a sign of money or a unit on one side": [("$5.25", "525 cents"), ("5", "5 days"), ("5", "5 m")],
    "a time that may be a ratio": [("3:45 pm", "15:45"), ("12:30 am", "00:30")],
    "letters that may be a word": [("ab", "ba"), ("xyz", "zyx"), ("mgh", "m g h"), ("mgh", r"m \cdot g \cdot h")],
    "two values or one": [("1.5", "1 and 1/2")],
}
TOGETHER = [("3 apples", "3 oranges")]
"""What is counted is no part of a class: 3 votes with both, and the vote knows no reference."""


def test_votes_have_the_same_classes() -> None:
    keys = {text: vote_key(text) for row in PAIRS if row[0] != "marked" for text in row[1:3]}
    pairs = [row[1:] for row in PAIRS if row[0] != "marked" and keys[row[1]] is not None]
    assert [pair[:2] for pair in pairs if not pair[2] and keys[pair[0]] == keys[pair[1]]] == TOGETHER
    apart = {pair[:2] for pair in pairs if pair[2] and keys[pair[0]] != keys[pair[1]]}
    assert apart == {pair for listed in APART.values() for pair in listed}


@pytest.mark.parametrize("answer", ["2024-03-05", "10-15", "3 × 4", "2^2·3", "3/5/2024"])
def test_what_may_be_a_calculation_does_not_vote(answer: str) -> None:
    assert vote_key(answer) is None


@pytest.mark.parametrize(
    ("answer", "problem", "right"),
    [
        ("72 clips", "How many clips did Natalia sell?", True),
        ("72 clip", "How many clips did Natalia sell?", True),
        ("72 blue clips", "How many clips did Natalia sell?", True),
        ("72 dollars", "How many clips did Natalia sell?", True),
        ("$72 remaining", "How much did Natalia earn?", True),
        ("72", "How many clips did Natalia sell?", True),
        ("72 zorks", "How many clips did Natalia sell?", False),
        ("72 friends", "How many clips did Natalia sell?", False),
        ("72 lakh clips", "How many clips did Natalia sell?", False),
        ("72 degrees", "How large is the angle ABC?", True),
        ("72 units", "How long is AB?", True),
        ("72 square units", "How large is ABCD?", True),
        ("72 cm", "How long is AB?", True),
        ("72 zorks", "", True),  # nothing is known of what is counted
        ("72 zorks", "48 + 24 = ?", True),
    ],
)
def test_what_is_counted_is_named_in_the_problem(answer: str, problem: str, right: bool) -> None:
    assert check(f"<answer>{answer}</answer>", "72", problem=problem).correct is right
    (verdict,) = Verifier().verify([(completion(f"<answer>{answer}</answer>"), Problem("p", problem, "72"))])
    assert verdict.correct is right


def test_characters_have_one_form_wherever_answers_are_compared() -> None:
    assert plain("１０⁻³＝½　ｘ₁\u200b – ５０％") == r"10^{-3}=\frac{1}{2} x_{1} - 50%"
    assert plain("µm ℝ ㎝ ٣ “a’s”") == 'µm \\mathbb{R} cm 3 "a\'s"'
    options = {"options": ["５ m", "１／２", "（x）"]}
    asked = [
        (completion(text), Problem("p", "?", "B", "choice", options)) for text in ("Answer: （Ｂ）", r"\boxed{1/2}")
    ]
    assert [verdict.correct for verdict in Verifier().verify(asked)] == [True, True]
    assert states_nothing("ｕｎｋｎｏｗｎ")
    assert states_nothing("I don’t know")
    assert not states_nothing("unknown", ["ｕｎｋｎｏｗｎ"])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2h30m", r"\frac{5}{2} h"),
        ("-2 hours, 30 minutes", r"-\frac{5}{2} hours"),
        ("1 hour, 1 minute and 1 second", r"\frac{3661}{3600} hour"),
        ("1 1/2 hours 30 minutes", "1 1/2 hours 30 minutes"),
        ("1/0 hours 3 minutes", "1/0 hours 3 minutes"),
        ("5-7 days 3 hours", "5-7 days 3 hours"),
        ("3 m 20 s", "3 m 20 s"),
        ("30 minutes 2 hours", "30 minutes 2 hours"),
        ("9" * 40 + " hours 3 minutes", "9" * 40 + " hours 3 minutes"),
        ("2 cm 3 mm^2", "2 cm 3 mm^2"),
    ],
)
def test_two_units_of_one_kind_are_one_value(written: str, read: str) -> None:
    assert tidy(written) == read

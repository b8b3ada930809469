r"""Every answer of `pairs.txt` is judged as its label says, in each form of a completion; nouns, characters, units."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.latex import plain, tidy
from lite_selfplay.verify.math import check
from tests.made import completion


class Pair(NamedTuple):
    """A line's reference, one of its answers, and how that is judged: `==`, `~=` or `!=`."""

    reference: str
    answer: str
    label: str


def read_pairs() -> list[Pair]:
    found = []
    for line in Path(__file__).with_name("pairs.txt").read_text(encoding="utf-8").partition("\n# ")[2].splitlines():
        if match := re.fullmatch(r"(.*?) (==|~=|!=) (.*)", line):
            shown = (
                re.sub("<([0-9A-F]{4})>", lambda code: chr(int(code[1], 16)), text) for text in (match[1], match[3])
            )
            reference, answers = (text.replace("<>", "") for text in shown)
            found += [Pair(reference, answer, match[2]) for answer in answers.split(" ;; ")]
    return found


PAIRS = read_pairs()
COMPLETIONS = "####"
"""What an answer begins with that is a completion by itself."""
MISJUDGED = [("1.5", "1 and 1/2"), ("12", "12\n13")]
"""Digits with "and" between them are a list as well as one value; a line's end ends a sentence."""
FORMS = [
    *("<answer>%s</answer>", r"so \boxed{%s}.", "<think>x</think><answer>%s</answer>", r"<answer>\boxed{%s}</answer>"),
    "Therefore, the final answer is **%s**.",
]


def test_there_are_enough_pairs() -> None:
    assert len(set(PAIRS)) == len(PAIRS) >= 1300
    assert 0.4 < sum(pair.label != "!=" for pair in PAIRS) / len(PAIRS) < 0.6


@pytest.mark.parametrize("form", FORMS)
def test_every_pair_is_judged_as_labelled(form: str) -> None:
    texts = [answer if answer.startswith(COMPLETIONS) else form % answer for _, answer, _ in PAIRS]
    judged = [check(text, pair.reference).correct for text, pair in zip(texts, PAIRS, strict=True)]
    wrong = [pair for pair, right in zip(PAIRS, judged, strict=True) if right != (pair.label != "!=")]
    assert [pair for pair in wrong if pair[:2] not in MISJUDGED] == []


@pytest.mark.parametrize(
    ("answer", "reference"),
    [("48+24", "72"), (r"\int_0^1 x^2 dx", "1/3"), ("5!", "120"), (r"\binom{5}{2}", "10"), (r"\sqrt{144}", "12")],
)
def test_a_restated_question_has_its_own_reason(answer: str, reference: str) -> None:
    assert check(rf"\boxed{{{answer}}}", reference).reason == "restated"


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


@pytest.mark.parametrize(
    ("answer", "reference", "problem", "right"),
    [
        # Units of one letter, on one side
        *((f"{n}", f"{n} {unit}", "How much?", True) for n, unit in ((7, "m"), ("2.5", "L"), ("1,200", "g"), (8, "K"))),
        *(("8", f"8 {unit}", "How much?", True) for unit in ("s", "h", "N", "J", "GB", "kB")),
        ("7 km", "7 m", "How long?", False),
        ("7000 mm", "7 m", "How long?", True),
        ("7 s", "7 m", "How long?", False),
        ("8 GB", "8 MB", "How much?", False),
        ("8", "8 k", "Expand.", False),  # a variable
        (r"\frac{1}{2}", r"\frac{1}{2} g", "How long?", False),
        ("3", "2 m + 1", "Evaluate.", False),
        # Nouns of other languages
        ("7ページ", "7", "何ページ読みましたか。", True),
        ("7冊", "7", "何ページ読みましたか。", False),
        ("7권", "7", "책이 몇 권 있나요?", True),
        ("7 книг", "7", "Сколько книг на полке?", True),
        ("7 тетрадей", "7", "Сколько книг на полке?", False),
        ("7 см", "7", "Какова длина в см?", True),
        ("7", "7 см", "Какова длина?", True),
        ("7 Bücher", "7", "Wie viele Bücher hat sie?", True),
        ("7 élèves", "7", "Combien d'élèves sont là ?", True),
        ("7 βιβλία", "7", "Πόσα βιβλία έχει;", True),
        ("7 किताबें", "7", "कितनी किताबें हैं?", True),
        ("7 ספרים", "7", "כמה ספרים יש?", True),
        ("7元", "7", "", True),
        ("7万", "7", "他有多少万元?", False),  # 70,000
        ("7百元", "7", "他有多少元?", False),
        ("7 β", "7", "How much?", False),
        ("7 αβ", "7", "How much?", False),
        ("7★", "7", "How much?", False),
        # Values by their names, and constants of integration
        ("(y, x) = (3, 4)", "(3, 4)", "Give (x, y).", False),
        ("(y, x) = (3, 4)", "(4, 3)", "Give (x, y).", True),
        ("(m, b) = (3, 4)", "(3, 4)", "Give (m, b).", True),
        ("x^3 + k", "x^3 + C", "Integrate.", True),
        ("x^3 + x", "x^3 + C", "Integrate.", False),
        ("k x + k", "k x + C", "Integrate.", False),
    ],
)
def test_units_of_a_letter_and_words_of_every_language(answer: str, reference: str, problem: str, right: bool) -> None:
    assert check(f"<answer>{answer}</answer>", reference, problem=problem).correct is right


def test_characters_have_one_form_wherever_answers_are_compared() -> None:
    assert plain("１０⁻³＝½　ｘ₁\u200b – ５０％") == r"10^{-3}=\frac{1}{2} x_{1} - 50%"
    assert plain("µm ℝ ㎝ ٣ “a’s”") == 'µm \\mathbb{R} cm 3 "a\'s"'
    asked = Problem("p", "?", "B", "choice", {"options": ["５ m", "１／２", "（x）"]})
    verdicts = Verifier().verify([(completion(text), asked) for text in ("Answer: （Ｂ）", r"\boxed{1/2}")])
    assert [verdict.correct for verdict in verdicts] == [True, True]


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

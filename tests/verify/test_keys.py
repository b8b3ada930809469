"""Votes: which answers are one class, which are none, and what says that there is no answer."""

import re
from itertools import permutations
from pathlib import Path

import pytest

from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.keys import answer_key, states_nothing, vote_key
from lite_selfplay.verify.math import references
from tests.verify.test_pairs import COMPLETIONS, PAIRS

TOGETHER = [("x=5", "y=5"), ("3 apples", "3 oranges"), (r"x \approx 7", r"y \approx 7"), ("x>3", "y > 3")]
"""A vote knows no reference: what is named, or counted, is no part of its class."""


def test_votes_have_the_classes_of_the_labels() -> None:
    keys = {text: vote_key(text) for pair in PAIRS for text in pair[:2]}
    asked = [pair for pair in PAIRS if not pair.answer.startswith(COMPLETIONS)]
    alike = {pair for pair in asked if keys[pair.reference] == keys[pair.answer]}
    assert [pair for pair in asked if pair.label != "!=" and (pair in alike) != (pair.label == "==")] == []
    assert [pair[:2] for pair in asked if pair in alike and pair.label == "!=" and keys[pair.answer]] == TOGETHER


def test_what_has_one_key_is_equal() -> None:
    # A name is dropped in votes: "x = 5" and "y = 5" are one class, and not equal.
    classes: dict[str, set[str]] = {}
    for text in {text for pair in PAIRS for text in pair[:2]}:
        if (key := answer_key(text)) is not None:
            classes.setdefault(key, set()).add(text)
    together = [pair for texts in classes.values() for pair in permutations(texts, 2)]
    assert len(together) > 100
    assert [(r, a) for r, a in together if not judge(references(r), a)] == []


NO_CLASS = [
    *(
        r"\int_0^1 x^2 dx",
        r"\sum_{i=1}^{10} i",
        r"\lim_{x \to 0} \frac{\sin x}{x}",
        r"\prod_{i=1}^3 i",
        r"\binom{5}{2}",
    ),
    *(r"\det A", r"\log_2 8", r"\frac{d}{dx} x^2", r"\max(1,2)", "5!", "48+24", "48+24+x-x", "(2+i)^2", "2^{10}"),
    *(r"\sqrt{144}", "144/2", r"2 \cdot 3", "3x + 2x", "2x + 3 = 11", "x + y = 5", "5 = 6 = 7", "x^2 = 144 = 12"),
    *(r"\lfloor 2.5 \rfloor", "|-5|", r"17 \bmod 5", r"\sin 30^\circ", "five plus seven", "What is 2 + 2?"),
    *("2024-03-05", "10-15", "3 × 4", "2^2·3", "3/5/2024"),
]


@pytest.mark.parametrize("answer", NO_CLASS)
def test_what_may_be_a_restated_question_has_no_class(answer: str) -> None:
    assert answer_key(answer) is None
    assert vote_key(answer) is None


SAY_NOTHING = [
    *("I do not know", "I don't know.", r"\text{I don’t know}", "unknown", "Unknown.", "$unknown$", "N/A", "n/a", "NA"),
    *("cannot be determined", r"\text{Cannot be determined}", "can't be determined"),
    *("It cannot be determined uniquely", "x = unknown", "The answer is unknown", "unknown or 5", "5, unknown"),
    *("IDK", "idk", "N.A.", "not sure", "I am not sure", "I’m unsure", "no idea", "I have no idea", "unclear"),
    *("no information given", "insufficient data", "not enough information", "Unable to determine"),
    *("impossible to say", "not possible to tell", "not applicable", "ｕｎｋｎｏｗｎ"),
]
VALUES = [
    *("none", "None", "DNE", "undefined", "no solution", "does not exist", "impossible", "no", "no real solutions"),
    *("5", "x", "n", "a", "N", "na", "12 or 13", "odd", "not prime", "infinity", "unknown variable", "yes"),
    "\\emptyset",
]


@pytest.mark.parametrize("answer", SAY_NOTHING)
def test_what_states_nothing_votes_for_nothing_unless_it_is_a_choice(answer: str):
    assert states_nothing(answer)
    assert vote_key(answer) is None
    assert not states_nothing(answer, ["yes", f"({answer})"])
    assert not states_nothing("unknown", ["ｕｎｋｎｏｗｎ"])


@pytest.mark.parametrize("answer", VALUES)
def test_what_states_something_is_an_answer(answer: str):
    assert not states_nothing(answer)
    assert vote_key(answer) is not None


def test_the_page_lists_words_that_state_nothing():
    page = (Path(__file__).parents[2] / "docs" / "answers.md").read_text(encoding="utf-8")
    listed = page.partition("### Votes for nothing")[2].partition("Where votes for nothing")[0]
    single = re.findall(r"^- (unknown, .*|not given, .*|no answer, .*);$", listed, re.MULTILINE)
    words = [word for line in single for word in re.sub(r" \(.*?\)", "", line).split(", ")]
    assert len(words) > 25
    assert [word for word in words if not states_nothing(word)] == []


def test_a_long_text_is_read_in_no_time():
    assert not states_nothing("a is " * 10_000)
    assert not states_nothing("not " * 10_000)

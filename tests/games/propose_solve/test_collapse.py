"""The collapse watch: its counts, memory and warnings, and the true values that it computes."""

import re
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lite_selfplay.games.propose_solve.collapse import (
    BINS,
    HISTORY,
    CollapseWatch,
    collapse_warnings,
    label_is_right,
    true_value,
)

NOTHING = {
    "questions": 0,
    "repeated": None,
    "distinct_tokens": None,
    "pass_rates": [0] * BINS,
    "pass_rate": None,
    "vote_share": None,
    "labels_checked": 0,
    "label_accuracy": None,
}


def look(watch: CollapseWatch, *questions: str, **figures: Any) -> dict[str, Any]:
    return watch.observe(questions, tokens=str.encode, **figures)


def test_a_step_without_questions_has_no_shares():
    assert look(CollapseWatch()) == NOTHING
    assert collapse_warnings(NOTHING) == []
    assert collapse_warnings({}) == []


def test_repeats_are_counted_within_a_step_and_over_steps_and_the_oldest_are_forgotten():
    watch = CollapseWatch()
    assert look(watch, "2 + 2?", "  2 +\n2? ", "Who?")["repeated"] == 1 / 3
    assert look(watch, "WHO?", "new")["repeated"] == 1 / 2
    assert look(watch, "newer")["repeated"] == 0.0
    look(watch, *(f"question {i}" for i in range(HISTORY)))
    assert look(watch, "question 0")["repeated"] == 1.0
    assert look(watch, "question 1", "a new one")["repeated"] == 1 / 2  # drops "question 2"
    assert look(watch, "question 2", "question 0")["repeated"] == 1 / 2
    assert len(watch.seen) == HISTORY


def test_means_labels_and_distinct_tokens():
    labels = [("2 + 2?", "4"), ("2 + 2?", "5"), ("2 + 2?", None), ("Who?", "me"), ("3 * 4", "12.0")]
    figures = {"pass_rates": [0.5, 1.0], "vote_shares": [0.25, 0.5, 0.75], "labels": labels}
    log = look(CollapseWatch(), "aab", "abc", **figures)
    assert (log["pass_rate"], log["vote_share"]) == (0.75, 0.5)
    assert (log["labels_checked"], log["label_accuracy"]) == (3, 2 / 3)
    assert log["distinct_tokens"] == 3 / 6  # of all questions together
    assert look(CollapseWatch(), "abc")["distinct_tokens"] == 1.0


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@example((1, 5))
@example((3, 5))
@example((5, 5))
def test_a_share_of_answers_falls_into_the_bin_that_its_fraction_says(counts):
    k, n = counts
    log = look(CollapseWatch(), pass_rates=[k / n])
    assert log["pass_rates"] == [int(place == min(BINS - 1, BINS * k // n)) for place in range(BINS)]
    assert log["pass_rate"] == k / n


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"questions": 4, "repeated": 0.51}, ["51% of the questions repeat"]),
        ({"questions": 4, "repeated": 0.5}, []),
        ({"questions": 3, "repeated": 1.0}, []),
        ({"questions": 4, "distinct_tokens": 0.25}, ["4 questions are nearly the same: only 25.0% of their tokens"]),
        ({"questions": 4, "distinct_tokens": 0.251}, []),
        ({"questions": 100, "distinct_tokens": 0.01}, ["100 questions are nearly the same: only 1.0% of their tokens"]),
        ({"questions": 100, "distinct_tokens": 0.0101}, []),
        ({"questions": 3, "distinct_tokens": 0.01}, []),
        ({"pass_rates": [4, 0, 0, 0, 0]}, ["agree with the label hardly ever"]),
        ({"pass_rates": [3, 0, 0, 0, 0]}, []),
        ({"pass_rates": [19, 0, 1, 0, 0]}, []),
        ({"pass_rates": [20, 0, 1, 0, 0]}, ["hardly ever"]),
        ({"pass_rates": [0, 0, 0, 0, 4]}, ["nearly always"]),
        ({"pass_rates": [0, 0, 0, 4, 0]}, []),
        ({"labels_checked": 4, "label_accuracy": 0.25}, ["75% of the labels"]),
        ({"labels_checked": 4, "label_accuracy": 0.5}, []),
        ({"labels_checked": 3, "label_accuracy": 0.0}, []),
    ],
)
def test_when_it_warns_from_both_sides_of_each_bound(figures: dict[str, Any], words: list[str]):
    found = collapse_warnings({**NOTHING, **figures})
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))


@pytest.mark.parametrize("count", [4, 512])
def test_sums_are_alike_and_no_collapse_however_many_there_are(count: int):
    sums = [f"What is {100 + 7 * i % 900} + {999 - 13 * i % 900}?" for i in range(count)]

    def tokens(text: str) -> list[int]:  # words, and a digit a token
        return list(map(hash, re.findall(r"[a-z]+|\S", text.lower())))

    longer = [f"Calculate the sum of {100 + 7 * i % 900} and {999 - 13 * i % 900}." for i in range(count)]
    found = [CollapseWatch().observe(asked, tokens=tokens) for asked in (sums, longer, sums[:1] * count)]
    assert [len(collapse_warnings(log)) for log in found] == [0, 0, 2]  # repeated, and all alike


VALUES = {
    "What is 12 + 5?": 17,
    "What is 12 + 5 * 3?": 27,
    "(12 + 5) * 3": 51,
    "What is 1 / 2?": Fraction(1, 2),
    "345 x 678": 233910,
    "Calculate 345 × 678.": 233910,
    "12 ÷ 8 =": Fraction(3, 2),
    "What's 10 / 4?": Fraction(5, 2),
    "1,234 + 5": 1239,
    "What is 1.5 + 2.25?": Fraction(15, 4),
    "What is -5 + 3?": -2,
    "What is −5 − 3?": -8,
    "What is 5 - -3?": 8,
    "**What is 2*3?**": 6,
    "Solve: $12 + 5$": 17,
    "What is 3 +\n4?": 7,
    "Selected Question: What is 12-5?": 7,
}
NO_VALUE = [
    *("", "Who?", "What is 12?", "What is 2 + 3 and 4 + 5?", "What is 20% of 3 + 4?", "What is 20 + 3%?"),
    "12 + 5 = 17",  # says its answer
    *("What is 3 + 5!", "What is sqrt(16 + 9)?", "What is |3 - 5|?", "What is 3 + 4^2?", "x = 3 + 4y", "2x + 3 = 7"),
    *("What is the remainder of 17 / 5?", "Round 12 / 5 to the nearest whole number."),
    "Tom has 3 + 4 apples. How many does he give away?",
    *("a(3 + 4)", "(3 + 4)(2 + 1)", "What is 1 / 0?", "What is (3 + 4?", "1.2.3 + 4", "007 + 1"),
    *("What is 1234567890123 + 1?", "(" * 300 + "1 + 1" + ")" * 300, "1" + " + 1" * 500),
]


def test_values_are_those_of_plain_arithmetic_and_none_is_guessed():
    values = VALUES | dict.fromkeys(NO_VALUE)
    assert {question: true_value(question) for question in values} == values


@pytest.mark.parametrize("text", ["- " * 50_000, " " * 10**6, "1" * 10**5, "1 " * 50_000, "(-" * 400, "1+" * 400])
def test_hostile_questions_take_no_time(text: str):
    started = time.process_time()
    assert true_value(text) is None
    assert time.process_time() - started < 1


@given(st.text(alphabet=st.sampled_from("0123456789+-*/x×÷·−().,$%! \n?abcWhatis"), max_size=60), st.text(max_size=20))
@example("What is 1 + 1?", "'\\d'")
@example("What is 1 + 1?", "5and 3")
@example("What is 1 + 1?", "\x00")
@example("What is 1 + 1?", "9" * 5000)
def test_nothing_raises_on_any_text(question, label):
    assert true_value(question) is None or isinstance(true_value(question), Fraction)
    assert label_is_right(question, label) in (True, False, None)
    assert label_is_right("What is 1 + 1?", label) in (True, False, None)


def test_labels_are_compared_as_answers_are():
    # The checker accepts no unfinished sum as an answer.
    right = {"72": True, "71": False, "seventy-two": True, "48 + 24": False, "": False, None: None}
    assert {label: label_is_right("What is 48 + 24?", label) for label in right} == right
    assert {label_is_right("Who?", label) for label in right} == {None}

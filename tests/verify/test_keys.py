"""Votes: which answers are one class, which are none, and what says that there is no answer."""

import re
from itertools import permutations
from pathlib import Path

import pytest
import yaml

from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.keys import answer_key, states_nothing, vote_key
from lite_selfplay.verify.math import references
from tests.verify.test_pairs import COMPLETIONS, PAIRS

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("answer", CASES["no_class"])
def test_what_may_be_a_restated_question_has_no_class(answer: str) -> None:
    assert answer_key(answer) is None
    assert vote_key(answer) is None


@pytest.mark.parametrize("answer", CASES["states_nothing"])
def test_what_states_nothing_votes_for_nothing_unless_it_is_a_choice(answer: str):
    assert states_nothing(answer)
    assert vote_key(answer) is None
    assert not states_nothing(answer, ["yes", f"({answer})"])
    assert not states_nothing("unknown", ["ｕｎｋｎｏｗｎ"])


@pytest.mark.parametrize("answer", CASES["states_something"])
def test_what_states_something_is_an_answer(answer: str):
    assert not states_nothing(answer)
    assert vote_key(answer) is not None


def test_the_page_lists_words_that_state_nothing():
    page = (Path(__file__).parents[2] / "docs" / "answers.md").read_text(encoding="utf-8")
    listed = page.partition("### Votes for nothing")[2].partition("If no class is larger")[0]
    single = re.findall(r"^- (unknown, .*|not given, .*|no answer, .*);$", listed, re.MULTILINE)
    words = [word for line in single for word in re.sub(r" \(.*?\)", "", line).split(", ")]
    assert len(words) > 25
    assert [word for word in words if not states_nothing(word)] == []


def test_a_long_text_is_read_in_no_time():
    assert not states_nothing("a is " * 10_000)
    assert not states_nothing("not " * 10_000)

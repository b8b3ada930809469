"""What says that there is no answer, and what is one."""

import re
from pathlib import Path

import pytest

from lite_selfplay.verify.keys import states_nothing, vote_key

SAY_NOTHING = [
    *("I do not know", "I don't know.", r"\text{I don’t know}", "unknown", "Unknown.", "$unknown$", "N/A", "n/a", "NA"),
    *("cannot be determined", r"\text{Cannot be determined}", "can't be determined"),
    *("It cannot be determined uniquely", "x = unknown", "The answer is unknown", "unknown or 5", "5, unknown"),
    *("IDK", "idk", "N.A.", "not sure", "I am not sure", "I’m unsure", "no idea", "I have no idea", "unclear"),
    *("no information given", "insufficient data", "not enough information", "Unable to determine"),
    *("impossible to say", "not possible to tell", "not applicable"),
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

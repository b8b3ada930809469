import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lite_selfplay.games.agon.recap import summarise

APPLES = "Tom has 12 apples and buys 30 more. How many does he have?"
TEXTS = yaml.safe_load(Path(__file__).with_name("recaps.yaml").read_text(encoding="utf-8"))
SHOWN, ANNOUNCEMENTS = TEXTS["shown"], TEXTS["announcements"]


def test_a_model_that_does_not_think_shows_its_text_without_the_answer():
    assert {draft: summarise(draft, APPLES, thinks=False) for draft in SHOWN} == SHOWN


VALUES = ["42", "-5", "−12.5", r"\frac{1}{2}", r"2\sqrt{3}", "1,250", "(3, 4)", "C", "converges", "42 km/h", "£7.50"]


@pytest.mark.parametrize("announced", ANNOUNCEMENTS)
def test_a_value_that_is_announced_never_reaches_the_challenger(announced: str):
    for value in VALUES:
        for draft in ("We add both.\n{}", "We add both. {}\nThat was it.", "We add both.\n\n{} <answer>0"):
            draft = draft.format(announced.format(v=value))
            shown = summarise(draft, APPLES, thinks=False)
            assert shown.startswith("We add both.")
            assert value not in shown


@settings(max_examples=50)
@example(100, "As asked: {v}</answer>", "The answer is\n{v}")
@given(st.integers(100, 9999), st.sampled_from(ANNOUNCEMENTS), st.sampled_from(ANNOUNCEMENTS))
def test_nor_does_one_that_is_announced_twice(value: int, one: str, other: str):
    draft = f"First 5 + 6 = 11.\n{one.format(v=value)}\nThus it holds. {other.format(v=value)} <answer>{value}</answer>"
    assert re.search(rf"(?<!\d){value}(?!\d)", summarise(draft, "What is it?", thinks=False)) is None


def test_a_sentence_of_the_problem_tells_nothing_and_stays():
    asked = "The solution is 30% acid. How much water is added to 6 litres of it for one of 20%?"
    draft = "The solution is 30% acid. So 1.8 litres are acid. The answer is 3."
    assert summarise(draft, asked, thinks=False) == "The solution is 30% acid. So 1.8 litres are acid."


@pytest.mark.parametrize(
    ("draft", "prefill", "thinks", "shown"),
    [
        *(("<think>42, secret</think>We add.\n<answer>42</answer>", "", thinks, "We add.") for thinks in (True, False)),
        *(("<think>12 + 30 = 42", "", thinks, "") for thinks in (True, False)),
        *(("<think>a</think>recap<think>again", "", thinks, "") for thinks in (True, False)),
        ("secret 42</think>We add. <answer>42</answer>", "<think>\n", True, "We add."),  # the template opened it
        ("secret 42, and on", "<think>\n", True, ""),
        ("We add 12 and 30.", "", True, ""),  # a thinking model without any block
    ],
)
def test_reasoning_is_never_shown(draft: str, prefill: str, thinks: bool, shown: str):
    assert summarise(draft, APPLES, thinks=thinks, prefill=prefill) == shown


@settings(max_examples=40)
@given(st.text(), st.text(), st.booleans())
def test_any_text_is_accepted(draft: str, problem: str, thinks: bool):
    assert isinstance(summarise(draft, problem, thinks=thinks), str)

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lite_selfplay.games.agon import summarise

APPLES = "Tom has 12 apples and buys 30 more. How many does he have?"


SHOWN = {
    "He adds: 12 + 30 = 42. <answer>42</answer>": "He adds: 12 + 30 = 42.",  # a worked step stays
    "So Tom has 42 apples.": "So Tom has 42 apples.",  # and a value that is not announced
    r"We add: \[12+30=\boxed{42}\] done": r"We add: \[12+30=?\] done",
    r"Then \boxed{\frac{1}{2}} or \fbox{3}": "Then ? or ?",
    r"It is \boxed{42": "It is ?",  # which is not closed
    "We add. <answer>42": "We add.",
    "We add. <answer>42</answer> and again 42": "We add.",
    "We add.\nSo: <3>42</3></answer>": "We add.",  # a block that was never opened
    "We add.\nThe answer is: $42$. Done.": "We add.",  # the rest of the line goes, the next one stays
    "The answer is 42.\nFor 12 + 30 = 42.": "For 12 + 30 = 42.",
    "**Final answer**\n\n\\boxed{42}\nWe checked it.": "We checked it.",  # a heading, the box below
    "Solution:\nTo answer this, add 12 and 30.": "Solution:\nTo answer this, add 12 and 30.",  # no announcements
    "#### 3. Add\n12 + 30": "#### 3. Add\n12 + 30",  # a numbered heading
    **dict.fromkeys(("<answer>42</answer>", "The answer is 42.", r"\boxed{42}", "", "   \n "), ""),
}


def test_a_model_that_does_not_think_shows_its_text_without_the_answer():
    assert {draft: summarise(draft, APPLES, thinks=False) for draft in SHOWN} == SHOWN


ANNOUNCEMENTS = [
    "The answer is {v}.",
    "So the final answer is: {v}.",
    "**Answer:** {v}",
    "answer = {v}",
    "Ans. {v}",
    "ANSWER: **{v}**",
    "{v} is the answer.",
    "Therefore {v} must be our final answer!",
    "This gives the answer {v}.",
    "The answer to the question, then, would be approx. {v}.",
    "The correct answer comes out to {v}, as 1 + 1 = 2. Check: {v}.",
    "#### {v}",
    "Hence the result of all this equals {v}.",
    "Result: {v}",
    "Final result = {v}",
    "The final value is {v}",
    "The solution is x = {v}.",
    "So the correct choice: {v}",
    "Hence option {v} is right.",
    "The best choice is ({v}).",
    "The answer is\n{v}",
    "### Final answer\n\n$${v}$$",
    "### Final answer\n\n\\[\n{v}\n\\]",
    "The answer must be:\n\n\\begin{{pmatrix}}\n1 \\\\\n{v}\n\\end{{pmatrix}}",
    "Final result:\n- {v}",
    "Then \\boxed{{{v}}} follows.",
    "It is $\\boxed {v}$.",
    "<answer>{v}</answer>",
    "<answer>\\boxed{{{v}}}",
    "As asked: {v}</answer>",
]
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

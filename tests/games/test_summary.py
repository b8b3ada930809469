import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.games.summary import summarise

APPLES = "Tom has 12 apples and buys 30 more. How many does he have?"


@pytest.mark.parametrize(
    ("draft", "shown"),
    [
        pytest.param("He adds: 12 + 30 = 42. <answer>42</answer>", "He adds: 12 + 30 = ?.", id="equation and tag"),
        pytest.param("12+30=42. So Tom has 42 apples.", "12+30=?. So Tom has ? apples.", id="prose, no tag"),
        pytest.param("We add them up. The answer is 42.", "We add them up.", id="announced"),
        pytest.param("We add.\nThe final answer is: $42$. Done.", "We add.\n Done.", id="announced in latex"),
        pytest.param("Add. Final result = 42", "Add.", id="final result"),
        pytest.param("Add both. #### 42", "Add both.", id="gsm8k mark"),
        pytest.param(r"We add: \[12+30=\boxed{42}\] done", r"We add: \[12+30=?\] done", id="boxed"),
        pytest.param(r"Then \boxed{\frac{1}{2}} follows", "Then ? follows", id="nested braces"),
        pytest.param(r"It is \boxed{42", "It is ?", id="unclosed box"),
        pytest.param("Adding gives forty-two apples, i.e. 42.0. #### 42", "Adding gives ? apples, i.e. ?.", id="words"),
        pytest.param("We add. <answer>42", "We add.", id="unclosed answer"),
        pytest.param("12 + 30 = 42. <3>42</3></answer>", "12 + 30 = ?. <3>?</3></answer>", id="a tag is no number"),
        pytest.param("We add. <answer>42</answer> and again 42", "We add.", id="text after the answer"),
        pytest.param("12 + 30 = 42, and 42 - 2 = 40. <answer>40", "12 + 30 = 42, and 42 - 2 = ?.", id="steps stay"),
        pytest.param("Half is 0.5, or 1/2. <answer>\\frac{1}{2}</answer>", "Half is ?, or ?.", id="same number"),
        pytest.param(
            "It costs $1,234.50, that is 1234.5. <answer>1234.5</answer>", "It costs $?, that is ?.", id="commas"
        ),
        pytest.param("So it is x^2 + 1. <answer>x^2+1</answer>", "So it is ?.", id="a formula"),
        pytest.param("It is 142 or 4.2, not 42. <answer>42</answer>", "It is 142 or 4.2, not ?.", id="other numbers"),
        pytest.param("<answer>42</answer>", "", id="only the answer"),
        pytest.param("42", "", id="only the number"),
        pytest.param("The answer is 42.", "", id="only the announcement"),
        pytest.param("", "", id="nothing"),
        pytest.param("   \n ", "", id="blank"),
    ],
)
def test_a_model_that_does_not_think_shows_its_text_without_the_answer(draft: str, shown: str):
    assert summarise(draft, APPLES, thinks=False) == shown


@pytest.mark.parametrize("thinks", [True, False])
def test_closed_reasoning_is_never_shown(thinks: bool):
    draft = "<think>12 + 30 = 42, secret</think>We add the two counts.\n<answer>42</answer>"
    assert summarise(draft, APPLES, thinks=thinks) == "We add the two counts."


def test_reasoning_that_the_template_opened():
    draft = "secret 42</think>We add 12 and 30. <answer>42</answer>"
    assert summarise(draft, APPLES, thinks=True, prefill="<think>\n") == "We add 12 and 30."
    assert summarise("secret 42, and on", APPLES, thinks=True, prefill="<think>\n") == ""


@pytest.mark.parametrize("thinks", [True, False])
def test_unclosed_reasoning_shows_nothing(thinks: bool):
    assert summarise("<think>12 + 30 = 42", APPLES, thinks=thinks) == ""
    assert summarise("<think>a</think>recap<think>again", APPLES, thinks=thinks) == ""


def test_a_thinking_model_without_any_block_shows_nothing():
    assert summarise("We add 12 and 30.", APPLES, thinks=True) == ""


def test_a_number_of_the_problem_stays_where_it_is_only_used():
    draft = "He starts with 12 apples. He loses 30 and finds 30. Then 12 - 0 = 12. <answer>12</answer>"
    shown = summarise(draft, APPLES, thinks=False)
    assert shown == "He starts with 12 apples. He loses 30 and finds 30. Then 12 - 0 = ?."
    assert summarise("So 12 it is. <answer>12</answer>", APPLES, thinks=False) == "So ? it is."


@given(
    st.integers(100, 9999), st.sampled_from(["{v}", "= {v}", "is {v}.", "so {v} apples", "\\boxed{{{v}}}", "$v={v}$"])
)
def test_a_final_value_that_the_problem_does_not_name_is_nowhere_in_the_summary(value: int, shape: str):
    line = shape.format(v=value)
    draft = f"First 5 + 6 = 11.\nThen {line}\nThus it holds, {line} <answer>{value}</answer>"
    assert not re.search(rf"(?<!\d){value}(?!\d)", summarise(draft, "What is it?", thinks=False))


@given(st.text(), st.text(), st.booleans())
def test_it_takes_any_text(draft: str, problem: str, thinks: bool):
    assert isinstance(summarise(draft, problem, thinks=thinks), str)

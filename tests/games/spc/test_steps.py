"""Splitting solutions: nothing lost, nothing cut inside, on GSM8K's own solutions and on other styles."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.games.spc.steps import StepPair, beginning, replaced, split_steps
from lite_selfplay.games.worked_examples import without_notes
from tests.made import shared

MATH = [
    "We complete the square: \\[x^2 - 6x + 5 = (x - 3)^2 - 4.\n\n\\]\n\n",
    "So the vertex is at $(3, -4)$.  The axis of symmetry is $x = 3. $\n\n",
    "Therefore the minimum is $-4$ and the answer is $\\boxed{-4}$.",
]
# Headings and introductions belong to the next step, a repeated answer to the previous one.
CHAT = [
    "Let's solve this step by step.\n\n",
    "### Step 1: Find the speed\n\nThe train covers 120 km in 2 hours:\n\n$$v = 60$$\n\n",
    "### Step 2: Find the time\n\n- 180 km are left\n- 180 / 60 = 3\n\n**Answer:** 3 hours",
]
CODE = [
    "We count with a program:\n\n```python\nn = 0\n\nfor i in range(3):\n    n += i\n```\n\n",
    "It prints 3.\n\n<answer>3</answer>",
]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(["27 + 14 = 41. ", "41 - 6 = 35."], id="one line"),
        pytest.param(["It costs $5. ", "Then $6 more."], id="prices are no formula"),
        pytest.param(["If $x = 3. Y$, stop. ", "Go on."], id="a formula is"),
        pytest.param(["Mr. Lee has 3.5 kg, i.e. 7. ", "2 go."], id="short"),
        pytest.param(["1. Add. ", "2. Double it. ", "3. Done."], id="inline list"),
        pytest.param(["1) add 3 ", "2) double it"], id="inline list without full stops"),
        pytest.param(["Step 1: add. It is 7. ", "Step 2: go."], id="inline steps"),
        pytest.param(["1. a\n - b\n", "2. c\n", "So 5.\n#### 5"], id="list"),
        pytest.param(["Here:\n1. **A**:\n- x\n", "2. **B**\ny"], id="nested"),
        pytest.param(["- add: 7\n", "- double: 14"], id="bullets"),
        pytest.param(["We solve for x. ", "Then J. Doe goes."], id="letters"),
        pytest.param(["a = 1\n", "b = 2"], id="lines"),
        pytest.param(["a\n \n\n ", "b\n\n"], id="blank lines with space"),
        pytest.param(["one"], id="a single step"),
        pytest.param(["\\boxed{5}"], id="nothing but an answer"),
        pytest.param(["So:\n\n```\na\n\nb"], id="code that was cut off hides the rest"),
        *(MATH, CHAT, CODE),
    ],
)
def test_where_a_step_ends(steps: list[str]):
    assert split_steps("".join(steps)) == steps


PIECES = [
    *("a.", " B c", "\n", "\n\n", " ", "1. ", "- ", "$x$", "$5", "```", "\\[", "\\]", "<<1+1=2>>", ":", "#### 3"),
    "**b**",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=60))
def test_no_text_is_lost_and_no_step_is_empty(text: str):
    steps = split_steps(text)
    assert "".join(steps) == (text if text.strip() else "")
    assert all(step.strip() for step in steps)


@pytest.mark.parametrize("piece", ["\\(", "1. ", "A. ", " ", "- ", "\n- ", "a:\n\n", "<answer>", "```\n\n", "**step 1"])
def test_a_long_text_of_nothing_much_takes_no_time(piece: str):
    started = time.process_time()
    split_steps(piece * 2000 + "x")
    assert time.process_time() - started < 2


@pytest.mark.data
def test_the_steps_of_gsm8k_are_its_lines():
    solutions = [json.loads(line)["answer"] for line in shared("gsm8k_train").read_text(encoding="utf-8").splitlines()]
    as_lines = 0
    for solution in solutions:
        steps = split_steps(solution)
        assert "".join(steps) == solution
        assert all(step.strip() for step in steps)
        assert all(step.count("<<") == step.count(">>") for step in steps)
        assert not any(step.strip().startswith("####") for step in steps)
        as_lines += len(steps) == len(solution.splitlines()) - 1
    # The others have blank lines, lists, and lines that end with a colon.
    assert as_lines / len(solutions) > 0.97


def test_a_step_in_the_place_of_another():
    steps = split_steps("a b.\n\n  c\n\nd")
    assert replaced(steps, 1, "\nnew\n") == ["a b.\n\n  ", "new\n\n"]
    assert replaced(steps, 0, "new") == ["new\n\n  "]
    assert beginning(replaced(steps, 1, "new")) == "a b.\n\n  new\n\n"
    assert beginning([]) == ""


def test_notes_and_labels():
    assert without_notes("48/2 = <<48/2=24>>24 clips") == "48/2 = 24 clips"
    right, wrong = StepPair("p", "?", "before", "1 + 1 = 2", "1 + 1 = 3").labelled()
    assert (right.extra["step"], right.answer, right.extra["before"]) == ("1 + 1 = 2", "Correct", "before")
    assert (wrong.extra["step"], wrong.answer, wrong.text) == ("1 + 1 = 3", "Incorrect", "?")
    assert right.id != wrong.id

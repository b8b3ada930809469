r"""Checking mathematics, from completion to verdict: right and wrong answers, hedges, formats, benchmark answers."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lite_selfplay.errors import TaskError
from lite_selfplay.verify import math
from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.latex import canonical, tidy, values
from lite_selfplay.verify.math import check, references
from lite_selfplay.verify.quantity import quantity
from tests.made import completion

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
WRAPPERS = [r"so \boxed{%s}.", "<answer>%s</answer>", r"<answer>\boxed{%s}</answer>", "The answer is $%s$.", "#### %s"]


@given(st.integers(), st.sampled_from(WRAPPERS))
def test_an_integer_is_itself_and_not_its_successor(value: int, wrapper: str) -> None:
    text = "Some work. " + wrapper % value
    for reference in (value, str(value), [value], float(value) if abs(value) < 2**50 else value):
        assert check(text, reference).correct
    assert check(text, value + 1).reason == "wrong"


@given(st.integers(), st.integers(), st.sampled_from([" or ", ", ", " and ", "; ", r" \text{ or } ", r"\lor "]))
def test_two_integers_are_a_hedge(value: int, other: int, connective: str) -> None:
    verdict = check(f"<answer>{value}{connective}{other}</answer>", value)
    assert verdict.reason == ("" if value == other else "hedged")
    assert check(f"<answer>{value}{connective}{other}</answer>", [other, value]).correct


@pytest.mark.parametrize(
    ("text", "answer", "reason"),
    [
        *CASES["verdicts"],
        (r"\boxed{" + "1" * 2001 + "}", 12, "unparsable"),
        (r"\boxed{12}", "1+" * 2000, "unparsable"),
    ],
)
def test_reasons(text: str, answer: Any, reason: str) -> None:
    verdict = check(text, answer)
    assert verdict.reason == reason
    assert verdict.correct == (reason == "")
    assert verdict.score == float(verdict.correct)
    assert reason in math.REASONS


def test_the_prefill_opens_the_reasoning() -> None:
    assert check(completion(r"\boxed{1} no </think> \boxed{2}", prefill="<think>\n"), 2).correct
    assert check(completion(r"\boxed{2}", prefill="<think>\n"), 2).reason == "no_answer"
    assert check(completion("why</think><answer>2</answer>", prefill="<think>\n"), 2, thinks=True).well_formed


def test_format_and_correctness_are_independent() -> None:
    texts = (r"\boxed{2}", "<answer>3</answer>", "<answer>2</answer>", "<think>why</think><answer>2</answer>")
    verdicts = [check(text, 2, thinks=thinks) for text in texts for thinks in (False, True)]
    assert [verdict.correct for verdict in verdicts] == [True, True, False, False, True, True, True, True]
    assert [verdict.well_formed for verdict in verdicts] == [False, False, True, False, True, False, True, True]


@pytest.mark.parametrize("answer", [None, {"all_of": [1]}, {"any_of": [1], "x": 2}, {"any_of": [None]}])
def test_a_problem_without_a_reference_is_refused(answer: Any) -> None:
    with pytest.raises(TaskError):
        check(r"\boxed{2}", answer)


def test_references() -> None:
    assert references([1, "x=2"]) == [["1", "x=2"]]
    assert references("3 and 4") == [["3", "4"]]
    assert references({"any_of": ["3", [1, 2]]}) == [["3"], ["1", "2"]]
    assert references("") == [[]]


TEXTS = st.text(max_size=80) | st.text("answer is:=.!?#$\\boxed{}[]()*_ 0123456789,frac/^+-%exor\n", max_size=120)


@given(TEXTS, TEXTS)
def test_a_verdict_for_any_text_and_equal_ones_are_equal(text: str, answer: str) -> None:
    for completion_ in (text, f"<answer>{text}</answer>"):
        verdict = check(completion_, answer)
        assert verdict.reason in math.REASONS
        assert verdict.correct == (verdict.reason == "")
        assert verdict.answer is None or verdict.answer.strip()
    assert judge([values(text)], text) or not values(text)
    assert canonical(tidy(text)) == canonical(tidy(text).strip())


def test_block_only_ignores_other_answers() -> None:
    for text in (r"\boxed{5}", "The answer is 5.", "<answer>5", "#### 5"):
        assert check(text, 5).correct
        assert check(text, 5, block_only=True).reason == "no_answer"
    assert check(r"so \boxed{6} <answer>\boxed{5}</answer>", 5, block_only=True).correct


# Comparisons


def decide(gold: str, answer: str) -> bool:
    return judge([values(gold)], answer)


@pytest.mark.parametrize("text", CASES["no_numbers"])
def test_texts_that_are_not_plain_numbers(text: str) -> None:
    found = quantity(tidy(text))
    assert found is None or found.number is None


@settings(max_examples=30)
@given(st.integers(), st.integers(min_value=2, max_value=10**6))
def test_a_fraction_equals_itself_however_written(top: int, bottom: int) -> None:
    assume(top % bottom)
    spellings = [f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}", f"{3 * top}/{3 * bottom}", f"x = {top} / {bottom}"]
    for gold in spellings:
        assert all(decide(gold, answer) for answer in spellings)
        assert decide(gold, f"{top + 1}/{bottom}") is False


@given(st.integers(min_value=-(10**12), max_value=10**12))
def test_an_integer_with_separators(value: int) -> None:
    assert decide(str(value), f"{value:,}")
    assert decide(str(value), f"${value:,}.00")
    assert decide(str(value), f"{value + 1:,}") is False


@settings(max_examples=30)
@given(st.sets(st.integers(min_value=-99, max_value=99), min_size=1, max_size=5))
def test_the_order_of_a_list_does_not_matter(numbers: set[int]) -> None:
    gold, answer = sorted(numbers), sorted(numbers, reverse=True)
    assert decide("; ".join(map(str, gold)), ", ".join(map(str, answer)))
    assert decide("; ".join(map(str, gold)), ", ".join(map(str, [*answer, 100]))) is False
    assert decide("; ".join(map(str, [*gold, 100])), ", ".join(map(str, answer))) is False


@pytest.mark.timeout(10)
@pytest.mark.parametrize("piece", ["(1,", "{", r"\frac", "1,", r"\pm", " ", "√(", "1 ", r"\text{", "=", "x_", "or "])
def test_repetitive_answers_are_quick(piece: str) -> None:
    text = piece * (2000 // len(piece))
    decide(text, text)
    decide("12", text)

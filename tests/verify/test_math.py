r"""Checking mathematics, from completion to verdict: right and wrong answers, hedges, formats, benchmark answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.errors import TaskError
from lite_selfplay.verify import math
from lite_selfplay.verify.math import check, references
from tests.made import completion

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
        (r"\boxed{12}", 12, ""),
        (r"\boxed{12}", 12.0, ""),
        (r"\boxed{0.1}", 0.1, ""),
        (r"\boxed{0.00001}", 1e-5, ""),
        (r"\boxed{13}", 12, "wrong"),
        (r"\boxed{12} or \boxed{13}", 12, "hedged"),
        (r"<answer>\boxed{12} then \boxed{13}</answer>", 13, "hedged"),
        (r"\boxed{12} or 13", 12, "hedged"),
        (r"\boxed{12}, \boxed{12.0}", 12, ""),
        (r"\boxed{3}, \boxed{4}", [4, 3], ""),
        (r"\boxed{3}", [4, 3], "wrong"),
        (r"\boxed{3, 4, 5}", [4, 3], "wrong"),
        (r"\boxed{12 or 13}", "12 or 13", ""),
        (r"\boxed{6630}", {"any_of": ["6630.65", "6630"]}, ""),
        (r"\boxed{6631}", {"any_of": ["6630.65", "6630"]}, "wrong"),
        (r"\boxed{1, 2}", {"any_of": ["3", [1, 2]]}, ""),
        (r"\boxed{18}", "She sells 9.\n9 * 2 = <<9*2=18>>18\n#### 18", ""),
        (r"\boxed{48+24}", 72, "restated"),
        ("I get 12", 12, "no_answer"),
        (r"<think>\boxed{12}", 12, "no_answer"),
        (r"\boxed{" + "1" * 2001 + "}", 12, "unparsable"),
        (r"\boxed{12}", "", "unparsable"),
        (r"\boxed{12}", "1+" * 2000, "unparsable"),
        (r"\boxed{12}", [], "unparsable"),
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
    verdict = check(completion("why</think><answer>2</answer>", prefill="<think>\n"), 2, thinks=True)
    assert verdict.correct
    assert verdict.well_formed


def test_format_and_correctness_are_independent() -> None:
    assert not check(r"\boxed{2}", 2).well_formed
    assert check("<answer>3</answer>", 2).well_formed
    assert not check("<answer>2</answer>", 2, thinks=True).well_formed


@pytest.mark.parametrize("answer", [None, {"all_of": [1]}, {"any_of": [1], "x": 2}, {"any_of": [None]}])
def test_a_problem_without_a_reference_is_refused(answer: Any) -> None:
    with pytest.raises(TaskError):
        check(r"\boxed{2}", answer)


def test_references() -> None:
    assert references([1, "x=2"]) == [["1", "x=2"]]
    assert references("3 and 4") == [["3", "4"]]
    assert references({"any_of": ["3", [1, 2]]}) == [["3"], ["1", "2"]]
    assert references("") == [[]]


@given(st.text(max_size=60), st.text(min_size=1, max_size=20))
def test_a_verdict_for_any_text(text: str, answer: str) -> None:
    verdict = check(f"<answer>{text}</answer>", answer)
    assert verdict.reason in math.REASONS
    assert verdict.correct == (verdict.reason == "")

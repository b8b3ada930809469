r"""The parts of a completion: examples for every kind of tag and box, properties for arbitrary text."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.verify.format import Reasoning, Span, answer_spans, boxed_spans, split_reasoning, well_formed

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
TAGS = ["<think>", "</think>", "<answer>", "</answer>", r"\boxed{", "}", "{", "\\", " ", "\n", "x", "5"]
TAGGED = st.lists(st.sampled_from(TAGS), max_size=20).map("".join) | st.text(max_size=60)


@pytest.mark.parametrize(("text", "state", "rest"), CASES["reasoning"])
def test_split_reasoning(text: str, state: Any, rest: str) -> None:
    assert split_reasoning(text) == Reasoning(state, rest)


@pytest.mark.parametrize(("text", "contents"), CASES["boxes"].items())
def test_boxed_spans(text: str, contents: list[str]) -> None:
    assert [span.content for span in boxed_spans(text)] == contents


def test_an_unclosed_box_reaches_the_end_and_spans_point_at_the_whole_box() -> None:
    assert boxed_spans(r"so \boxed{1{2}3") == [Span(3, 15, "1{2}3", closed=False)]
    assert boxed_spans(r"a \boxed{5} b") == [Span(2, 11, "5")]


@st.composite
def balanced(draw: st.DrawFn, depth: int = 3) -> str:
    """Text with balanced braces and any number of escaped ones."""
    piece = st.sampled_from(["x", "1", r"\{", r"\}", r"\\", r"\frac", " ", "$", "\n"])
    if depth:
        piece |= balanced(depth=depth - 1).map(lambda inner: "{" + inner + "}")
    return "".join(draw(st.lists(piece, max_size=5)))


@settings(max_examples=30)
@given(balanced(), balanced())
def test_boxes_round_trip_on_nested_braces(first: str, second: str) -> None:
    text = rf"so \boxed{{{first}}} or \fbox{{{second}}}."
    assert [span.content for span in boxed_spans(text)] == [first, second]


@pytest.mark.parametrize(("text", "spans"), CASES["answers"].items())
def test_answer_spans(text: str, spans: list[list[Any]]) -> None:
    assert answer_spans(text) == [Span(*span) for span in spans]


WELL_FORMED = [
    *("<answer>5</answer>", "free text <answer>5</answer>\n ", "<think>why</think><answer>5</answer>"),
    *(" \n<think></think> recap <answer>5</answer>", "<think>I put it in <answer> tags</think><answer>5</answer>"),
]


@pytest.mark.parametrize("text", WELL_FORMED)
def test_well_formed(text: str) -> None:
    assert well_formed(text, thinks=False)
    assert well_formed(text, thinks=True) == ("<think>" in text)


@pytest.mark.parametrize("text", CASES["not_well_formed"])
def test_not_well_formed(text: str) -> None:
    assert not well_formed(text, thinks=False)
    assert not well_formed(text, thinks=True)


def test_the_prefill_counts_as_part_of_the_completion() -> None:
    rest = "why</think> so <answer>5</answer>"
    assert well_formed(rest, thinks=True, prefill="<think>\n")
    assert not well_formed(rest, thinks=True)
    assert not well_formed("<think>" + rest, thinks=True, prefill="<think>\n")
    assert well_formed("<answer>5</answer>", thinks=True, prefill="<think>\n\n</think>\n\n")


@given(TAGGED, st.booleans(), TAGGED)
def test_well_formed_never_raises_and_needs_an_answer(text: str, thinks: bool, prefill: str) -> None:
    if well_formed(text, thinks, prefill):
        (span,) = answer_spans(split_reasoning(prefill + text).rest)
        assert span.closed
        assert span.content.strip()


@given(TAGGED)
def test_spans_lie_in_the_text_in_order(text: str) -> None:
    for spans in (boxed_spans(text), answer_spans(text)):
        edges = [edge for span in spans for edge in (span.start, span.end)]
        assert edges == sorted(edges)
        assert all(span.content in text[span.start : span.end] for span in spans)
    assert text.endswith(split_reasoning(text).rest)

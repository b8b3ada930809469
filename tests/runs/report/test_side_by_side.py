"""Seats side by side: what they said stays text, and what may be chance is called so."""

import re
from dataclasses import replace
from typing import Any

import pytest

from lite_selfplay.data import Completion, EvalSpec, Problem, Sampling, Verdict
from lite_selfplay.errors import UnknownNameError
from lite_selfplay.evaluation.examiner import measure
from lite_selfplay.runs.report.side_by_side import LONGEST, side_by_side

HOSTILE = (
    "<script>alert(1)</script> ![x](http://example.org/x.png)\x1b[31m\u202e \ud800\n```\n# no heading\n" + "a" * 2**20
)


class Table:
    """Each seat says its name and something hostile; A alone is right."""

    thinks = False

    def speak(self, seat: str, prompts: Any, n: int, sampling: Sampling, seeds: Any, beginnings: Any = None) -> Any:
        said = Completion("", f"{HOSTILE} {seat}", (1,), (2, 3), (), "eos", seat, 0, sampling)
        return [[replace(said, prompt=prompt)] * n for prompt in prompts]

    def verify(self, pairs: Any) -> list[Verdict]:
        return [Verdict(c.seat == "A", 1.0, HOSTILE if c.seat == "B" else None, True) for c, _ in pairs]


def page(count: int, *names: str) -> str:
    problems = [Problem(f"p{i}|{HOSTILE[:60]}", HOSTILE, "3") for i in range(count)]
    found = measure(Table(), EvalSpec("single", ("base", "A", "B")), problems, sampling=Sampling())  # type: ignore[arg-type]
    return side_by_side(found, names or None)


def test_what_models_wrote_stays_text():
    shown = page(3)
    assert len(shown) < 30 * LONGEST
    assert not set(shown) & {"\x1b", "\u202e", "\ud800"}
    shown.encode()
    outside = re.sub(r"(?ms)^(`{4,})text\n.*?^\1$", "", shown)
    literal = re.sub(r"(`+) .+? \1", "", outside)  # inline code, of an answer
    assert not re.search(r"(?<!\\)(<\w|\]\()", literal)
    assert shown.count("**A: right**") == 3
    assert shown.count("**base model: wrong**, no answer") == 3


def test_what_may_be_chance_is_called_so():
    assert "| A | 100% [29, 100] |" in page(3, "base", "A")
    assert page(3, "base", "A").endswith("on so few problems the difference may be chance.\n")
    assert "do not overlap" in page(20, "base", "A")
    with pytest.raises(UnknownNameError, match="unknown seat or direction 'C'"):
        page(1, "C")

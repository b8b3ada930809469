"""Lengths by correctness of the draft, by hand."""

from typing import Any

import pytest

from lite_selfplay.games.agon.lengths import answers_of, length_by_draft


def row(step: int, tokens: int, correct: bool | None, draft: bool | None = None, stop: str = "eos") -> dict[str, Any]:
    found = {"step": step, "tokens": tokens, "correct": correct, "stop": stop}
    return found if draft is None else {**found, "draft_correct": draft}


ROWS = [
    row(0, 10, True),
    row(0, 30, False),
    row(0, 8, True, True),
    row(0, 20, False, False, "length"),
    row(1, 4, False, True),
    row(1, 40, True, False),
    row(1, 99, None),
]


def test_lengths_by_draft():
    study = length_by_draft(answers_of(ROWS), [(0, 0), (1, 1)])
    found = {name: cells for name, *cells in study.rows}
    assert found["after any draft"] == ["14", "22", "18", "16.2", "4"]  # 8, 20, 4, 40
    assert found["after a right draft"] == ["8", "4", "6", "2.83", "2"]  # sqrt(8)
    assert found["after a right draft, wrong"] == ["-", "4", "4", "-", "1"]
    assert found["after a wrong draft, right"] == ["-", "40", "40", "-", "1"]
    assert found["right drafts"] == ["10", "-", "10", "-", "1"]
    assert found["wrong drafts"] == ["30", "-", "30", "-", "1"]
    assert study.notes == [
        "mean tokens; 1 of 6 completions were cut off at their limit, and count with it",
        "after a right draft the mean length is 33.3% of that after any",
    ]
    assert study.data["groups"][1]["mean"] == pytest.approx(6.0)


def test_nothing_to_compare():
    study = length_by_draft(answers_of(ROWS[:2]), [(0, 1)])
    assert len(study.notes) == 1

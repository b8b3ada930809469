"""Planes as text, and what each game's studies make of a playthrough."""

from collections.abc import Sequence
from typing import Any

import pytest

from lite_selfplay.games import find_game, make_game
from lite_selfplay.games.studies import (
    HEIGHT,
    WIDTH,
    Point,
    drawn,
    evenly,
    mean,
    share_with_interval,
    window_names,
    within,
)
from lite_selfplay.testing import ScriptedTable, noisy_script


def test_points_are_drawn_by_their_window():
    points = [Point(0, 0.0, 0.0, ""), Point(2, 1.0, 1.0, ""), Point(3, 0.0, 1.0, ""), Point(0, 0.0, 1.0, "")]
    lines = drawn(points, [(0, 1), (2, 3)])
    assert lines[0] == lines[-1] == f"+{'-' * WIDTH}+"
    assert len(lines) == HEIGHT + 2
    assert lines[1] == f"|*{' ' * (WIDTH - 2)}2|"  # the upper corners; two windows share the left one
    assert lines[-2] == f"|1{' ' * (WIDTH - 1)}|"
    assert all(line == f"|{' ' * WIDTH}|" for line in lines[2:-2])
    assert drawn([], [(0, 1)]) == []
    assert sum(line.count("1") for line in drawn([Point(0, 5.0, 5.0, "")], [(0, 1)])) == 1


def test_small_parts():
    assert window_names([(0, 1), (2, 2)]) == ["steps 1-2", "3"]
    assert within([0, 1, 2, 3], (1, 2), int) == [1, 2]
    assert (evenly([1, 2, 3, 4, 5], 2), evenly([1, 2], 3), evenly([], 3)) == ([1, 3], [1, 2], [])
    assert (mean([1.0, 2.0]), mean([])) == (1.5, None)
    assert (share_with_interval(1, 2), share_with_interval(0, 0)) == ("50% [1, 99]", "-")


def rows_of(game: Any, steps: int) -> list[dict[str, Any]]:
    """A playthrough as rows of `episodes.jsonl`, as far as a scripted table has them."""
    table, rows = ScriptedTable(noisy_script(game)), []
    for step in range(steps):
        table.open(step, game.seats(step))
        for stream in game.play(step, table).streams:
            for group in stream.groups:
                for sample in group.samples:
                    said, verdict = sample.completion, sample.verdict
                    about = {"step": step, "role": stream.role, "seat": said.seat, "prompt": said.prompt}
                    judged = {"correct": verdict and verdict.correct, "answer": verdict and verdict.answer}
                    text = {"text": said.text, "tokens": len(said.token_ids), "stop": said.stop}
                    rows.append({**about, **text, **judged, "reason": verdict and verdict.reason, **sample.info})
    table.close()
    return rows


@pytest.mark.parametrize(
    ("name", "options", "studies"),
    [
        ("sqlm", {}, ["label_accuracy", "domains", "diversity"]),
        ("sqlm", {"questions": "pregenerated", "calls": 4}, ["label_accuracy", "domains", "diversity"]),
        ("cpmobius", {"filter": False}, ["label_accuracy", "domains", "diversity"]),
        ("rzero", {"challenger_steps": 2, "solver_steps": 1}, ["label_accuracy", "domains", "diversity"]),
        ("pasodoble", {"proposals": 4, "diversity": False}, ["label_accuracy", "domains", "diversity", "recall"]),
        ("agon", {}, ["lengths"]),
        ("self-refine", {}, ["lengths"]),
        ("grpo", {}, []),
    ],
)
def test_the_studies_of_a_playthrough(name: str, options: dict[str, Any], studies: Sequence[str]):
    game = make_game(name, options, group_size=3, problems_per_step=2)
    seen = find_game(name).observations(rows_of(game, 3), {})
    assert bool(seen) == bool(studies)
    found = [study(seen, [(0, 0), (1, 2)]) for study in find_game(name).studies]
    assert [study.name for study in found] == list(studies)
    for study in found:
        assert all(len(row) == len(study.columns) for row in study.rows), study.name

"""Runs on the card: seats learn, and every game is played."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import Run, RunConfig, train
from lite_selfplay.data import BASE
from lite_selfplay.games import find_game, game_names
from lite_selfplay.games.prompts import fill
from tests.made import jsonl

pytestmark = pytest.mark.gpu


def test_both_seats_learn_the_letters_in_twenty_steps(tmp_path: Path, backend_name: str):
    run = train(
        RunConfig(
            game="agon", model="tiny", backend=backend_name, tasks="letters", steps=20, seed=1, run_dir=tmp_path / "run"
        )
    )
    rows = run.metrics_rows()
    assert all(row.get("nonfinite_what") is None for row in rows)
    for seat in "AB":
        right = [s["accuracy"] for row in rows for s in row["streams"].values() if s["seat"] == seat]
        first, last = sum(right[:4]) / 4, sum(right[-4:]) / 4
        assert last > max(0.75, first + 0.1), f"{seat}: {right}"


LESSONS: Mapping[str, dict[str, Any]] = {
    "absolute-zero": {"max_completion_tokens": 24},
    "agon": {"tasks": "letters"},
    "cpmobius": {
        "max_completion_tokens": 40,
        "tasks": {"train": "arithmetic:max=3,terms=2,ops=+", "validation_limit": 4},
        "game": {"name": "cpmobius", "max_draws": 4, "filter": False},
    },
    "distill": {"tasks": "letters"},
    "grpo": {"tasks": "letters"},
    "kuhn": {"cold_start": {"enabled": False}},
    "pasodoble": {"max_completion_tokens": 40, "game": {"name": "pasodoble", "proposals": 2}},
    "rent": {"tasks": "letters"},
    "rzero": {"max_completion_tokens": 56, "tasks": "arithmetic:max=3,terms=2,ops=+"},
    "self-refine": {"tasks": "letters"},
    "spc": {
        "tasks": "arithmetic:max=3,terms=2,ops=+",
        "game": {"name": "spc", "rounds": 1, "epochs": 1, "batch": 4, "rollouts": 2, "critiques": 2},
        "cold_start": {"enabled": False},
    },
    "spice": {"max_completion_tokens": 56, "tasks": "arithmetic:max=3,terms=2,ops=+"},
    "sqlm": {"max_completion_tokens": 24},
}
"""What the random model can play of each game, in little time."""
OF_ANSWERS = ("agon", "distill", "grpo", "rent", "self-refine")


def test_every_game_has_a_lesson():
    own = [name for name in game_names() if find_game(name).__module__.startswith("lite_selfplay.games.")]
    assert list(LESSONS) == own


def played(game: str, folder: Path, steps: int, **more: Any) -> Run:
    """A run of a game on what the random model can play of it, with nothing in it that is not finite."""
    lines = [{"prompt": fill("solver", problem="1 + 2"), "completion": f"<answer>{value}</answer>"} for value in (3, 4)]
    examples = jsonl(folder / "examples.jsonl", *lines)
    lesson = {"cold_start": {"enabled": True, "steps": steps, "examples_per_step": 2}, **LESSONS[game]}
    if "tasks" not in lesson or game in OF_ANSWERS:
        lesson["cold_start"]["source"] = str(examples)
    sizes = {"group_size": 4, "problems_per_step": 2, "steps": steps, "max_completion_tokens": 20}
    run = train(RunConfig(**{"game": game, "model": "tiny", **sizes, "run_dir": folder / "run", **more, **lesson}))
    rows = run.metrics_rows()
    assert sum(row["tokens"]["generated"] for row in rows) > 0
    assert all(row.get("nonfinite_what") is None for row in rows)
    assert {row["seat"] for row in run.episodes()} <= {*run.seats, BASE}
    return run


@pytest.mark.parametrize("game", LESSONS)
def test_every_game_is_played_for_three_steps(game: str, tmp_path: Path, backend_name: str):
    rows = played(game, tmp_path, 3, backend=backend_name).metrics_rows()
    # SPC ends by itself.
    assert [row["step"] for row in rows] == ([1, 2, 3] if game != "spc" else list(range(1, len(rows) + 1)))
    if game in OF_ANSWERS:
        assert any(stream["rows_trained"] for row in rows for stream in row["streams"].values())

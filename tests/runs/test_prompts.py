"""Prompts that are too long to be asked: counted, told of, and refused where most are."""

from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.errors import TaskError, TrainingError
from lite_selfplay.runs.report.diagnosis import diagnose
from tests.made_runs import Ear, read_lines

from .conftest import problem_file

LIMIT = 700
SMALL: dict[str, Any] = {"game": "grpo", "model": "tiny", "precision": "fp32", "max_completion_tokens": 4}
SMALL |= {"group_size": 2, "problems_per_step": 4, "preflight": False}


def config(folder: Path, long: int, limit: int = LIMIT, **changes: Any) -> RunConfig:
    """A run on eight problems, of which so many have more bytes, which are the tokens of `tiny`, than a prompt may."""
    tasks = problem_file(folder / "p.jsonl", *(f"{n} {'x' * LIMIT if n < long else 'x'}?" for n in range(8)))
    return RunConfig(tasks=tasks, run_dir=folder / "run", run={"max_prompt_tokens": limit}, **SMALL, **changes)


def test_prompts_that_are_never_asked_are_counted_and_told_of(tmp_path: Path):
    ear = Ear()
    run = train(config(tmp_path, 4, steps=2), progress=ear)  # two steps draw each once, and half is not most
    rows = run.metrics_rows()
    asked, too_long = ([row["prompts"][key] for row in rows] for key in ("asked", "too_long"))
    assert sum(asked) == 4
    assert [sum(pair) for pair in zip(asked, too_long, strict=True)] == [4, 4]
    each = len(list(run.episodes())) // 8  # completions of a prompt
    never = [sum(e["stop"] == "prompt_too_long" for e in run.episodes() if e["step"] == step) for step in (1, 2)]
    assert never == [each * count for count in too_long]
    assert any(f"4 of 8 problems of p have more than {LIMIT} tokens" in warning for warning in ear.warned)
    first = next(row for row in rows if row["prompts"]["too_long"])
    said = f"{first['prompts']['too_long']} of 4 prompts are too long and were never asked"
    assert any(said in warning for warning in ear.warned)
    assert said in first["warnings"][0]
    assert any("prompts are too long and were never asked" in cause.sentence for cause in diagnose(run.path).causes)


def test_a_run_whose_prompts_are_short_says_nothing_of_it(tmp_path: Path):
    ear = Ear()
    rows = train(config(tmp_path, 0, steps=1), progress=ear).metrics_rows()
    assert rows[0]["prompts"] == {"asked": 4, "too_long": 0}
    assert not any("long" in warning for warning in [*ear.warned, *rows[0]["warnings"]])


@pytest.mark.parametrize("long", [5, 8])
def test_a_run_most_of_whose_problems_are_too_long_is_refused_before_it_begins(tmp_path: Path, long: int):
    with pytest.raises(TaskError, match=rf"{long} of 8 problems of p have more than {LIMIT} tokens and would never be"):
        train(config(tmp_path, long, steps=1))
    assert not (tmp_path / "run").exists()


def test_a_run_most_of_whose_prompts_are_too_long_for_what_the_game_adds_ends(tmp_path: Path):
    """The problems themselves would do: it shows as the game is played, after the sixth prompt of six."""
    with pytest.raises(TrainingError, match=r"8 of 8 prompts are too long and were never asked.*step-0 is intact"):
        train(config(tmp_path, 0, limit=20, steps=9))
    assert [row["prompts"] for row in read_lines(tmp_path / "run" / "metrics.jsonl")] == 2 * [
        {"asked": 0, "too_long": 4}
    ]

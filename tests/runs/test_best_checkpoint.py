"""The checkpoint that was measured best: kept beside the last ones, written down."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import Run, RunConfig, resume, train
from lite_selfplay.runs.checkpoints import BEST, write_best
from lite_selfplay.runs.folder import RunFolder
from tests.made_runs import saved_steps, write_evaluation

LETTERS = "letters:named=6"
SMALL: dict[str, Any] = {
    "game": "grpo",
    "model": "tiny",
    "tasks": LETTERS,
    "precision": "fp32",
    "group_size": 2,
    "problems_per_step": 1,
    "steps": 5,
    "eval": {"tasks": LETTERS, "limit": 4, "every": 1},
    "run": {"keep_checkpoints": 1},
}


def saved(folder: RunFolder, *steps: int) -> None:
    for step in steps:
        (folder.path / "checkpoints" / f"step-{step}").mkdir(parents=True)
        (folder.path / "checkpoints" / f"step-{step}" / "manifest.json").write_text("{}")


def test_of_equals_the_earliest_and_only_where_a_checkpoint_is_there(tmp_path: Path):
    folder = RunFolder(tmp_path)
    assert folder.best() is None
    for step, rate in ((-1, 0.9), (0, 0.1), (2, 0.5), (4, 0.5), (6, 0.8)):
        write_evaluation(folder, step, rate)
    assert folder.best() is None
    saved(folder, 0, 2, 4)
    best = folder.best()
    assert best is not None
    assert best["step"] == 2


def test_it_is_written_down_and_read_off_the_evaluations_alone(tmp_path: Path):
    folder = RunFolder(tmp_path)
    write_evaluation(folder, 4, 0.75)
    saved(folder, 4)
    best = folder.best()
    assert best is not None
    write_best(tmp_path / "checkpoints", best)
    written = json.loads((tmp_path / "checkpoints" / BEST).read_text())
    assert written == {"step": 4, "pass_at_1": 0.75, "best": "A", "tasks": "letters", "n": 4}
    for text in ("", "[]", '{"step": "../x", "pass_at_1": 0.5}', '{"step": 1, "pass_at_1": NaN}'):
        (tmp_path / "checkpoints" / BEST).write_text(text)
        assert folder.best() == best


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """What an evaluation finds after so many steps."""
    found: dict[int, float] = {}
    write = RunFolder.write_evaluation

    def written(self: RunFolder, name: str, result: Mapping[str, Any]) -> Path:
        return write(self, name, {**result, "pass_at_1": found.get(result["step"], result["pass_at_1"])})

    monkeypatch.setattr(RunFolder, "write_evaluation", written)
    return found


def test_the_best_is_not_dropped_by_a_resume_either_also_where_it_was_not_written_down(
    tmp_path: Path, rates: dict[int, float]
):
    rates.update({0: 0.25, 1: 0.75, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5})
    run = train(RunConfig(**{**SMALL, "steps": 3}, run_dir=tmp_path / "run")).path
    best = json.loads((run / "checkpoints" / BEST).read_text())
    assert (best["step"], best["pass_at_1"], best["best"]) == (1, 0.75, "solver")
    (run / "checkpoints" / BEST).unlink()
    more: Run = resume(run, steps=5)
    assert saved_steps(more.path) == [1, 5]
    assert (RunFolder(run).best() or {})["step"] == 1

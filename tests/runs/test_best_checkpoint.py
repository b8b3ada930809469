"""The checkpoint that was measured best: kept beside the last ones, written down."""

import json
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import Run, RunConfig, resume, train
from lite_selfplay.errors import RunFolderError
from lite_selfplay.evaluation import Exam
from lite_selfplay.runs import loop
from lite_selfplay.runs.checkpoints import BEST, best_evaluation, read_best, write_best
from tests.made_runs import saved_steps

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


def result(step: int, rate: float) -> dict[str, Any]:
    return {"step": step, "pass_at_1": rate, "best": "A", "tasks": LETTERS, "n": 4, "seats": {}}


def test_of_equals_the_earliest_and_only_where_a_checkpoint_is_there():
    made = [result(-1, 0.9), result(0, 0.1), result(2, 0.5), result(4, 0.5), result(6, 0.8)]
    found = best_evaluation(made, {0, 2, 4})
    assert found is not None
    assert found["step"] == 2
    assert best_evaluation(made, {9}) is None
    assert best_evaluation([], {0}) is None
    assert best_evaluation([{"step": 0, "pass_at_1": "1"}, {"step": 0}], {0}) is None


def test_it_is_written_down_and_read_with_distrust(tmp_path: Path):
    assert read_best(tmp_path) is None
    write_best(tmp_path, result(2, 0.5))
    write_best(tmp_path, result(4, 0.75))
    assert read_best(tmp_path) == {"step": 4, "pass_at_1": 0.75, "best": "A", "tasks": LETTERS, "n": 4}
    assert [path.name for path in tmp_path.iterdir()] == [BEST]
    for text in ("", "[]", '{"step": "../x", "pass_at_1": 0.5}', '{"step": 1, "pass_at_1": NaN}'):
        (tmp_path / BEST).write_text(text)
        with pytest.raises(RunFolderError, match=BEST):
            read_best(tmp_path)
    (tmp_path / BEST).unlink()
    (tmp_path / BEST).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="symbolic link"):
        read_best(tmp_path)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """What an evaluation finds after so many steps."""
    found: dict[int, float] = {}
    whole = loop.measure

    class Told:
        def __init__(self, evaluation: Any, rate: float | None):
            self._evaluation, self._rate = evaluation, rate

        def to_json(self) -> dict[str, Any]:
            values: dict[str, Any] = self._evaluation.to_json()
            return values if self._rate is None else {**values, "pass_at_1": self._rate}

    def told(table: Any, spec: Any, exam: Exam, **options: Any) -> Any:
        return Told(whole(table, spec, exam, **options), found.get(exam.about["step"]))

    monkeypatch.setattr(loop, "measure", told)
    return found


def test_the_best_is_not_dropped(tmp_path: Path, rates: dict[int, float]):
    rates.update({0: 0.25, 1: 0.25, 2: 0.75, 3: 0.5, 4: 0.75, 5: 0.0})
    run = train(RunConfig(**SMALL, run_dir=tmp_path / "run")).path
    assert saved_steps(run) == [2, 5]  # 4 is as good, and later
    best = json.loads((run / "checkpoints" / BEST).read_text())
    assert (best["step"], best["pass_at_1"], best["best"]) == (2, 0.75, "solver")


def test_a_resumed_run_finds_the_same_one_also_where_it_was_not_written_down(tmp_path: Path, rates: dict[int, float]):
    rates.update({0: 0.25, 1: 0.75, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5})
    run = train(RunConfig(**{**SMALL, "steps": 3}, run_dir=tmp_path / "run")).path
    (run / "checkpoints" / BEST).unlink()
    more: Run = resume(run, steps=5)
    assert saved_steps(more.path) == [1, 5]
    best = read_best(run / "checkpoints")
    assert best is not None
    assert best["step"] == 1

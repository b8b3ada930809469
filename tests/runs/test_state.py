"""Runs at a glance: their state, the command that goes on, the checkpoint that was measured best, folders of none."""

import json
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs.checkpoints import BEST, write_best
from lite_selfplay.runs.folder import RunFolder, run_folders, state_of, writing
from tests.made_runs import saved_steps, write_evaluation


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.create(RunConfig(game="agon", model="tiny", tasks="letters", steps=4, seats={"A": {}}))
    return folder


def play(run: RunFolder, steps: int, **about: object) -> None:
    for step in range(1, steps + 1):
        run.append({"step": step, **about}, [], 1.0)


def save(run: RunFolder, *steps: int) -> None:
    for step in steps:
        (run.path / "checkpoints" / f"step-{step}").mkdir(parents=True)
        (run.path / "checkpoints" / f"step-{step}" / "manifest.json").write_text("{}")


@pytest.mark.parametrize(
    ("step", "saved", "about", "stage", "goes_on"),
    [
        (0, [], {}, "not begun", False),
        (0, [0], {}, "not begun", True),
        (2, [], {}, "stopped", False),
        (2, [2], {}, "stopped", True),
        (4, [4], {}, "finished", False),
        (2, [2], {"over": True}, "finished", False),  # a game that ended by itself
    ],
)
def test_the_state_of_a_run(run: RunFolder, step: int, saved: list[int], about: Any, stage: str, goes_on: bool):
    play(run, step, **about)
    save(run, *saved)
    state = state_of(run.path)
    assert (state.game, state.model, state.step, state.steps, state.stage) == ("agon", "tiny", step, 4, stage)
    assert state.resume == (f"lite-selfplay train --resume {run.path}" if goes_on else None)
    assert state.size == sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file()) > 0
    with writing(run.path):
        assert (state_of(run.path).stage, state_of(run.path).resume) == ("running", None)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3')  # which a kill cut short
    assert state_of(run.path).step == step


def test_a_cold_start_alone_is_called_one_and_has_nothing_to_go_on_with(run: RunFolder):
    save(run, 0)
    (run.path / "environment.json").write_text('{"only": "cold start"}')
    assert (state_of(run.path).stage, state_of(run.path).resume) == ("cold start", None)
    play(run, 1)  # by somebody who went on with it all the same
    assert (state_of(run.path).stage, state_of(run.path).resume is None) == ("stopped", False)


@pytest.mark.parametrize("content", ["nonsense\n", '{"step": "1"}\n', "[1]\n"])
def test_a_damaged_run_has_a_problem(run: RunFolder, content: str):
    (run.path / "metrics.jsonl").write_text(content)
    state = state_of(run.path)
    assert state.stage == "damaged"
    assert "metrics.jsonl" in state.problem


def test_the_runs_in_a_folder(run: RunFolder, tmp_path: Path):
    (tmp_path / "runs" / "no run").mkdir()
    assert run_folders(tmp_path / "runs") == run_folders(run.path) == [run.path]
    assert run_folders(tmp_path / "runs" / "no run") == []
    with pytest.raises(RunFolderError, match="cannot read"):
        run_folders(tmp_path / "nowhere")


# The checkpoint that was measured best


def test_of_equals_the_earliest_and_only_where_a_checkpoint_is_there(run: RunFolder):
    for step, rate in ((-1, 0.9), (0, 0.1), (2, 0.5), (4, 0.5), (6, 0.8)):
        assert run.best() is None
        write_evaluation(run, step, rate)
    save(run, 0, 2, 4)
    assert state_of(run.path).best == "50% after 2 steps"
    best = run.best() or {}
    write_best(run.path / "checkpoints", best)
    written = json.loads((run.path / "checkpoints" / BEST).read_text())
    assert written == {"step": 2, "pass_at_1": 0.5, "best": "A", "tasks": "letters", "n": 4}
    for text in ("", '{"step": "../x", "pass_at_1": 0.5}'):  # it is for readers: what counts are the evaluations
        (run.path / "checkpoints" / BEST).write_text(text)
        assert run.best() == best


def test_the_best_is_not_dropped_by_a_resume_either_also_where_it_was_not_written_down(tmp_path, monkeypatch):
    rates, write = [0.5, 0.25, 0.75, 0.5, 0.5, 0.5, 0.5], RunFolder.write_evaluation  # untouched, and by step

    def written(self: RunFolder, name: str, result: Any) -> Path:
        return write(self, name, {**result, "pass_at_1": rates[result["step"] + 1]})

    monkeypatch.setattr(RunFolder, "write_evaluation", written)
    small = {"precision": "fp32", "group_size": 2, "problems_per_step": 1, "run": {"keep_checkpoints": 1}}
    measured = {"tasks": "letters", "eval": {"tasks": "letters", "limit": 4, "every": 1}}
    run = train(RunConfig(game="grpo", model="tiny", steps=3, run_dir=tmp_path / "run", **small, **measured)).path
    best = json.loads((run / "checkpoints" / BEST).read_text())
    assert (best["step"], best["pass_at_1"], best["best"]) == (1, 0.75, "solver")
    (run / "checkpoints" / BEST).unlink()
    assert saved_steps(resume(run, steps=5).path) == [1, 5]
    assert (RunFolder(run).best() or {})["step"] == 1

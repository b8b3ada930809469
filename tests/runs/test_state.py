"""Runs at a glance: their state, the command that goes on, and folders that are none."""

from pathlib import Path

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs.folder import RunFolder, run_folders, state_of, writing
from tests.made_runs import write_evaluation


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.create(RunConfig(game="agon", model="tiny", tasks="letters", steps=4, seats={"A": {}}))
    return folder


def play(run: RunFolder, steps: int, **about: object) -> None:
    for step in range(1, steps + 1):
        run.append({"step": step, **about}, [], 1.0)


def save(run: RunFolder, step: int) -> None:
    (run.path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    (run.path / "checkpoints" / f"step-{step}" / "manifest.json").write_text("{}")


def test_a_run_that_has_not_begun(run: RunFolder):
    state = state_of(run.path)
    assert (state.game, state.model, state.step, state.steps, state.stage) == ("agon", "tiny", 0, 4, "not begun")
    assert state.size == sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file()) > 0
    assert state.resume is None
    save(run, 0)
    assert state_of(run.path).resume == f"lite-selfplay train --resume {run.path}"


def test_a_run_that_stopped_is_resumed_from_a_checkpoint(run: RunFolder):
    play(run, 2)
    assert (state_of(run.path).stage, state_of(run.path).resume) == ("stopped", None)
    save(run, 2)
    write_evaluation(run, 2, 0.5)
    state = state_of(run.path)
    assert state.resume == f"lite-selfplay train --resume {run.path}"
    assert state.best == "50% after 2 steps"


def test_a_cold_start_alone_is_called_one_and_has_nothing_to_go_on_with(run: RunFolder):
    save(run, 0)
    (run.path / "environment.json").write_text('{"only": "cold start"}')
    assert (state_of(run.path).stage, state_of(run.path).resume) == ("cold start", None)
    play(run, 1)  # by somebody who went on with it all the same
    assert (state_of(run.path).stage, state_of(run.path).resume is None) == ("stopped", False)


def test_a_run_that_goes_on_and_one_that_is_done(run: RunFolder):
    play(run, 2)
    with writing(run.path):
        assert state_of(run.path).stage == "running"
    play(run, 4)
    assert state_of(run.path).stage == "finished"


def test_a_game_that_ended_by_itself(run: RunFolder):
    play(run, 2, over=True)
    assert (state_of(run.path).stage, state_of(run.path).resume) == ("finished", None)


@pytest.mark.parametrize("content", ["nonsense\n", '{"step": "1"}\n', "[1]\n"])
def test_a_damaged_run_has_a_problem(run: RunFolder, content: str):
    (run.path / "metrics.jsonl").write_text(content)
    state = state_of(run.path)
    assert state.stage == "damaged"
    assert "metrics.jsonl" in state.problem


def test_a_line_that_a_kill_cut_short_is_passed_over(run: RunFolder):
    play(run, 2)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3')
    assert state_of(run.path).step == 2


def test_the_runs_in_a_folder(run: RunFolder, tmp_path: Path):
    (tmp_path / "runs" / "no run").mkdir()
    assert run_folders(tmp_path / "runs") == run_folders(run.path) == [run.path]
    assert run_folders(tmp_path / "runs" / "no run") == []
    with pytest.raises(RunFolderError, match="cannot read"):
        run_folders(tmp_path / "nowhere")

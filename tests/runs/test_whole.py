"""What is half made is taken by nobody for whole: a run stopped in its cold start, and seats of the save before."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, cold_start, evaluate, train
from lite_selfplay.errors import Interrupted, RunFolderError
from lite_selfplay.extras.export.exporting import export
from lite_selfplay.extras.reproduce.conduct import _newest
from lite_selfplay.extras.talk import speakers_of
from lite_selfplay.runs.folder import state_of
from lite_selfplay.runs.targets import Target
from lite_selfplay.tasks.files import sha256_of
from tests.made import jsonl
from tests.made_runs import Ear

WEIGHTS = "adapter_model.safetensors"
SMALL: dict[str, Any] = {"game": "grpo", "model": "tiny", "tasks": "letters", "precision": "fp32", "group_size": 2}
SMALL |= {"problems_per_step": 1, "steps": 2, "max_completion_tokens": 8, "run": {"save_every": 1}}


class Stopping(Ear):
    """Stops a run when a phase has come so far."""

    def __init__(self, phase: str, done: int):
        super().__init__()
        self._at = phase, done

    def advance(self, done: int, note: str = "") -> None:
        if self.phases[-1][0].startswith(self._at[0]) and done == self._at[1]:
            raise Interrupted("stopped by SIGTERM")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in its cold start."""
    folder = tmp_path_factory.mktemp("half")
    source = str(jsonl(folder / "taught.jsonl", *({"prompt": f"Write {one}", "completion": one} for one in "abcd")))
    section = {"source": source, "steps": 4, "examples_per_step": 2}
    with pytest.raises(Interrupted, match="saved before step 1"):
        cold_start(RunConfig(**SMALL, cold_start=section, run_dir=folder / "run"), progress=Stopping("cold start", 2))
    return folder / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(RunConfig(**SMALL, run_dir=tmp_path_factory.mktemp("whole") / "run")).path


def talk(run: Path, tmp_path: Path) -> None:
    with speakers_of(str(run)):
        pass


TAKE: dict[str, Callable[[Path, Path], object]] = {
    "eval": lambda run, _: evaluate(run, "letters", limit=2),
    "a seat of it": lambda run, _: evaluate(run, "letters", limit=2, seats=["solver@0"]),
    "chat": talk,
    "export": lambda run, place: export(run, out=place / "out"),
    "export of step 0": lambda run, place: export(run, "solver@0", out=place / "out"),
    "init": lambda run, place: train(RunConfig(**SMALL, init=str(run), run_dir=place / "run")),
}


@pytest.mark.parametrize("taker", TAKE)
def test_a_run_stopped_in_its_cold_start_is_no_start_and_not_measured(half: Path, tmp_path: Path, taker: str):
    with pytest.raises(RunFolderError, match=r"in its cold start, which `lite|within the cold start"):
        TAKE[taker](half, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert (_newest(half), state_of(half).stage) == (None, "not begun")


def test_seats_of_the_save_before_are_not_measured_and_the_run_is_not_finished(whole: Path, tmp_path: Path):
    """A kill, or a full disk, came between the last checkpoint and `adapters/`."""
    run = shutil.copytree(whole, tmp_path / "run")
    assert state_of(run).stage == "finished"
    last, before = (run / f"checkpoints/step-{step}/adapters/solver/{WEIGHTS}" for step in (2, 1))
    shutil.copyfile(before, run / "adapters/solver" / WEIGHTS)
    assert sha256_of(last) != sha256_of(before)
    found = evaluate(run, "letters", limit=2).to_json()
    assert found["weights"] == {"solver": sha256_of(last)}
    written = export(run, to="peft", out=tmp_path / "out", verify=False).path
    assert sha256_of(written / WEIGHTS) == sha256_of(last)
    state = state_of(run)
    assert (state.stage, state.resume) == ("stopped", f"lite-selfplay train --resume {run}")
    shutil.rmtree(run / "checkpoints/step-2")  # a kill between the last step's lines and its checkpoint
    assert state_of(run).stage == "stopped"


def test_what_was_measured_is_what_was_hashed(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run may be trained on meanwhile."""
    run = shutil.copytree(whole, tmp_path / "run")
    table = Target.table

    def moved(self: Target, *given: Any, **named: Any) -> Any:
        shutil.copyfile(run / f"checkpoints/step-1/adapters/solver/{WEIGHTS}", self.saved["solver"] / WEIGHTS)
        return table(self, *given, **named)

    monkeypatch.setattr(Target, "table", moved)
    with pytest.raises(RunFolderError, match="was saved again meanwhile: repeat the command"):
        evaluate(run, "letters", limit=2)


def test_a_damaged_checkpoint_is_passed_over_aloud(whole: Path, tmp_path: Path):
    run, ear = shutil.copytree(whole, tmp_path / "run"), Ear()
    (run / "checkpoints/step-2/state.json").write_text("{}")
    found = evaluate(run, "letters", limit=2, progress=ear).to_json()
    assert found["weights"] == {"solver": sha256_of(run / f"checkpoints/step-1/adapters/solver/{WEIGHTS}")}
    assert any("skipped" in said and "step-2" in said for said in ear.warned)

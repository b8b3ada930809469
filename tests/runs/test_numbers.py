"""What a run does with numbers that are not finite, with a disk that is full, and with the time since its last save."""

import contextlib
import errno
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import Game, RunConfig, resume, train
from lite_selfplay.errors import RewardError, SaveFailed, TrainingError
from lite_selfplay.runs import folder as folders
from lite_selfplay.runs import saving
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.loop import RunLoop
from lite_selfplay.runs.report.closing import closing_report
from lite_selfplay.runs.report.step_rows import only_finite
from lite_selfplay.training.atomic_update import largest
from lite_selfplay.training.progress import as_progress
from tests.made_runs import loop_of, read_lines, saved_steps


def config(folder: Path, **changes: Any) -> RunConfig:
    small = {"game": "grpo", "model": "tiny", "tasks": "letters", "group_size": 2, "problems_per_step": 2}
    return RunConfig(**{**small, "precision": "fp32", "steps": 4, "save_every": 2, "run_dir": folder, **changes})


@contextlib.contextmanager
def run_of(settings: RunConfig, **options: Any) -> Any:
    folder = RunFolder(settings.run.dir or Path())
    folder.create(settings)
    with loop_of(settings, folder.path, **options) as loop:
        yield loop


def warnings(said: list[str], part: str) -> list[str]:
    return [line for line in said if line.startswith("warning: ") and part in line]


def spoil(loop: RunLoop, steps: set[int]) -> None:
    """Give the loss of these steps a NaN."""
    honest = loop.trainer.loss.of

    def spoiled(*arguments: Any, **options: Any) -> Any:
        found = honest(*arguments, **options)
        return replace(found, value=found.value * math.nan) if loop.done in steps else found

    loop.trainer.loss.of = spoiled  # type: ignore[method-assign]


def uneven(completions: list[str]) -> list[float]:
    """A reward that differs within every group."""
    return [float(i % 2) for i in range(len(completions))]


def test_bad_steps_are_skipped_counted_and_named_and_the_run_goes_on(tmp_path: Path):
    said: list[str] = []
    with run_of(config(tmp_path / "run", steps=5), reward=uneven, progress=as_progress(said.append)) as loop:
        spoil(loop, {1, 2})
        loop.run()
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["nonfinite"] for row in rows] == [0, 1, 2, 2, 2]
    assert [row["skipped_steps"] for row in rows] == [0, 1, 2, 2, 2]
    assert [row["seats"]["solver"]["updates"] for row in rows] == [1, 1, 1, 2, 3]
    assert rows[1]["nonfinite_what"] == "the loss of solver (seat solver) is nan"
    assert rows[3]["nonfinite_what"] is None
    # The state after step 2 would have been saved: a bad step came between, and the save waits for a good one.
    assert saved_steps(tmp_path / "run") == [0, 4, 5]
    assert warnings(said, "step 2 was skipped and updated nothing: the loss of solver (seat solver) is nan (1 in a row")
    assert warnings(said, "(2 in a row, the run stops at 3)")
    assert any("skipped, the loss of solver" in line for line in said)
    closing = closing_report(Game, loop.resources.config, rows, {}, "run")
    assert "2 of 5 steps met a number that is not finite and updated nothing" in closing


def test_too_many_in_a_row_stop_the_run_and_the_last_good_state_stays(tmp_path: Path):
    run = tmp_path / "run"
    with run_of(config(run, steps=9, run={"max_bad_steps": 2}), reward=uneven) as loop:
        spoil(loop, set(range(3, 9)))
        with pytest.raises(TrainingError, match=r"2 steps in a row .* \(step 5: the loss of solver .* is na") as caught:
            loop.run()
    assert f"{run}/checkpoints/step-2 is intact" in str(caught.value)
    assert f"resume('{run}', reward=uneven)" in str(caught.value)  # by the checkpoint: this run has no environment.json
    assert caught.value.exit_code == 1
    assert saved_steps(run) == [0, 2]
    assert len(read_lines(run / "metrics.jsonl")) == 5
    assert len(resume(run, reward=uneven, steps=3).metrics_rows()) == 3


def test_seats_that_are_not_finite_are_never_saved(tmp_path: Path):
    run = tmp_path / "run"
    with run_of(config(run)) as loop:
        loop.save()
        before = (run / "adapters/solver/adapter_model.safetensors").read_bytes()
        parameter = next(iter(loop.resources.loaded.adapters.parameters("solver").values()))
        parameter.data.view(-1)[0] = math.inf
        with pytest.raises(TrainingError, match=r"weight of seat solver is not finite: not saved\. .*step-0 is intact"):
            loop.save()
    assert saved_steps(run) == [0]
    assert (run / "adapters/solver/adapter_model.safetensors").read_bytes() == before


def odd(completions: list[str]) -> list[float]:
    return [math.nan] * len(completions)


def gone(completions: list[str]) -> list[float]:
    raise KeyError("gone")


@pytest.mark.parametrize(("fails", "how"), [(odd, "returned nan"), (gone, "raised KeyError")])
def test_a_reward_function_that_fails_finds_the_run_saved(tmp_path: Path, fails: Any, how: str):
    run, rewards = tmp_path / "run", iter([uneven, fails])
    with pytest.raises(RewardError, match=rf"{how}.*; saved before step 2\. Continue with") as caught:
        train(config(run, save_every=50), reward=lambda completions: next(rewards)(completions))
    if fails is gone:  # with its line, and with the whole traceback for --debug
        assert re.search(r'test_numbers\.py, line \d+: raise KeyError\("gone"\)\)', str(caught.value))
        assert isinstance(caught.value.__cause__.__cause__, KeyError)
    assert saved_steps(run) == [0, 1]
    assert len(resume(run, steps=2, reward=uneven).metrics_rows()) == 2


def test_numbers_that_json_cannot_hold():
    odd = {"a": [1, math.nan, {"b": -math.inf}], "c": "nan", "d": None}
    assert only_finite(odd) == {"a": [1, None, {"b": None}], "c": "nan", "d": None}


def test_the_largest_of_some_tensors_is_finite_where_all_their_numbers_are():
    huge = torch.full((3,), 3e38)
    assert largest([]) == 0.0
    assert largest([huge, torch.empty(0), torch.zeros(())]) == huge[0]
    for odd in (math.nan, math.inf, -math.inf):
        assert not largest([huge, torch.tensor([[0.0, odd]])]).isfinite()


def failing(at: set[int], error: Exception, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, of which these calls fail."""
    calls = itertools.count()

    def called(*arguments: Any, **options: Any) -> Any:
        if next(calls) in at:
            raise error
        return work(*arguments, **options)

    return called


def test_a_save_that_fails_is_said_and_tried_again_and_the_last_one_must_succeed(tmp_path: Path, monkeypatch):
    said, run = list[str](), tmp_path / "run"
    save = failing({1, 4}, SaveFailed("the disk is full"), saving.save_checkpoint)
    monkeypatch.setattr(saving, "save_checkpoint", save)
    with pytest.raises(SaveFailed, match=r"saving before step 5 failed: .*step-3 is intact") as caught:
        train(config(run, save_every=1), progress=said.append)
    assert caught.value.exit_code == 1
    (warning,) = warnings(said, "the disk is full")
    assert f"saving before step 2 failed: the disk is full. {run}/checkpoints/step-0 is intact" in warning
    assert "The run continues, and tries again at the next save" in warning
    assert saved_steps(run) == [0, 2, 3]
    assert len(resume(run).metrics_rows()) == 4


def test_a_line_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tmp_path / "run"
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(RunFolder, "append", failing({3}, error, RunFolder.append))
    with pytest.raises(SaveFailed, match=r"cannot write step 4 to .*: No space left on device.*step-2 is intact"):
        train(config(run))
    assert len(read_lines(run / "metrics.jsonl")) == 3
    assert len(resume(run).metrics_rows()) == 4


def test_saves_by_time_as_well_as_by_step(tmp_path: Path):
    now = [0.0]

    def reward(completions: list[str]) -> list[float]:
        now[0] += 240.0  # a step of four minutes
        return uneven(completions)

    def steps_saved(name: str, **run: Any) -> list[int]:
        settings = config(tmp_path / name, steps=6, save_every=5, run={"keep_checkpoints": 9, **run})
        with run_of(settings, reward=reward, clock=lambda: now[0]) as loop:
            loop.run()
        return saved_steps(tmp_path / name)

    assert steps_saved("default") == [0, 3, 5, 6]  # after twelve minutes; at step 5, from which it counts anew
    assert steps_saved("off", save_minutes=0) == [0, 5, 6]


LETTERS = "letters:named=6"


def test_an_evaluation_that_cannot_be_written_is_said_and_written_with_the_next_save(tmp_path: Path, monkeypatch):
    said, run = list[str](), tmp_path / "run"
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(folders, "write_whole", on_paths("eval/step-000002.json", full, folders.write_whole))
    measured = {"tasks": LETTERS, "limit": 2, "every": 2}
    train(config(run, eval=measured), progress=said.append)
    (warning,) = warnings(said, "writing the evaluation step-000002 failed")
    assert "No space left on device" in warning
    assert "The run continues, and tries again at the next save" in warning
    assert sorted(path.stem for path in (run / "eval").iterdir()) == ["base", *(f"step-{n:06}" for n in (0, 2, 4))]


def on_paths(end: str, error: Exception, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, which fails for the first path with this end."""
    left = {end}

    def called(path: Path, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith(end) and left:
            left.clear()
            raise error
        return work(path, *arguments, **options)

    return called


def test_a_bad_evaluation_stops_no_save_and_is_made_again(tmp_path: Path):
    """Neither one that is there when a run goes on, nor one that comes while it trains."""
    said, run = list[str](), tmp_path / "run"
    measured = {"tasks": LETTERS, "limit": 2, "every": 2}
    train(config(run, steps=2, eval=measured))
    whole = (run / "eval/step-000002.json").read_text()
    (run / "eval/step-000002.json").write_text("{")
    (run / "eval/single-letters-2.json").write_text("{")

    def reward(completions: list[str]) -> list[float]:
        (run / "eval/mine.json").write_text("[")
        return uneven(completions)

    resume(run, steps=4, reward=reward, progress=said.append)
    assert (run / "eval/step-000002.json").read_text() == whole
    assert warnings(said, "single-letters-2.json")
    assert saved_steps(run) == [0, 2, 4]
    assert (run / "eval/step-000004.json").exists()

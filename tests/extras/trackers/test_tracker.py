"""Trackers hear the viewer's curves, and warnings as text alone: each read back by its own library."""

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lite_selfplay import RunConfig, load_run, resume, train
from lite_selfplay.errors import ConfigError
from lite_selfplay.extras.trackers import AccelerateTracker
from lite_selfplay.games import find_game
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.report.figures import charts_of

AGON = find_game("agon")
NEEDS = 'needs pip install "lite-selfplay[trackers]"'
HOSTILE = "<script>alert(1)</script>\x1b[31m red\x1b]0;title\x07 \u202eevil \ud800 ```\n# no heading"
"""What a warning may quote: markup, escape sequences, bidirectional marks, halves of surrogate pairs."""

STREAM = {
    "seat": "A", "completions": 8, "reward_mean": 1.5, "accuracy": 0.5, "well_formed": 1.0, "tokens_mean": 9.0,
    "truncated": 0.25, "groups": 2, "zero_variance_groups": 1, "kl": None, "loss": 0.01, "clipped": None,
    "sampler_gap": 1e-6, "base_gap": 0.1,
}  # fmt: skip
METRICS = {
    "streams": {"drafter": STREAM, "challenger": {**STREAM, "seat": "B", "reward_mean": 2.5}},
    "seats": {"A": {"grad_norm": 0.3}, "B": {"grad_norm": None}},
    "game": {"pairs": 8, "conversions": 2, "regressions": 1, "empty_summaries": 0.0},
}
SCORE = {"pass_at_1": 0.5, "ci95": [0.25, 0.75]}
RESULT = {"n": 4, "step": 2, "seats": {"A": SCORE}, "directions": {"A->B": {"pass_at_1": 0.75, "ci95": [0.5, 1.0]}}}
EXPECTED = {"Learning/reward/drafter": 1.5, "Learning/reward/challenger": 2.5, "Learning/accuracy/drafter": 0.5}
EXPECTED |= {"Health/truncated/drafter": 0.25, "Health/gradient norm/A": 0.3, "The game/conversions a step": 2.0}


def tell(tracker: AccelerateTracker) -> None:
    """A run of two steps, as a session tells it."""
    tracker.open(0)
    for step in (1, 2):
        tracker.step({"step": step, **METRICS}, "")
    tracker.evaluated("after 2 steps", RESULT, "")
    tracker.warn(f"drafts are empty: {HOSTILE}")
    tracker.close()


def told(sentences: list[str], folder: Path, kind: str) -> AccelerateTracker:
    settings = RunConfig(game="agon", model="tiny", tasks="letters", report_to=kind)
    return AccelerateTracker(kind, settings, AGON, folder, sentences.append)


def is_text_alone(warning: str) -> None:
    """It stands inside a fence that it cannot close, and drives nothing."""
    assert warning.startswith("````text\ndrafts are empty: <script>")
    assert warning.endswith("\n````")
    assert not set(warning) & {"\x1b", "\x07", "\u202e", "\ud800"}


def is_what_was_told(lines: Sequence[Mapping[str, Any]], step: str) -> None:
    """What a library kept has the curves, at its key of steps, the evaluation and the warning."""
    first = next(line for line in lines if line.get(step) == 1 and "Learning/reward/drafter" in line)
    assert {key: first[key] for key in EXPECTED} == EXPECTED
    assert any(line.get("Learning/pass@1, 4 held-out problems/A->B") == 0.75 for line in lines)
    (warning,) = [line["warnings"] for line in lines if "warnings" in line]
    is_text_alone(warning)


# TensorBoard


@pytest.fixture
def events() -> Iterator[Callable[[Path], Any]]:
    """What TensorBoard reads in a folder."""
    read = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=NEEDS)

    def events(folder: Path) -> Any:
        found = read.EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
        found.Reload()
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield events


def test_tensorboard_holds_curves_and_warnings(events: Any, tmp_path: Path):
    sentences: list[str] = []
    tell(told(sentences, tmp_path, "tensorboard"))
    assert sentences == []
    found = events(tmp_path)
    scalars = {tag: [(e.step, round(e.value, 6)) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    assert {tag: scalars[tag] for tag in EXPECTED} == {tag: [(1, v), (2, v)] for tag, v in EXPECTED.items()}
    assert scalars["Learning/pass@1, 4 held-out problems/A->B"] == [(2, 0.75)]
    (warning,) = found.Tensors("warnings/text_summary")
    is_text_alone(warning.tensor_proto.string_val[0].decode())


def test_a_run_and_its_resume_have_the_curves_of_the_viewer(events: Any, tmp_path: Path):
    settings = {"model": "tiny", "precision": "fp32", "tasks": "letters", "max_completion_tokens": 6, "group_size": 4}
    settings |= {"problems_per_step": 2, "steps": 1, "report_to": "tensorboard"}
    path = train(RunConfig(game="agon", **settings, run_dir=tmp_path / "r")).path
    resume(path, steps=2)
    found = events(path)
    shown = charts_of(AGON, RunFolder.open(path), load_run(path).metrics_rows())
    for chart in shown:
        for line in chart["lines"]:
            tag = "/".join(filter(None, [chart["group"], chart["name"].replace("/", "|"), line["name"]]))
            got = [(event.step, pytest.approx(event.value, abs=1e-5)) for event in found.Scalars(tag)]
            assert list(zip(line["steps"], line["values"], strict=True)) == got
    assert len(shown) > 10
    assert len(load_run(path).metrics_rows()) == 2


# Weights & Biases, Trackio: in processes of their own, which read their folders' names once

_CHILD = """
import json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_tracker
sentences = []
test_tracker.tell(test_tracker.told(sentences, Path({folder!r}), {kind!r}))
print(json.dumps(sentences), file=sys.stderr)
{then}
"""


def in_a_process(kind: str, folder: Path, then: str = "", **environment: str) -> str:
    """Tell a tracker of a run, and return what that and what is done `then` printed on stdout."""
    folder.mkdir()
    code = _CHILD.format(tests=str(Path(__file__).parent), folder=str(folder), kind=kind, then=then)
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=250
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stderr.splitlines()[-1]) == [], run.stderr
    return run.stdout


def wandb_records(data: bytes) -> list[bytes]:
    """The records of an offline run's file: LevelDB's log format after a header of seven bytes."""
    place, found, part = 7, [], b""
    while place + 7 <= len(data):
        if (room := 2**15 - place % 2**15) < 7:  # what is left of a block is padding
            place += room
            continue
        size, kind = struct.unpack("<4xHB", data[place : place + 7])
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(part)
            part = b""
    return found


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_the_same_offline(tmp_path: Path):
    wandb_internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason=NEEDS)
    assert in_a_process("wandb", tmp_path / "run", WANDB_MODE="offline", WANDB_SILENT="true") == ""

    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    history = []
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            history.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    is_what_was_told(history, "_step")


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason=NEEDS)
def test_trackio_keeps_the_same_locally(tmp_path: Path):
    place = {"TRACKIO_DIR": str(tmp_path / "trackio"), "TRACKIO_PROJECT": "tests"}
    read = """
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("tests")
print(json.dumps(SQLiteStorage.get_logs("tests", name)))
"""
    shown = in_a_process("trackio", tmp_path / "run", read, **place)
    is_what_was_told(json.loads(shown.splitlines()[-1]), "step")


# Any of them


def test_a_tracker_that_fails_is_told_of_once_and_one_that_cannot_start_ends_the_run(tmp_path: Path, monkeypatch):
    heard = Mock(**{"log.side_effect": OSError("no network")})
    monkeypatch.setattr("accelerate.tracking.TensorBoardTracker", Mock(return_value=heard))
    sentences: list[str] = []
    tell(told(sentences, tmp_path, "tensorboard"))
    assert sentences == ["tensorboard failed and gets no more of this run: OSError: no network"]
    monkeypatch.setattr("accelerate.tracking.TensorBoardTracker", Mock(side_effect=ValueError("no key\x1b[31m")))
    with pytest.raises(ConfigError, match=r"tensorboard cannot be started: ValueError: no key \(--report-to none"):
        told([], tmp_path, "tensorboard").open(0)


def test_a_resumed_run_is_the_same_to_a_tracker_and_told_of_no_step_twice(tmp_path: Path, monkeypatch):
    """The run was killed at its third step, which is played again from a checkpoint after the first one."""
    made = Mock()
    monkeypatch.setattr("accelerate.tracking.WandBTracker", made)
    monkeypatch.setenv("WANDB_PROJECT", "tests")
    told([], tmp_path, "wandb").open(0)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    again = told([], tmp_path, "wandb")
    again.open(1)
    for step in (2, 3):
        again.step({"step": step, **METRICS}, "")
    first, second = made.call_args_list
    assert first == second
    about = first.kwargs
    assert (first.args, about["resume"], about["name"]) == (("tests",), "allow", f"{tmp_path.name}-{about['id']}")
    assert [logged.kwargs["step"] for logged in made.return_value.log.call_args_list] == [3]
    (tmp_path / "tracker.json").write_text('{"id": "../elsewhere"}')
    with pytest.raises(ConfigError, match="has no valid tracker id"):
        told([], tmp_path, "wandb").open(0)


def test_a_copied_run_is_another_to_a_tracker_and_asks_before_it_reports(tmp_path: Path, monkeypatch):
    made = Mock()
    monkeypatch.setattr("accelerate.tracking.WandBTracker", made)
    monkeypatch.setattr("lite_selfplay.runs.planning._check_model", lambda *_: None)  # wandb may not be installed
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings = {"model": "tiny", "precision": "fp32", "tasks": "letters", "max_completion_tokens": 6, "group_size": 2}
    settings |= {"problems_per_step": 1, "steps": 1, "report_to": "wandb", "preflight": False}
    path = train(RunConfig(game="grpo", **settings, run_dir=tmp_path / "r")).path
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    resume(path, steps=2)
    with pytest.raises(
        ConfigError, match=r"copy/config.yaml sets run.report_to, .* wandb.* repeat it: --report-to wandb"
    ):
        resume(copy, steps=2)
    resume(copy, steps=2, report_to="wandb")
    resume(copy, steps=3)
    ids = [each.kwargs["id"] for each in made.call_args_list]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    moved = path.rename(tmp_path / "moved")
    assert resume(moved, steps=3, report_to="none").config.run.report_to == "none"
    assert made.call_count == 4


def test_tensorboard_takes_back_the_steps_that_are_played_again(events: Any, tmp_path: Path):
    for done, steps, reward in ((0, (1, 2, 3), 1.0), (1, (2,), 5.0)):
        tracker = told([], tmp_path, "tensorboard")
        tracker.open(done)
        for step in steps:
            streams = {"drafter": {**STREAM, "reward_mean": reward}}
            tracker.step({"step": step, **METRICS, "streams": streams}, "")
        tracker.close()
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    scalars = events(tmp_path).Scalars("Learning/reward/drafter")
    assert [(event.step, event.value) for event in scalars] == [(1, 1.0), (2, 5.0)]

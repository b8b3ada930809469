"""A process that is lost, at any moment and in any way, ends the run saved: at most the step in progress is lost."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.made_runs import read_lines, saved_steps
from tests.runs_in_processes import STOPPED, Nursery

from .conftest import COMMAND
from .test_equal_runs import require_same

KILLS = int(os.environ.get("LITE_SELFPLAY_RANKS_KILLS") or 0)
"""Kills at random moments; a few of each kind without it."""
STEPS = 3
RUN = (*COMMAND, "--steps", STEPS)
Play = Callable[..., Any]


@pytest.fixture(scope="module")
def untouched(play: Play, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nobody touches, and how long it takes."""
    run, began = tmp_path_factory.mktemp("untouched") / "run", time.monotonic()
    play(2, *RUN, "--run-dir", run)
    return run, time.monotonic() - began


def went_on(run: Path, play: Play, untouched: Path, world: int = 1) -> None:
    """Resume a run, and hold it to the one that nobody touched."""
    play(world, "train", "--resume", run)
    assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == list(range(1, STEPS + 1))
    require_same(run, untouched)


@pytest.mark.parametrize(
    ("rank", "how", "moment"),
    [
        (0, "SIGKILL", "ask"),
        (1, "SIGKILL", "after update"),  # when the other one asks for the time
        pytest.param(0, "SIGKILL", "after sum", marks=pytest.mark.long),
        pytest.param(0, "SIGKILL", "lines", marks=pytest.mark.long),
        pytest.param(0, "SIGKILL", "save", marks=pytest.mark.long),  # the last one
        pytest.param(1, "SIGKILL", "update", marks=pytest.mark.long),
        pytest.param(0, "SIGKILL", "after update", marks=pytest.mark.long),
        pytest.param(0, "SIGTERM", "after update", marks=pytest.mark.long),
        pytest.param(0, "SIGTERM", "ask", marks=pytest.mark.long),
        pytest.param(1, "SIGINT", "update", marks=pytest.mark.long),
    ],
)
def test_whoever_is_lost_the_run_is_saved(
    rank: int, how: str, moment: str, play: Play, untouched: tuple[Path, float], tmp_path: Path
):
    run, other = tmp_path / "run", 1 - rank
    times = 3 if moment in ("ask", "after sum") else 2  # in the second step
    ended = play(2, *RUN, "--run-dir", run, play=("ends", rank, how, moment, times), code=None)
    if how == "SIGKILL":
        assert (ended.codes[rank], ended.codes[other]) == (-signal.SIGKILL, 1), ended.texts
    else:
        assert ended.codes == [STOPPED, STOPPED], ended.texts
    speaks = other if (rank, how) == (0, "SIGKILL") else 0
    assert "Continue with: lite-selfplay train --resume" in ended.texts[speaks]
    assert "saved before step" in ended.texts[speaks]
    assert "error" not in ended.texts[1 - speaks]
    saved = max(saved_steps(run))
    assert saved >= 1
    assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == list(range(1, saved + 1))
    went_on(run, play, untouched[0])


@pytest.mark.long
def test_killed_at_random_moments(crew: Nursery, play: Play, untouched: tuple[Path, float], tmp_path: Path):
    """Ranks that are killed again and again: what was complete before stays, and the run ends as the untouched one."""
    rng, kills, resumed = random.Random(8), 0, 0
    while kills < (KILLS or 1):
        run, complete = tmp_path / f"run-{kills}", 0
        for _ in range(3):
            world = rng.choice((2, 2, 3))
            begun = run.exists()
            process = crew.start(*(("train", "--resume", run) if begun else (*RUN, "--run-dir", run)), world=world)
            victim = rng.randrange(world)
            time.sleep(rng.uniform(0, 1.2 * untouched[1]))
            process.send(signal.SIGKILL, victim)
            if set(process.wait().codes) == {0}:
                break
            kills += 1
            if not list(run.glob("checkpoints/step-*")):
                assert complete == 0
                shutil.rmtree(run, ignore_errors=True)
                continue
            whole = read_lines(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
            assert max(saved_steps(run)) >= max(len(whole), complete), "a complete step was lost"
            complete = max(saved_steps(run))
            resumed += 1
        if run.exists():
            went_on(run, play, untouched[0], rng.choice((1, 2)))
        print(f"{kills} kills, {resumed} of them after a first save; nothing lost", flush=True)

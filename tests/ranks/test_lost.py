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

from tests.made_runs import read_lines

from .conftest import COMMAND
from .test_equal_runs import apart, require_same_episodes

KILLS = int(os.environ.get("LITE_SELFPLAY_RANKS_KILLS") or 0)
"""Kills at random moments; a few of each kind without it."""
STEPS = 3
RUN = (*COMMAND, "--steps", STEPS, "--seed", 1)  # with which no token is so near a bound that the order of sums decides


@pytest.fixture(scope="module")
def untouched(play: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nobody touches, and how long it takes."""
    run = tmp_path_factory.mktemp("untouched") / "run"
    began = time.monotonic()
    ended = play(2, *RUN, "--run-dir", run)
    assert ended.codes == [0, 0], ended.said
    return run, time.monotonic() - began


def went_on(run: Path, play: Callable[..., Any], untouched: Path, world: int = 1) -> None:
    """Resume a run, and hold it to the one that nobody touched."""
    ended = play(world, "train", "--resume", run)
    assert set(ended.codes) == {0}, ended.said
    assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == list(range(1, STEPS + 1))
    require_same_episodes(run, untouched)
    assert apart(run, untouched) < 1e-6


def saved(run: Path) -> int:
    """The step before which a run was last saved."""
    return max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("rank", "how", "moment"),
    [
        (0, "SIGKILL", "ask"),
        pytest.param(0, "SIGKILL", "after sum", marks=pytest.mark.long),
        pytest.param(0, "SIGKILL", "lines", marks=pytest.mark.long),
        pytest.param(1, "SIGKILL", "update", marks=pytest.mark.long),
        pytest.param(0, "SIGTERM", "ask", marks=pytest.mark.long),
        pytest.param(1, "SIGINT", "update", marks=pytest.mark.long),
    ],
)
def test_whoever_is_lost_the_run_is_saved(
    rank: int, how: str, moment: str, play: Callable[..., Any], untouched: tuple[Path, float], tmp_path: Path
):
    run, world = tmp_path / "run", 2
    times = 3 if moment in ("ask", "after sum") else 2  # in the second step
    ended = play(world, *RUN, "--run-dir", run, play=("ends", rank, how, moment, times))
    other = 1 - rank
    if how == "SIGKILL":
        assert ended.codes[rank] == -signal.SIGKILL
        assert ended.codes[other] == 1, ended.said
    else:
        assert ended.codes == [130, 130], ended.said
    speaks = other if (rank, how) == (0, "SIGKILL") else 0
    assert "Go on with: lite-selfplay train --resume" in ended.said[speaks]
    assert "saved before step" in ended.said[speaks]
    assert "error" not in ended.said[1 - speaks]
    assert saved(run) >= 1
    assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == list(range(1, saved(run) + 1))
    went_on(run, play, untouched[0])


@pytest.mark.long
def test_killed_at_random_moments(
    start: Callable[..., Any], play: Callable[..., Any], untouched: tuple[Path, float], tmp_path: Path
):
    """Ranks that are killed again and again: what was complete before stays, and the run ends as the untouched one."""
    rng, kills, resumed = random.Random(8), 0, 0
    while kills < (KILLS or 1):
        run, complete, first = tmp_path / f"run-{kills}", 0, True
        for _ in range(3):
            world = rng.choice((2, 2, 3))
            command = (*RUN, "--run-dir", run) if first else ("train", "--resume", run)
            crew = start(world, *command)
            victim = crew.pids[rng.randrange(world)]
            time.sleep(rng.uniform(0, 1.2 * untouched[1]))
            os.kill(victim, signal.SIGKILL)
            ended = crew.ended()
            if set(ended.codes) == {0}:
                break
            kills += 1
            if not (run / "checkpoints").is_dir() or not any((run / "checkpoints").glob("step-*")):
                assert complete == 0
                shutil.rmtree(run, ignore_errors=True)
                continue
            first = False
            whole = read_lines(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
            assert saved(run) >= len(whole), "a complete step was lost"
            assert saved(run) >= complete
            complete = saved(run)
            resumed += 1
        if not first:
            went_on(run, play, untouched[0], rng.choice((1, 2)))
        print(f"{kills} kills, {resumed} of them after a first save; nothing lost", flush=True)

"""What happens around a run: its folder moves, others want it, the date jumps, it is stopped for a while, its checking
processes are killed, its terminal closes, nobody reads what it writes."""

import os
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.made_runs import read_lines
from tests.runs_in_processes import STOPPED

from .conftest import only_long, refusal

CHECKED = Path(__file__).with_name("checked_task.py")
STILL_S = 60.0
"""How long a process stands still: far longer than an answer may take to check."""


# Who else wants the folder


@only_long
def test_a_run_goes_on_undisturbed_where_others_want_its_folder(lab: Any):
    run = lab.new()
    first = lab.train(run)
    first.until_begun("generation")
    for arguments, reason in (
        (lab.training(run), "exists already"),
        (("train", "--resume", run), f"is being written by process {first.pid}"),
    ):
        second = lab.run(*arguments)
        assert (second.code, refusal(second.said)) == (2, None), second.said
        assert reason in second.said
    lab.require_untouched(first.wait(), run)


@only_long
def test_of_two_that_begin_at_once_one_gets_the_folder(lab: Any):
    for _ in range(5):
        run, half = lab.new(), lab.stopped(lab.new())
        for place, arguments in ((run, lab.training(run)), (half, ("train", "--resume", half))):
            pair = [lab.start(*arguments), lab.start(*arguments)]
            ended = sorted((process.wait() for process in pair), key=lambda one: one.code)
            assert [one.code for one in ended] == [0, 2], [one.said for one in ended]
            assert refusal(ended[1].said) is None, ended[1].said
            assert lab.differences(place) == []
            shutil.rmtree(place)


# The folder


@only_long
@pytest.mark.parametrize("relative", [True, False])
def test_a_folder_that_was_moved_while_stopped_goes_on(lab: Any, relative: bool):
    here, there = lab.new(), lab.new()
    here.mkdir()
    there.mkdir()
    shutil.copy(lab.place / "taught.jsonl", here)
    arguments = [*lab.training(Path("first")), "--set", "cold_start.source=taught.jsonl"]
    process = lab.start(*arguments, watched=Path("first"), cwd=str(here))
    process.until_begun("generation", 3)
    process.send(signal.SIGTERM)
    assert process.wait().code == STOPPED
    (here / "first").rename(there / "moved")
    run = Path("moved") if relative else there / "moved"
    assert lab.run("report", run, cwd=str(there)).code == 0
    again = lab.run("train", "--resume", run, cwd=str(there if relative else lab.place))
    lab.require_untouched(again, there / "moved")
    assert list(here.iterdir()) == [here / "taught.jsonl"]


@only_long
def test_a_folder_that_may_only_be_read_is_refused_until_it_may_be_written(lab: Any, mount: Path):
    run = lab.stopped(mount / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    ended = lab.run("report", run)
    assert ended.code == 0, ended.said
    for arguments in (("train", "--resume", run), lab.training(mount / "another")):
        ended = lab.run(*arguments)
        assert (ended.code, refusal(ended.said)) == (2, None), ended.said
        assert "cannot write to" in ended.said
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    lab.require_untouched(lab.resume(run).wait(), run)


# Time


@only_long
def test_a_date_that_jumps_by_years_changes_nothing(lab: Any):
    run = lab.new()
    process = lab.train(run, clock=True)
    ended = process.wait()
    seconds = ended.at - process.started
    lab.require_untouched(ended, run)
    walls = [row["wall_s"] for row in read_lines(run / "metrics.jsonl")]
    assert all(0 <= value <= wall["total"] for wall in walls for value in wall.values())
    assert sum(wall["total"] for wall in walls) < seconds
    times = re.findall(r"\b(?:(\d+):)?(\d+):(\d\d)\b", ended.said)
    assert times, ended.said
    assert all(not hours and int(minutes) < 10 for hours, minutes, _ in times), ended.said


def descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
        return []
    return [*children, *(further for child in children for further in descendants(child))]


def checked_run(lab: Any, run: Path) -> Any:
    """A run whose answers are checked in processes, each for seconds."""
    return lab.start(
        *("train", "grpo", "--model", "tiny", "--tasks", f"{CHECKED}:slow_letters", "--precision", "fp32"),
        *("--steps", 2, "--group-size", 4, "--problems-per-step", 1, "--max-completion-tokens", 8, "--save-every", 1),
        *("--set", "run.verify_timeout_s=50", "--run-dir", run, "--seed", 1),
        watched=run,
    )


@pytest.fixture(scope="module")
def checked(lab: Any) -> str:
    """The weights that such a run ends with."""
    run = lab.new()
    ended = checked_run(lab, run).wait()
    assert ended.code == 0, ended.said
    assert [row["verify_timeouts"] for row in read_lines(run / "metrics.jsonl")] == [0, 0], "the machine is too busy"
    return weights_of(run)


def weights_of(run: Path) -> str:
    (file,) = run.glob("adapters/*/adapter_model.safetensors")
    rewards = [row["reward"] for row in read_lines(run / "episodes.jsonl")]
    assert len(set(rewards)) > 1, "some are to be right, some wrong"
    return f"{rewards} {file.read_bytes().hex()}"


def checking(process: Any) -> list[int]:
    """Wait until the processes that check answers are at work; which they are."""
    assert process.until(lambda _: len(descendants(process.pid)) >= 2)
    assert process.until(lambda _: all(busy(pid) for pid in descendants(process.pid)))
    return descendants(process.pid)


def busy(pid: int) -> bool:
    """Whether a checking process has been given its first answers: it has imported all it needs, and computes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0] == "R" and (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 1.0


@only_long
@pytest.mark.parametrize("everything", [False, True], ids=["the run", "the run and its processes"])
def test_a_minute_of_standing_still_makes_no_answer_wrong(lab: Any, checked: str, everything: bool):
    run = lab.new()
    process = checked_run(lab, run)
    workers = checking(process)
    still = [process.pid, *(workers if everything else [])]
    for pid in still:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STILL_S)
    for pid in still:
        os.kill(pid, signal.SIGCONT)
    ended = process.wait()
    assert ended.code == 0, ended.said
    assert weights_of(run) == checked
    rows = read_lines(run / "metrics.jsonl")
    assert [row["verify_timeouts"] for row in rows] == [0, 0]
    # The time is that of the wall, and the minute is part of what it met.
    assert max(row["wall_s"]["verify"] for row in rows) > STILL_S
    assert sum(row["wall_s"]["total"] for row in rows) < ended.at - process.started


@only_long
def test_checking_processes_that_are_killed_make_no_answer_wrong(lab: Any, checked: str):
    run = lab.new()
    process = checked_run(lab, run)
    for pid in checking(process):
        os.kill(pid, signal.SIGKILL)
    ended = process.wait()
    assert (ended.code, weights_of(run)) == (0, checked), ended.said


# The terminal, and who reads


@pytest.mark.long
def test_a_terminal_that_closes_finds_the_run_saved(lab: Any):
    run = lab.new()
    terminal, side = os.openpty()
    process = lab.train(run, terminal=os.ttyname(side))
    try:
        shown = b""
        limit = time.monotonic() + 200
        while not process.page.begun("generation") and time.monotonic() < limit:
            if select.select([terminal], [], [], 0.001)[0]:
                shown += os.read(terminal, 65536)  # a terminal that nobody empties stops who writes to it
    finally:
        os.close(side)
        os.close(terminal)
    ended = process.wait()
    assert process.page.begun("generation"), "the machine is too busy"
    assert b"evaluation" in shown
    assert ended.code == STOPPED
    lab.require_untouched(lab.resume(run).wait(), run)


@only_long
def test_a_closed_terminal_ends_no_run_that_was_started_not_to_hear_of_it(lab: Any):
    run = lab.new()
    process = lab.train(run, ignored=["SIGHUP"])
    for generation in (1, 3):
        process.until_begun("generation", generation)
        process.send(signal.SIGHUP)
    lab.require_untouched(process.wait(), run)


@only_long
def test_a_run_goes_on_where_nobody_reads_what_it_writes(lab: Any):
    run, log = lab.new(), lab.place / "unread"
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    process = lab.train(run, outputs=[str(log)])
    process.until_begun("generation")
    os.close(reader)
    lab.require_untouched(process.wait(), run)

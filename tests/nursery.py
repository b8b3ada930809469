"""A warm parent (`tests/warm_parent.py`) for runs that are watched, come to grief, or consist of several processes.

A job may have

- `page` (a file in which the process notes what it is doing) and `folder` (whose file operations it counts);
- `fault` and `at`: what happens at which of these. `kill` counts operations, and ends the process by SIGKILL before it;
  `signal` counts those in a `phase`, and sends the process SIGTERM before it;
  `fill` and `fail` count writes: from then on the file system of `mount` has only `spare` bytes left, or this one write
  fails as on a full disk;
- `ignored` (names of signals); `clock` (True: the date jumps back and forth); `address_space` (a limit for it and the
  processes that it starts, in bytes);
- `port`, where several processes meet, each with what torchrun would have put into its environment; and `play` (what
  of `ranks/plays.py` is called in which of them, before anything else).

The functions that are wrapped to note the phase do what they did.
"""

import errno
import functools
import itertools
import mmap
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.warm_parent import serve

PHASES = ("starting", "loading", "cold start", "evaluation", "generation", "update", "lines", "saving", "leaving")
# What Python tells of before it does it. safetensors writes by itself, between two of these.
OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
WRITING = ("os.rename", "os.mkdir")
YEAR_S = 3.2e7


class Page:
    """What a process notes of itself in a file of zeros, and another one reads while it goes on."""

    SIZE = 64

    def __init__(self, path: Path):
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), self.SIZE)).cast("I")

    @property
    def phase(self) -> str:
        return PHASES[self._words[0]]

    @phase.setter
    def phase(self, name: str) -> None:
        self._words[0] = PHASES.index(name)

    def begin(self, name: str) -> None:
        self.phase = name
        self._words[3 + PHASES.index(name)] += 1

    def begun(self, name: str) -> int:
        """How often a phase has begun."""
        return self._words[3 + PHASES.index(name)]

    @property
    def operations(self) -> int:
        """How many file operations inside its folder the process has begun."""
        return self._words[1]

    @property
    def writes(self) -> int:
        """How many of them were to write: a file opened for it, a folder made, something renamed."""
        return self._words[2]

    def count(self, writing: bool) -> None:
        self._words[1] += 1
        self._words[2] += writing


def become(job: dict[str, Any]) -> None:
    """Be a process of a job: its place among the others, what it does not hear and has not, and what is noted of it."""
    for name in job.get("ignored", ()):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if "address_space" in job:
        resource.setrlimit(resource.RLIMIT_AS, (job["address_space"], job["address_space"]))
    if job.get("clock"):
        set_clock_back_and_forth()
    if "page" in job:
        page = Page(Path(job["page"]))
        note_phases(page)
        count_operations(page, job)
    rank, world = job["rank"], len(job["outputs"])
    if world > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in places.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])})
    if "play" in job:
        from tests.ranks import plays

        name, where, *arguments = job["play"]
        if where in (None, rank):
            getattr(plays, name)(*arguments)


def set_clock_back_and_forth() -> None:
    """Let the date be another year at every look, before and after."""
    rng, real, real_ns = random.Random(3), time.time, time.time_ns
    time.time = lambda: real() + rng.choice((-1, 1)) * YEAR_S
    time.time_ns = lambda: real_ns() + rng.choice((-1, 1)) * int(YEAR_S * 1e9)


def note_phases(page: Page) -> None:
    """Let the functions that a phase consists of say when they begin and end."""
    from lite_selfplay.runs import loop
    from lite_selfplay.runs.resources import Resources
    from lite_selfplay.runs.saving import Saver
    from lite_selfplay.training.trainer import SelfPlayTrainer
    from lite_selfplay_cli import app

    def during(name: str, owner: Any, function: str, afterwards: str = "") -> None:
        whole = getattr(owner, function)

        @functools.wraps(whole)
        def noted(*arguments: Any, **options: Any) -> Any:
            before = page.phase
            page.begin(name)
            result = whole(*arguments, **options)
            page.phase = afterwards or before
            return result

        setattr(owner, function, noted)

    during("starting", app, "app", afterwards="leaving")  # from here on signals are answered
    during("loading", Resources, "of")
    during("cold start", loop, "teach")
    during("evaluation", loop.RunLoop, "_measure")
    during("generation", loop.RunLoop, "_step")
    during("update", SelfPlayTrainer, "update")
    during("lines", loop.RunLoop, "_write_down")
    during("saving", Saver, "save")
    during("leaving", Resources, "close", afterwards="leaving")


def count_operations(page: Page, job: dict[str, Any]) -> None:
    """Count the file operations inside a job's folder, and let its fault happen at its place."""
    folder, fault, at = job["folder"], job.get("fault"), job.get("at", 0)
    of_phase = itertools.count(1)

    def told(event: str, arguments: tuple[Any, ...]) -> None:
        # What `rmtree` removes is named within an open folder.
        within = event in ("os.remove", "os.rmdir") and arguments[1] != -1
        if event not in OPERATIONS or not (within or str(arguments[0]).startswith(folder)):
            return
        writing = event in WRITING or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))
        page.count(writing)
        if fault == "kill" and page.operations == at:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "signal" and page.phase == job["phase"] and next(of_phase) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        elif fault == "fill" and writing and page.writes == at:
            fill(Path(job["mount"]), job["spare"])
        elif fault == "fail" and writing and page.writes == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    sys.addaudithook(told)


def fill(mount: Path, spare: int) -> None:
    """Leave a file system no more than some bytes."""
    free = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize
    with (mount / "filler").open("wb") as file:
        if free > spare:
            os.posix_fallocate(file.fileno(), 0, free - spare)


if __name__ == "__main__":
    serve(become)

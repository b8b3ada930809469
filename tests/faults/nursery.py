"""A warm parent (`tests/warm_parent.py`) for runs that are watched and come to grief. A job may have

- `page` (a file of `PAGE` bytes in which the process notes what it is doing) and `folder` (whose file operations it
  counts);
- `fault` and `at`: what happens at which of these. `kill` counts operations, and ends the process by SIGKILL before it;
  `fill` and `fail` count writes: from then on the file system of `mount` has only `spare` bytes left, or this one write
  fails as on a full disk;
- `ignored` (names of signals); `clock` (True: the date jumps back and forth); `address_space` (a limit for it and the
  processes that it starts, in bytes).

The functions that are wrapped to note the phase do what they did.
"""

import errno
import functools
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from warm_parent import serve

PHASES = ("starting", "loading", "cold start", "evaluation", "generation", "update", "lines", "saving", "leaving")
PAGE = 64
"""Bytes of a page. Byte 0 is the phase; byte 16 + i says how often phase i has begun, up to 255; 8 to 11 count the file
operations, 12 to 15 the writes among them."""

# What Python tells of before it does it. safetensors writes by itself, between two of these.
OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
WRITING = ("os.rename", "os.mkdir")
YEAR_S = 3.2e7


def become(job: dict[str, Any]) -> None:
    """Be the process of a job: what it does not hear and has not, and what is noted of it."""
    for name in job.get("ignored", ()):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if "address_space" in job:
        resource.setrlimit(resource.RLIMIT_AS, (job["address_space"], job["address_space"]))
    if job.get("clock"):
        set_clock_back_and_forth()
    if "page" in job:
        with open(job["page"], "r+b") as file:
            page = mmap.mmap(file.fileno(), PAGE)
        note_phases(page)
        count_operations(page, job)


def set_clock_back_and_forth() -> None:
    """Let the date be another year at every look, before and after."""
    rng, real, real_ns = random.Random(3), time.time, time.time_ns
    time.time = lambda: real() + rng.choice((-1, 1)) * YEAR_S
    time.time_ns = lambda: real_ns() + rng.choice((-1, 1)) * int(YEAR_S * 1e9)


def note_phases(page: mmap.mmap) -> None:
    """Let the functions that a phase consists of say when they begin and end."""
    from lite_selfplay.runs import loop
    from lite_selfplay.runs.resources import Resources
    from lite_selfplay.runs.saving import Saver
    from lite_selfplay.training.trainer import SelfPlayTrainer
    from lite_selfplay_cli import app

    def begin(name: str) -> None:
        phase = PHASES.index(name)
        page[0] = phase
        page[16 + phase] = min(255, page[16 + phase] + 1)

    def during(name: str, function: str, afterwards: str = "", owner: Any = loop.RunLoop) -> None:
        whole = getattr(owner, function)

        @functools.wraps(whole)
        def noted(*arguments: Any, **options: Any) -> Any:
            before = page[0]
            begin(name)
            result = whole(*arguments, **options)
            if afterwards:
                begin(afterwards)
            else:
                page[0] = before
            return result

        setattr(owner, function, noted)

    whole = app.app

    def noted_app() -> None:
        begin("starting")  # from here on signals are answered
        whole()

    app.app = noted_app
    during("loading", "of", owner=Resources)
    during("cold start", "teach", owner=loop)
    during("evaluation", "_measure")
    during("generation", "_step")
    during("update", "update", owner=SelfPlayTrainer)
    during("lines", "_write_down")
    during("saving", "save", owner=Saver)
    during("leaving", "close", afterwards="leaving", owner=Resources)


def count_operations(page: mmap.mmap, job: dict[str, Any]) -> None:
    """Count the file operations inside a job's folder, and let its fault happen at its place."""
    folder, fault, at = job["folder"], job.get("fault"), job.get("at", 0)

    def told(event: str, arguments: tuple[Any, ...]) -> None:
        # What `rmtree` removes is named within an open folder.
        within = event in ("os.remove", "os.rmdir") and arguments[1] != -1
        if event not in OPERATIONS or not (within or str(arguments[0]).startswith(folder)):
            return
        operations, writes = struct.unpack_from("<II", page, 8)
        writing = event in WRITING or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))
        operations, writes = operations + 1, writes + writing
        struct.pack_into("<II", page, 8, operations, writes)
        if fault == "kill" and operations == at:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "fill" and writing and writes == at:
            fill(Path(job["mount"]), job["spare"])
        elif fault == "fail" and writing and writes == at:
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

"""Requests to `lite-selfplay`, forked from a warm parent or as processes of their own, and how they ended."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm_parent import ENVIRONMENT, Parent, started

SERVER = Path(__file__).with_name("server.py")
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Ended:
    """How a request ended: its exit code (None: it took longer than `PATIENCE_S`), what it wrote, and seconds."""

    code: int | None
    out: str
    err: str
    seconds: float


@dataclass
class RunServer:
    """Runs requests: `fork` from the warm parent, `start` as a process of its own, as a user's shell would."""

    place: Path
    parent: Parent

    def fork(self, arguments: Sequence[str], cwd: Path, *, plain: bool = False) -> Ended:
        """A child of the warm parent. `plain`: without root's right to read and write whatever the modes say."""
        out, err = self.place / "out", self.place / "err"
        for file in (out, err):
            file.write_text("")
        began = time.monotonic()
        files = {"outputs": [str(out)], "errors": str(err)}
        job = self.parent.ask({"argv": list(arguments), "cwd": str(cwd), "plain": plain, **files})
        answer = self.parent.ask({"wait": job["pids"], "seconds": PATIENCE_S})
        texts = [file.read_text(errors="replace") for file in (out, err)]
        return Ended(answer["codes"][0], *texts, answer["ended"] - began)

    def start(self, arguments: Sequence[str], cwd: Path) -> Ended:
        """A process of its own. Its seconds are those of the processor: beside others it may start for a minute."""
        started = _of_children()
        command = [sys.executable, "-c", "from lite_selfplay_cli.app import main; main()", *arguments]
        given = {"cwd": cwd, "env": ENVIRONMENT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, **given, timeout=10 * PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return Ended(None, "", "", 10 * PATIENCE_S)
        seconds = _of_children() - started
        return Ended(done.returncode if seconds < PATIENCE_S else None, done.stdout, done.stderr, seconds)


def _of_children() -> float:
    """Seconds of the processor that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunServer]:
    if not hasattr(os, "fork"):
        pytest.skip("forks")
    place = tmp_path_factory.mktemp("server")
    with started(SERVER, place) as parent:
        server = RunServer(place, parent)
        (place / "warm").mkdir()
        server.fork(["eval", "tiny", "--tasks", "letters", "--limit", "1"], place / "warm")  # makes the model
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for files that are written again and again: in memory, where the system has such a place."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-", dir=shared) as folder:
        yield Path(folder)

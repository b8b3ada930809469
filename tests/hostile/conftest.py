"""Requests to `lite-selfplay`, forked from a warm parent or as processes of their own, and how they ended."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.evaluation.tables import as_text
from tests.warm_parent import started

SERVER = Path(__file__).with_name("server.py")
PATIENCE_S = 60.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "200",
}


@dataclass(frozen=True)
class Ended:
    """How a request ended: its exit code (None: it took longer than `PATIENCE_S`), what it wrote, and seconds."""

    code: int | None
    out: str
    err: str
    seconds: float


@dataclass
class Server:
    """Runs requests: `fork` from the warm parent, `start` as a process of its own, as a user's shell would."""

    place: Path
    parent: Any
    environment: dict[str, str]
    ended: list[tuple[str, Ended]] = field(default_factory=list)
    """How the requests of each kind ended."""

    def fork(self, arguments: Sequence[str], cwd: Path, *, plain: bool = False) -> Ended:
        """A child of the warm parent. `plain`: without root's right to read and write whatever the modes say."""
        out, err = self.place / "out", self.place / "err"
        request = {"argv": list(arguments), "cwd": str(cwd), "out": str(out), "err": str(err), "limit": PATIENCE_S}
        self.parent.stdin.write(json.dumps(request | {"plain": plain}) + "\n")
        self.parent.stdin.flush()
        answer = self.answer()
        texts = [file.read_text(errors="replace") for file in (out, err)]
        return Ended(answer["code"], *texts, answer["seconds"])

    def start(self, arguments: Sequence[str], cwd: Path) -> Ended:
        """A process of its own. Its seconds are those of the processor: beside others it may start for a minute."""
        started = _of_children()
        command = [sys.executable, "-c", "from lite_selfplay_cli.app import main; main()", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=10 * PATIENCE_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env=self.environment,
            )
        except subprocess.TimeoutExpired:
            return Ended(None, "", "", 10 * PATIENCE_S)
        seconds = _of_children() - started
        return Ended(done.returncode if seconds < PATIENCE_S else None, done.stdout, done.stderr, seconds)

    def answer(self) -> dict[str, Any]:
        line = self.parent.stdout.readline()
        assert line, "the warm parent has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def table(self) -> str:
        """How the requests of each kind ended, a row a kind."""
        kinds = dict.fromkeys(kind for kind, _ in self.ended)
        columns = ["kind", "requests", "code 0", "code 1", "code 2", "code 130", "other", "slowest (s)"]
        rows = [self._row(kind, [ended for of, ended in self.ended if of == kind]) for kind in kinds]
        return as_text(columns, [*rows, self._row("all", [ended for _, ended in self.ended])])

    @staticmethod
    def _row(kind: str, ended: Sequence[Ended]) -> list[str]:
        codes = Counter(one.code for one in ended)
        promised = [codes.pop(code, 0) for code in (0, 1, 2, 130)]
        slowest = max(one.seconds for one in ended)
        return [kind, *map(str, (len(ended), *promised, codes.total())), f"{slowest:.1f}"]


def _of_children() -> float:
    """Seconds of the processor that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Server]:
    """The warm parent; at the end the table of how everything ended is printed."""
    if not hasattr(os, "fork"):
        pytest.skip("forks")
    place = tmp_path_factory.mktemp("server")
    environment = {**os.environ, **ENVIRONMENT}
    with started(SERVER, place, environment) as parent:
        server = Server(place, parent, environment)
        server.answer()
        (place / "warm").mkdir()
        server.fork(["eval", "tiny", "--tasks", "letters", "--limit", "1"], place / "warm")  # makes the model
        yield server
    reporter: Any = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    if server.ended and reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(server.table())


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The empty folder in which a request is made."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for files that are written again and again: in memory, where the system has such a place."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-", dir=shared) as folder:
        yield Path(folder)

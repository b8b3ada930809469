"""Real `lite-selfplay` processes, watched, ended from outside, resumed, and compared with a run that nobody touched.

`LITE_SELFPLAY_FAULTS=200` makes it the long form with so many kills (`make test-faults`); without it a few of each kind
are tried. `LITE_SELFPLAY_FAULTS_SEED` says which, so that several processes may share them.
"""

import hashlib
import json
import mmap
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.evaluation.result import as_text
from tests.warm_parent import ENVIRONMENT, Parent, started

NURSERY = Path(__file__).with_name("nursery.py")
COUNT = int(os.environ.get("LITE_SELFPLAY_FAULTS") or 0)
SEED = int(os.environ.get("LITE_SELFPLAY_FAULTS_SEED") or 2026)
PATIENCE_S = 120.0
PAUSE_S = 0.0005
STOPPED = 130
NO_CHECKPOINT = ("has no complete checkpoint to resume from", "is not a run folder", "must hold a mapping of keys")
"""How a resume is refused of a run that has saved nothing."""

PHASES = ("starting", "loading", "cold start", "evaluation", "generation", "update", "lines", "saving", "leaving")
STEPS = 4
SETTINGS = (
    *("--model", "tiny", "--tasks", "letters", "--precision", "fp32", "--cold-start"),
    *("--steps", STEPS, "--group-size", 4, "--problems-per-step", 2, "--save-every", 2),
    *("--max-completion-tokens", 8),
    *("--eval-tasks", "letters:named=6", "--eval-limit", 2, "--eval-every", 3),
    # A KL term, so that there are snapshots.
    *("--set", "roles.drafter.beta=0.05", "--set", "roles.challenger.beta=0.05"),
    *("--set", "cold_start.steps=2", "--set", "cold_start.examples_per_step=4"),
)


@dataclass
class Ended:
    """How a process ended: its exit code (negative: the signal), when (`time.monotonic`), and what it wrote."""

    code: int
    at: float
    said: str


class Process:
    """A `lite-selfplay` process that the nursery has just forked, and what it notes of itself."""

    def __init__(self, parent: Parent, pid: int, log: Path, page: Path | None):
        self._parent, self.pid, self._log = parent, pid, log
        self.started = time.monotonic()
        self._page: mmap.mmap | bytes = bytes(64)
        if page is not None:
            with page.open("r+b") as file:
                self._page = mmap.mmap(file.fileno(), 64)
        self.ended: Ended | None = None

    @property
    def phase(self) -> str:
        return PHASES[self._page[0]]

    @property
    def operations(self) -> int:
        """How many file operations inside its folder it has begun."""
        return int(struct.unpack_from("<I", self._page, 8)[0])

    @property
    def writes(self) -> int:
        """How many of them were to write: a file opened for it, a folder made, something renamed."""
        return int(struct.unpack_from("<I", self._page, 12)[0])

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self._log.read_text(errors="replace")

    def begun(self, phase: str) -> int:
        """How often a phase has begun."""
        return self._page[16 + PHASES.index(phase)]

    def alive(self) -> bool:
        """False once it has ended, a zombie included."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until something is so; False where the process ended before."""
        limit = time.monotonic() + PATIENCE_S
        while not condition():
            if not self.alive():
                return False
            assert time.monotonic() < limit, f"nothing happens in {self.phase}"
            time.sleep(PAUSE_S)
        return True

    def send(self, number: int) -> float:
        """Send it a signal; returns when (`time.monotonic`). One that has ended is still there as a zombie."""
        at = time.monotonic()
        os.kill(self.pid, number)
        return at

    def wait(self) -> Ended:
        if self.ended is None:
            answer = self._parent.ask({"wait": [self.pid]})
            self.ended = Ended(answer["codes"][0], answer["ended"], self.said)
        return self.ended


@dataclass
class Lab:
    """A nursery, a place for runs, and the run that nobody touched."""

    place: Path
    nursery: Parent
    whole: dict[str, str] = field(default_factory=dict)
    """What the untouched run ended with."""
    seconds: float = 0.0
    """How long it took."""
    operations: int = 0
    writes: int = 0
    begun: dict[str, int] = field(default_factory=dict)
    """How often each phase began in it."""
    number: int = 0

    def start(self, *arguments: object, watched: Path | None = None, **job: Any) -> Process:
        """Fork `lite-selfplay ARGUMENTS`; `watched` is the run folder where it is to note what it does.

        `job` is what else the nursery takes. Several may run at a time.
        """
        self.number += 1
        log = self.place / f"{self.number}.log"
        log.touch()
        job = {"outputs": [str(log)], "argv": [str(argument) for argument in arguments], **job}
        page = None
        if watched is not None:
            page = self.place / f"{self.number}.page"
            page.write_bytes(bytes(64))
            job |= {"page": str(page), "folder": str(watched)}
        return Process(self.nursery, self.nursery.ask(job)["pids"][0], log, page)

    def run(self, *arguments: object, **job: Any) -> Ended:
        return self.start(*arguments, **job).wait()

    def train(self, run: Path, **options: Any) -> Process:
        return self.start(*self.training(run), watched=run, **options)

    def fresh(self, run: Path) -> subprocess.Popen[bytes]:
        """The same run in a process that imports everything itself."""
        program = "from lite_selfplay_cli.app import main; main()"
        command = [sys.executable, "-c", program, *map(str, self.training(run))]
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=ENVIRONMENT, cwd=self.place)

    def training(self, run: Path, *others: object) -> tuple[object, ...]:
        """The arguments of a training run."""
        taught = ("--set", f"cold_start.source={self.place / 'taught.jsonl'}")
        return ("train", "agon", *SETTINGS, *taught, "--run-dir", run, *others)

    def resume(self, run: Path, **options: Any) -> Process:
        return self.start("train", "--resume", run, watched=run, **options)

    def stopped(self, run: Path, generation: int = 3, **options: Any) -> Path:
        """A run that SIGTERM stopped when completions were asked for the so-manieth time."""
        process = self.train(run, **options)
        process.until(lambda: process.begun("generation") >= generation)
        process.send(signal.SIGTERM)
        assert process.wait().code == STOPPED, process.said
        return run

    def require_untouched(self, ended: Ended, run: Path) -> None:
        """Hold a run that has ended well to the one that nobody touched."""
        assert ended.code == 0, ended.said
        assert self.differences(run) == []

    def new(self) -> Path:
        """A place for a run where nothing is yet."""
        self.number += 1
        return self.place / f"run-{self.number}"

    def differences(self, run: Path) -> list[str]:
        """What a run that was resumed ended with otherwise than the untouched one."""
        found = contents(run)
        return sorted(key for key in found.keys() | self.whole.keys() if found.get(key) != self.whole.get(key))


def refusal(said: str) -> str | None:
    """What is wrong with how a command refused: it must be one sentence of ours. None where it is."""
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    if "Traceback" in said:
        return "it shows a traceback"
    if len(errors) != 1:
        return f"it gives {len(errors)} sentences"
    if "--debug shows where" in said or re.match(r"error: [A-Z]\w*(Error|Exception): ", errors[0]):
        return f"it gives an error of Python's: {errors[0]}"
    return None


def contents(run: Path) -> dict[str, str]:
    """What a run ended with: SHA-256 of everything that is to be the same, whatever happened on the way."""
    last = run / "checkpoints" / f"step-{STEPS}"
    files = [path for place in (last, run / "adapters", run / "eval") for path in place.rglob("*") if path.is_file()]
    # The manifest and `adapter_config.json` name nothing that differs either; the model card is made anew from these.
    found = {str(path.relative_to(run)): path.read_bytes() for path in files}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]
    found["metrics.jsonl"] = json.dumps(timeless).encode()
    found["episodes.jsonl"] = (run / "episodes.jsonl").read_bytes()
    found["best.json"] = (run / "checkpoints" / "best.json").read_bytes()
    return {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The laboratory, with the untouched run made and seen to have trained."""
    if not hasattr(os, "fork") or not Path("/proc/self/stat").exists():
        pytest.skip("forks, and reads /proc")
    place = tmp_path_factory.mktemp("faults")
    with started(NURSERY, place) as nursery:
        lab = Lab(place, nursery)
        _run_untouched(lab)
        yield lab
    shutil.rmtree(place, ignore_errors=True)


def _run_untouched(lab: Lab) -> None:
    taught = [{"prompt": f"Write {letter}", "completion": letter} for letter in "abcdef"]
    (lab.place / "taught.jsonl").write_text("".join(json.dumps(row) + "\n" for row in taught))
    run = lab.new()
    process = lab.train(run)
    ended = process.wait()
    assert ended.code == 0, ended.said
    lab.whole, lab.seconds, lab.operations = contents(run), ended.at - process.started, process.operations
    lab.writes = process.writes
    lab.begun = {phase: process.begun(phase) for phase in PHASES}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == STEPS
    assert all(seat["updates"] for seat in rows[-1]["seats"].values())
    earlier = min((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    for seat in "AB":
        weights = f"adapters/{seat}/adapter_model.safetensors"
        assert (earlier / weights).read_bytes() != (run / weights).read_bytes(), f"{seat} has not moved"


@pytest.fixture
def mount(lab: Lab) -> Iterator[Path]:
    """A small file system of its own."""
    path = lab.new()
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(path)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def count() -> int:
    """How many kills the long form was asked for; 0 in the short form."""
    return COUNT


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Print a table past pytest's capture."""

    def shown(title: str, lines: Sequence[Sequence[object]]) -> None:
        columns, *rows = [[str(cell) for cell in line] for line in lines]
        with capsys.disabled():
            print(f"\n{title}\n{as_text(columns, rows)}", flush=True)

    return shown

"""Runs that are ended from outside, resumed, and compared with a run that nobody touched.

`LITE_SELFPLAY_FAULTS=200` makes it the long form with so many kills (`make test-faults`); without it a few of each kind
are tried. `LITE_SELFPLAY_FAULTS_SEED` says which, so that several processes may share them.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.evaluation.result import as_text
from lite_selfplay.stats import clopper_pearson
from tests.made import jsonl
from tests.made_runs import read_lines
from tests.nursery import PHASES
from tests.runs_in_processes import STOPPED, Ended, Nursery, Process, nursery
from tests.warm_parent import ENVIRONMENT

COUNT = int(os.environ.get("LITE_SELFPLAY_FAULTS") or 0)
SEED = int(os.environ.get("LITE_SELFPLAY_FAULTS_SEED") or 2026)
STEPS = 4
only_long = pytest.mark.skipif(not COUNT, reason="run by make test-faults")
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
class Lab(Nursery):
    """A nursery, and the run that nobody touched."""

    whole: dict[str, str] = field(default_factory=dict)
    """What the untouched run ended with."""
    seconds: float = 0.0
    """How long it took."""
    operations: int = 0
    writes: int = 0
    begun: dict[str, int] = field(default_factory=dict)
    """How often each phase began in it."""

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

    def went_on(self, run: Path) -> Ended | None:
        """How a resume ended; None where nothing had been saved, and the folder is gone."""
        ended = self.resume(run).wait()
        if not ended.saved_nothing:
            return ended
        assert not list(run.glob("checkpoints/step-*")), ended.said
        shutil.rmtree(run, ignore_errors=True)
        return None

    def stopped(self, run: Path, generation: int = 3, **options: Any) -> Path:
        """A run that SIGTERM stopped when completions were asked for the so-manieth time."""
        process = self.train(run, **options)
        process.until_begun("generation", generation)
        process.send(signal.SIGTERM)
        ended = process.wait()
        assert ended.code == STOPPED, ended.said
        return run

    def require_untouched(self, ended: Ended, run: Path) -> None:
        """Hold a run that has ended well to the one that nobody touched."""
        assert ended.code == 0, ended.said
        assert self.differences(run) == []

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
    timeless = [{**row, "wall_s": None} for row in read_lines(run / "metrics.jsonl")]
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
    jsonl(place / "taught.jsonl", *({"prompt": f"Write {letter}", "completion": letter} for letter in "abcdef"))
    with nursery(place, Lab) as lab:
        run = lab.new()
        process = lab.train(run)
        ended, page = process.wait(), process.page
        assert ended.code == 0, ended.said
        lab.whole, lab.seconds = contents(run), ended.at - process.started
        lab.operations, lab.writes = page.operations, page.writes
        lab.begun = {phase: page.begun(phase) for phase in PHASES}
        rows = read_lines(run / "metrics.jsonl")
        assert len(rows) == STEPS
        assert all(seat["updates"] for seat in rows[-1]["seats"].values())
        earlier = min((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
        for seat in "AB":
            weights = f"adapters/{seat}/adapter_model.safetensors"
            assert (earlier / weights).read_bytes() != (run / weights).read_bytes(), f"{seat} has not moved"
        yield lab
    shutil.rmtree(place, ignore_errors=True)


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


@pytest.fixture
def tally(count: int, show: Callable[..., None]) -> Callable[..., None]:
    """Hold what was tried to what it has to be: each a kind, a name and what was wrong. The long form shows a table."""

    def held(title: str, kinds: str, tries: Sequence[tuple[str, str, Sequence[str]]]) -> None:
        rows: list[list[object]] = [[kinds, "tried", "as it is to be", "95% interval"]]
        for kind in [*dict.fromkeys(kind for kind, _, _ in tries), "all"]:
            some = [wrong for each, _, wrong in tries if kind in (each, "all")]
            fine = sum(not wrong for wrong in some)
            low, high = clopper_pearson(fine, len(some))
            rows.append([kind, len(some), fine, f"{low:.1%} to {high:.1%}"])
        if count:
            show(title, rows)
        broken = [f"{name}: {'; '.join(wrong)}" for _, name, wrong in tries if wrong]
        assert not broken, "\n".join(broken)

    return held

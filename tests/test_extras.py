"""Each extra can be deleted: what is left trains, resumes, measures and reports; what is gone is refused."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lite_selfplay
from lite_selfplay import scan
from lite_selfplay.tasks import task_names

ROOT = Path(lite_selfplay.__file__).parents[1]
TINY = "--model tiny --precision fp32 --no-cold-start"
WITHOUT_IT = {
    "doctor": ["doctor"],
    "export": ["export run A"],
    "figures": ["report run --figures"],
    "gym": [f"train grpo {TINY} --tasks reasoning-gym:chain_sum --dry-run"],
    "programs": [
        f"train grpo {TINY} --tasks code-arithmetic --dry-run",
        f"train grpo {TINY} --tasks tested.jsonl --dry-run",
        f"train sqlm {TINY} --set game.topic=code --tasks letters --dry-run",
    ],
    "rehearsal": ["plan --model tiny --tasks letters --prompts"],
    "reproduce": ["reproduce"],
    "servers": [f"train grpo {TINY} --tasks letters --rollouts http://127.0.0.1:9 --dry-run"],
    "talk": ["chat run"],
    "trackers": [f"train grpo {TINY} --tasks letters --report-to tensorboard --dry-run"],
    "view": ["view run"],
}
"""What each extra is for: commands that are refused without it."""

Cli = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package and its command line, and a file of problems whose answers are programs."""
    place = tmp_path_factory.mktemp("copy")
    for folder, package in (("lite_selfplay", "lite_selfplay"), ("cli", "lite_selfplay_cli")):
        shutil.copytree(ROOT / folder, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "tested.jsonl").write_text('{"problem": "Double it.", "tests": [["2", "4"]]}\n', encoding="utf-8")
    return place


@pytest.fixture
def without(place: Path) -> Iterator[Callable[[str], None]]:
    """Takes an extra away, or the whole folder of them (`""`), until the test is over."""
    moved: list[tuple[Path, Path]] = []

    def take_away(name: str) -> None:
        folder = place / "lite_selfplay" / "extras" / name
        moved.append((folder.rename(place / "aside"), folder))

    yield take_away
    for aside, folder in moved:
        aside.rename(folder)


@pytest.fixture(scope="module")
def cli(place: Path) -> Cli:
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}

    def run(arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lite_selfplay_cli", *arguments.split()]
        return subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def succeeds(cli: Cli, arguments: str) -> str:
    done = cli(arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def run(place: Path, cli: Cli) -> Path:
    """A run that was trained with every extra there."""
    succeeds(cli, f"train grpo {TINY} --tasks letters --steps 1 --group-size 2 --run-dir run")
    return place / "run"


def test_the_list_is_that_of_the_folder() -> None:
    assert sorted(WITHOUT_IT) == scan.extras() == sorted(scan.SHIPPED)


@pytest.mark.parametrize("name", WITHOUT_IT)
def test_without_one_the_others_are_there_and_it_is_refused(
    name: str, run: Path, cli: Cli, without: Callable[[str], None]
) -> None:
    without(name)
    listed = json.loads(succeeds(cli, "list tasks --json"))
    assert {task["name"] for task in listed} == {*task_names()} - {*scan.SHIPPED[name]}
    for command in WITHOUT_IT[name]:
        done = cli(command)
        sentence = done.stderr.strip().splitlines()[-1]
        assert (done.returncode, done.stderr.count("error: ")) == (2, 1), done.stdout + done.stderr
        assert sentence.endswith(f" needs lite_selfplay/extras/{name}, which this installation is without")
        assert "Traceback" not in done.stderr


def test_without_all_of_them_a_run_is_trained_resumed_measured_and_reported(
    place: Path, cli: Cli, without: Callable[[str], None]
) -> None:
    without("")
    sizes = "--tasks letters --eval-tasks letters --eval-limit 4 --group-size 2 --max-completion-tokens 8"
    succeeds(cli, f"train agon {TINY} {sizes} --steps 1 --run-dir bare")
    succeeds(cli, "train --resume bare --steps 2")
    succeeds(cli, "eval bare --tasks letters --limit 4")
    assert "step 2" in succeeds(cli, "report bare")
    assert (place / "bare" / "adapters" / "B" / "adapter_model.safetensors").exists()
    done = cli("chat bare")
    assert (done.returncode, done.stderr) == (
        2,
        "error: `chat` needs lite_selfplay/extras/talk, which this installation is without\n",
    )

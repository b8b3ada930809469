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
from tests.conftest import Ended

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

# Commands in one process, which imports everything once: how each ended, and what it wrote.
PROGRAM = """
import contextlib, io, json, sys
from lite_selfplay_cli.app import main
ended = []
for command in json.loads(sys.argv[1]):
    sys.argv, code, out, err = ["lite-selfplay", *command.split()], 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    ended.append((code, out.getvalue(), err.getvalue()))
json.dump(ended, sys.__stdout__)
"""


Cli = Callable[..., list[Ended]]


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

    def run(*commands: str) -> list[Ended]:
        program = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
        said = subprocess.run(
            program, cwd=place, env=environment, stdout=subprocess.PIPE, timeout=240, check=True
        ).stdout
        return [Ended(*ended) for ended in json.loads(said)]

    return run


@pytest.fixture(scope="module")
def run(place: Path, agon_run: Path) -> Path:
    """A run that was trained with every extra there."""
    return Path(shutil.copytree(agon_run, place / "run"))


def test_the_list_is_that_of_the_folder() -> None:
    assert sorted(WITHOUT_IT) == scan.extras() == sorted(scan.SHIPPED)


@pytest.mark.parametrize("name", WITHOUT_IT)
def test_without_one_the_others_are_there_and_it_is_refused(
    name: str, run: Path, cli: Cli, without: Callable[[str], None]
) -> None:
    without(name)
    listed, *refused = cli("list tasks --json", *WITHOUT_IT[name])
    assert {task["name"] for task in json.loads(listed.out)} == {*task_names()} - {*scan.SHIPPED[name]}
    for ended in refused:
        sentence = ended.err.strip().splitlines()[-1]
        assert (ended.code, ended.err.count("error: ")) == (2, 1), ended
        assert sentence.endswith(f" needs lite_selfplay/extras/{name}, which this installation is without")
        assert "Traceback" not in ended.err


def test_without_all_of_them_a_run_is_trained_resumed_measured_and_reported(
    place: Path, cli: Cli, without: Callable[[str], None]
) -> None:
    without("")
    sizes = "--tasks letters --eval-tasks letters --eval-limit 4 --group-size 2 --max-completion-tokens 8"
    *others, report, chat = cli(
        f"train agon {TINY} {sizes} --steps 1 --run-dir bare",
        *("train --resume bare --steps 2", "eval bare --tasks letters --limit 4", "report bare", "chat bare"),
    )
    assert [one for one in (*others, report) if one.code] == []
    assert "step 2" in report.out
    assert (place / "bare" / "adapters" / "B" / "adapter_model.safetensors").exists()
    missing = "`chat` needs lite_selfplay/extras/talk, which this installation is without"
    assert (chat.code, chat.err) == (2, f"error: {missing}\n")

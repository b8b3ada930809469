"""What state a run is in, at a glance: by its configuration, its last step and its lock. A resume looks closely."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lite_selfplay.config.user_files import failing_as, open_file
from lite_selfplay.errors import LiteSelfPlayError, RunFolderError
from lite_selfplay.games.presentation import number_of, percent
from lite_selfplay.runs.folder import CHECKPOINTS, COLD_START, CONFIG, ENVIRONMENT, METRICS, RunFolder
from lite_selfplay.runs.lock import writer
from lite_selfplay.tasks.files import parse_object, read_json

LAST_LINE = 2**20
"""Bytes at the end of `metrics.jsonl` in which the last step is looked for."""

Stage = Literal["running", "finished", "stopped", "cold start", "not begun", "damaged"]


@dataclass(frozen=True)
class RunState:
    """A run at a glance.

    `step`: how many steps were played, of `steps` that were asked for. `best`: what `best.json` says, in words, empty
    without one. `size` in bytes, of all files. `resume`: the command that goes on, None where there is nothing to go on
    from or nothing left to do, as after a `cold start` alone. `problem` says why the run is `damaged`.
    """

    path: Path
    game: str = ""
    model: str = ""
    step: int = 0
    steps: int = 0
    stage: Stage = "damaged"
    best: str = ""
    size: int = 0
    resume: str | None = None
    problem: str = ""


def state_of(path: Path) -> RunState:
    """A run folder at a glance; a damaged one has a `problem`. Raises RunFolderError where there is no run folder."""
    folder = RunFolder.open(path)
    size = _size(path)
    try:
        config = folder.config()
        last = last_step(path)
        step = 0 if last is None else last["step"]
        best = _best(path)
        taught = (path / ENVIRONMENT).exists() and read_json(path / ENVIRONMENT).get("only") == COLD_START
    except LiteSelfPlayError as error:
        return RunState(path, size=size, problem=str(error))
    steps, over = config.run.steps, last is not None and last.get("over") is True
    stage: Stage = "finished" if over or step >= steps else "stopped" if step else "not begun"
    if taught and not step:
        stage = "cold start"
    if writer(path) is not None:
        stage = "running"
    can = stage in ("stopped", "not begun") and any((path / CHECKPOINTS).glob("step-*/manifest.json"))
    resume = folder.go_on(config.rollouts.again) if can else None
    return RunState(path, config.game.label, config.model.name, step, steps, stage, best, size, resume)


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder, or the folder itself where it is one, oldest first.

    Raises RunFolderError where there is no such folder, or it may not be read.
    """
    with failing_as(RunFolderError, f"cannot read {folder}"):
        if (folder / CONFIG).is_file():
            return [folder]
        found = [path for path in folder.iterdir() if (path / CONFIG).is_file()]
        return sorted(found, key=lambda path: ((path / CONFIG).stat().st_mtime, path.name))


def last_step(path: Path) -> dict[str, Any] | None:
    """The last whole line of a run's `metrics.jsonl`, None without one. Raises RunFolderError where it is damaged."""
    file = path / METRICS
    if not file.exists():
        return None
    with open_file(file, RunFolderError) as opened:
        end = opened.seek(0, 2)
        opened.seek(max(0, end - LAST_LINE))
        lines = opened.read(LAST_LINE).split(b"\n")[:-1]  # what stands behind the last line end was cut short
    if not lines:
        return None
    row = parse_object(lines[-1], f"{file}, its last line")
    if type(row.get("step")) is not int:
        raise RunFolderError(f"{file}, its last line: does not say which step it is of")
    return row


def _best(path: Path) -> str:
    """Which checkpoint was measured best, in words."""
    file = path / CHECKPOINTS / "best.json"
    if not file.exists():
        return ""
    found = read_json(file)
    share = number_of(found.get("pass_at_1"))
    if type(found.get("step")) is not int or share is None:
        raise RunFolderError(f"{file} does not say which checkpoint is the best")
    return f"{percent(share)} after {found['step']} steps"


def _size(path: Path) -> int:
    """Bytes of all files in a folder, links apart; one that goes away meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total

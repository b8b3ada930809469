"""What state a run folder is in: what is whole, what is damaged, and whether it can be resumed. Writes nothing."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import LiteSelfPlayError, RunFolderError
from lite_selfplay.evaluation.tables import percent
from lite_selfplay.models.packages import versions
from lite_selfplay.runs.folder import (
    ADAPTERS,
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    EPISODES,
    EVALUATIONS,
    METRICS,
    PACKAGES,
    RunFolder,
)
from lite_selfplay.runs.lock import writer
from lite_selfplay.runs.machine import Finding
from lite_selfplay.tasks.files import first_link, read_json, read_tensors

_WEIGHTS, _ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class Report:
    """What was found, part by part; the verdict; and whether the run is finished or can be resumed."""

    findings: list[Finding]
    verdict: str
    healthy: bool


def examine(path: Path) -> Report:
    """Check a run folder: its configuration, lines, adapters, and every checkpoint with the SHA-256 of its files.

    The base model is not looked for, and weights are not compared with it. Raises RunFolderError where there is no run
    folder.
    """
    folder = RunFolder.open(path)
    findings: list[Finding] = []

    def look(part: str, at: Callable[[], str]) -> bool:
        try:
            findings.append(Finding(part, at()))
        except LiteSelfPlayError as error:
            findings.append(Finding(part, str(error), fine=False))
        return findings[-1].fine

    config: list[RunConfig] = []
    readable = look(CONFIG, lambda: _config(folder, config))
    look(ENVIRONMENT, lambda: _environment(folder))
    readable &= look("links", lambda: _links(folder))
    readable &= look(METRICS, lambda: _steps(folder.metrics()))
    readable &= look(EPISODES, lambda: f"{sum(1 for _ in folder.episodes()):,} lines")
    readable &= look(EVALUATIONS, lambda: _evaluations(folder))
    if config:
        for seat, section in config[0].seats.items():
            look(f"{ADAPTERS}/{seat}", lambda seat=seat, rank=section.rank: _adapter(folder, seat, rank))  # type: ignore[misc]
    last = _checkpoints(folder, config[0] if config else None, findings)
    _best(folder, findings)
    held_by = writer(path)
    if held_by is not None:
        findings.append(Finding("lock", f"the run is being written by {held_by}"))
    steps = config[0].run.steps if config else 0
    rows = folder.metrics() if readable and held_by is None else []
    if rows and rows[-1].get("over") is True and last == len(rows):
        return Report(findings, f"finished: the game ended by itself after {last} steps", True)
    return Report(findings, *_verdict(path, steps, last, readable, held_by))


def _config(folder: RunFolder, found: list[RunConfig]) -> str:
    config = folder.config()
    found.append(config)
    return f"{config.game.label} on {config.model.name}, {config.run.steps} steps"


def _environment(folder: RunFolder) -> str:
    base, then = folder.base(), read_json(folder.path / ENVIRONMENT).get("packages")
    now = versions(PACKAGES)
    changed = [
        f"{name} {then[name]}, here {now.get(name, 'none')}"
        for name in PACKAGES
        if isinstance(then, dict) and name in then and then[name] != now.get(name)
    ]
    return f"made over {base}" + (f"; made with {'; '.join(changed)}" if changed else "")


def _links(folder: RunFolder) -> str:
    folder.require_own_files()
    return "none that lead out of the folder"


def _steps(rows: list[dict[str, Any]]) -> str:
    numbers = [row["step"] for row in rows]
    if numbers != list(range(1, len(numbers) + 1)):
        odd = next(i for i, number in enumerate(numbers) if number != i + 1)
        raise RunFolderError(f"line {odd + 1} is of step {numbers[odd]}, not of step {odd + 1}")
    return f"{len(rows)} steps"


def _evaluations(folder: RunFolder) -> str:
    made, later = len(folder.evaluations()), len(folder.later_evaluations())
    return f"{made} made in training, {later} later"


def _best(folder: RunFolder, findings: list[Finding]) -> None:
    """Which checkpoint was measured best, where one was; a resume does not need to know."""
    from lite_selfplay.runs.checkpoints import BEST, read_best

    try:
        found = read_best(folder.path / CHECKPOINTS)
        if found is None:
            return
        there = folder.path / CHECKPOINTS / f"step-{found['step']}"
        text = f"{there.name} was measured best: pass@1 {percent(found['pass_at_1'])} on {found.get('tasks')}"
        if not there.is_dir():
            text = f"names {there.name}, which is not there"
        findings.append(Finding(f"{CHECKPOINTS}/{BEST}", text))
    except RunFolderError as error:
        findings.append(Finding(f"{CHECKPOINTS}/{BEST}", str(error), fine=False))


def _adapter(folder: RunFolder, seat: str, rank: int) -> str:
    path = folder.path / ADAPTERS / seat
    if (link := first_link(path)) is not None:
        raise RunFolderError(f"{link} is a symbolic link, which is not followed")
    if not path.exists():
        return "not saved yet"
    tensors = read_tensors(path / _WEIGHTS)
    found = read_json(path / _ADAPTER_CONFIG).get("r")
    if found != rank:
        raise RunFolderError(f"{path / _ADAPTER_CONFIG} is of rank {found!r}, {CONFIG} of rank {rank}")
    for name, tensor in tensors.items():
        if "lora_A" in name and (tensor.ndim != 2 or len(tensor) != rank):
            raise RunFolderError(f"{path / _WEIGHTS}: {name} is {list(tensor.shape)}, {CONFIG} says rank {rank}")
    return f"whole, {len(tensors)} tensors of rank {rank}"


def _checkpoints(folder: RunFolder, config: RunConfig | None, findings: list[Finding]) -> int | None:
    """Look at every checkpoint; returns the step of the one that a resume would take."""
    from lite_selfplay.runs.checkpoints import check_identity, hash_of, list_checkpoints, read_state

    last, identity, kept = None, dict[str, str](), None
    with contextlib.suppress(RunFolderError):  # reported already; a resume does not need it
        identity["base"] = folder.base()
    if config is not None:
        identity["game"], kept = config.game.label, hash_of(config)
    for found in list_checkpoints(folder.path / CHECKPOINTS, full=True):
        problem = found.problem
        if problem is None:
            last = found.step
            try:
                read_state(found)
                check_identity(found, identity, kept)
            except RunFolderError as error:
                problem, last = str(error), None  # a resume would take this one, and refuse it
        findings.append(
            Finding(f"{CHECKPOINTS}/{found.path.name}", problem or "complete, every SHA-256 fits", not problem)
        )
    if not findings[-1].part.startswith(CHECKPOINTS):
        findings.append(Finding(CHECKPOINTS, "none", fine=False))
    return last


def _verdict(path: Path, steps: int, last: int | None, readable: bool, held_by: str | None) -> tuple[str, bool]:
    go_on = f"lite-selfplay train --resume {path}"
    if held_by is not None:
        return f"being written by {held_by}: it can be resumed when that has ended", False
    if not readable:
        return "cannot be resumed: see what is damaged above", False
    if last is None:
        return "cannot be resumed: the run has no checkpoint that is whole and its own", False
    if last >= steps:
        return f"finished: {last} of {steps} steps. For more: {go_on} --steps {2 * steps}", True
    return f"can be resumed before step {last + 1} of {steps}: {go_on}", True

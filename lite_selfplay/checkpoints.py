"""Checkpoints: complete or absent. Safetensors and JSON only; nothing is ever unpickled.

A checkpoint is written aside, synced, and put in its place by one rename. Its manifest names every file with size and
SHA-256 and is written last, so a folder without a fitting manifest is not a checkpoint.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from lite_selfplay.adapters import Adapters
from lite_selfplay.errors import RunFolderError

MANIFEST, STATE, OPTIMIZER = "manifest.json", "state.json", "optimizer.safetensors"
_FOLDER = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: the run as it stood before step number `step`."""

    path: Path
    step: int


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    adapters: Adapters,
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    identity: Mapping[str, str],
    keep: int,
) -> Path:
    """Write `folder/step-N`, then drop all but the last `keep`. `state` is JSON; `identity` names base and config."""
    target, aside = folder / f"step-{step}", folder / f".step-{step}.partial"
    for left in folder.glob(".step-*.partial"):  # of a save that was killed
        shutil.rmtree(left, ignore_errors=True)
    aside.mkdir(parents=True)
    for seat in adapters.seats:
        adapters.save(seat, aside / "adapters" / seat)
    for number, (name, kept) in enumerate(sorted(adapters.snapshots.items())):
        path = aside / f"snapshot-{number}.safetensors"
        save_file(kept.state, path, metadata={"name": name, "seat": kept.seat})
    save_file(dict(optimizer), aside / OPTIMIZER)
    snapshots = [{"name": name, "seat": kept.seat} for name, kept in sorted(adapters.snapshots.items())]
    whole = {"step": step, "versions": adapters.versions, "snapshots": snapshots, **state}
    _write_json(aside / STATE, whole)
    # What transformers' own loop reads when it goes on from a step: the step, and a batch size that it only compares.
    _write_json(aside / "trainer_state.json", {"global_step": step, "train_batch_size": 2})
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    listed = {str(path.relative_to(aside)): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files}
    _write_json(aside / MANIFEST, {"step": step, **identity, "files": listed})
    for path in aside.rglob("*"):
        _sync(path)
    _sync(aside)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    _sync(folder)
    for old in find_checkpoints(folder)[:-keep]:
        shutil.rmtree(old.path, ignore_errors=True)
    return target


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints, oldest first: those whose manifest lists files that are there in their full size."""
    found = []
    for path in folder.glob("step-*") if folder.is_dir() else ():
        named = _FOLDER.fullmatch(path.name)
        if named and _complete(path):
            found.append(Checkpoint(path, int(named[1])))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def load_checkpoint(checkpoint: Checkpoint, adapters: Adapters) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Put seats and snapshots back; returns the optimizer's state and the saved JSON state.

    Raises RunFolderError where a file's SHA-256 is not the manifest's.
    """
    path = checkpoint.path
    for name, listed in _manifest(path)["files"].items():
        if sha256(path / name) != listed["sha256"]:
            raise RunFolderError(f"{path / name} is damaged: its SHA-256 is not the one in {MANIFEST}")
    state = read_state(checkpoint)
    for seat in adapters.seats:
        adapters.load(seat, path / "adapters" / seat)
    for number, kept in enumerate(state["snapshots"]):
        adapters.put_snapshot(kept["name"], kept["seat"], load_file(path / f"snapshot-{number}.safetensors"))
    adapters.versions.update(state["versions"])
    return load_file(path / OPTIMIZER), state


def read_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """The saved JSON state of a checkpoint."""
    state: dict[str, Any] = json.loads((checkpoint.path / STATE).read_text(encoding="utf-8"))
    return state


def check_identity(checkpoint: Checkpoint, identity: Mapping[str, str]) -> None:
    """Raises RunFolderError where a checkpoint belongs to another base model or game."""
    manifest = _manifest(checkpoint.path)
    for key, value in identity.items():
        if manifest.get(key) != value:
            raise RunFolderError(f"{checkpoint.path} was made with {key} {manifest.get(key)!r}, this run has {value!r}")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def _complete(path: Path) -> bool:
    try:
        files = _manifest(path)["files"]
        return all((path / name).stat().st_size == listed["size"] for name, listed in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

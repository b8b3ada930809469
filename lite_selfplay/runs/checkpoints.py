"""Checkpoints, written atomically. Safetensors and JSON only; nothing is ever unpickled.

A checkpoint is written to a temporary folder, synced and renamed. Its manifest lists every file with its size and
SHA-256 and is written last: a folder without a matching manifest is not a checkpoint. While a checkpoint replaces one
of the same step, the older one is `.step-N.old`; if a kill leaves only that, it is the checkpoint.
`best.json` names the checkpoint with the best evaluation, which is kept however old it is.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt, create_model

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import RunFolderError, SaveFailed
from lite_selfplay.models.packages import versions
from lite_selfplay.models.sources.folders import difference
from lite_selfplay.tasks.files import (
    JSON_LIMIT,
    STATE_LIMIT,
    first_link,
    read_json,
    read_tensors,
    sha256_of,
    write_errors,
    write_whole,
    written_whole_folder,
)

if TYPE_CHECKING:  # `list runs` reads checkpoints, and would wait seconds for torch
    from torch import Tensor

    from lite_selfplay.models.adapter_files import State
    from lite_selfplay.models.adapters import Adapters

MANIFEST, STATE, OPTIMIZER, BEST = "manifest.json", "state.json", "optimizer.safetensors", "best.json"
VERSIONS = ("lite-selfplay", "torch", "transformers", "peft")
_FIELDS: dict[str, Any] = {
    "step": int,
    **dict.fromkeys(("versions", "updates"), dict[str, NonNegativeInt]),
    "snapshots": list[create_model("_Kept", name=str, seat=str)],  # type: ignore[misc]
    "game": dict[str, Any],
    "sources": dict[str, dict[str, Any]],
    "cold_started": bool,
    **dict.fromkeys(("skipped_steps", "nonfinite"), NonNegativeInt),
}
# The keys of `state.json` in every run.
_State = create_model("_State", **_FIELDS)
_FOLDER, _OLD = re.compile(r"step-(\d{1,15})"), re.compile(r"\.step-(\d{1,15})\.old")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk: the run before step number `step`.

    If the folder is only named like a checkpoint, `problem` says what is wrong with it.
    """

    path: Path
    step: int
    problem: str | None = None


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    adapters: "Adapters",
    optimizer: "Mapping[str, Tensor]",
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
    keep: int,
    best: int | None = None,
) -> Path:
    """Write `folder/step-N`, then remove those older than the last `keep` undamaged checkpoints, except that of step
    `best`.

    `state` and `identity` are JSON; `identity` has the base, the game, the `config_hash` and anything else that a
    resume must match.

    Raises SaveFailed if it cannot be written; then the earlier ones are intact, and nothing of this one is left.
    """
    from safetensors.torch import save_file

    target, snapshots = folder / f"step-{step}", sorted(adapters.snapshots.items())
    own = {
        "step": step,
        "versions": adapters.versions,
        "updates": adapters.updates,
        "snapshots": [{"name": name, "seat": kept.seat} for name, kept in snapshots],
    }
    about = {"step": step, **identity, "ranks": adapters.ranks(), "versions": versions(VERSIONS)}
    with write_errors(target, SaveFailed):
        tidy(folder)
        with written_whole_folder(target) as partial:
            for seat in adapters.seats:
                adapters.save(seat, partial / "adapters" / seat)
            for number, (_, kept) in enumerate(snapshots):
                save_file(kept.state, _snapshot(partial, number))
            save_file(dict(optimizer), partial / OPTIMIZER)
            write_whole(partial / STATE, _as_json({**own, **state}), STATE_LIMIT)
            listed = {
                path.relative_to(partial).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            }
            write_whole(partial / MANIFEST, _as_json({**about, "files": listed}), JSON_LIMIT)
    whole = 0
    for found in reversed(list_checkpoints(folder)):
        if whole < keep:
            # What was just written was hashed as it was written; a resume may have skipped one of the others.
            whole += found.step == step or damage(found) is None
        elif found.step != best:
            shutil.rmtree(found.path, ignore_errors=True)
    return target


def write_best(folder: Path, evaluation: Mapping[str, Any]) -> None:
    """Write the best evaluation's step and scores to `folder/best.json`. Raises OSError."""
    values = {key: evaluation.get(key) for key in ("step", "pass_at_1", "best", "tasks", "n")}
    write_whole(folder / BEST, _as_json(values), JSON_LIMIT)


def tidy(folder: Path) -> None:
    """Clean up after a killed save. Only the process that writes the run may call it."""
    for left in folder.glob(".step-*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    for left in folder.glob(".step-*.old"):
        if named := _OLD.fullmatch(left.name):
            target = folder / f"step-{named[1]}"
            if _problem(target, int(named[1])) is None:
                shutil.rmtree(left, ignore_errors=True)
            elif not target.exists():
                left.rename(target)


def list_checkpoints(folder: Path, *, full: bool = False) -> list[Checkpoint]:
    """Every folder named like a checkpoint, oldest first, with its problem if it has one.

    All files in the manifest must exist and have the right size; `full` also compares their SHA-256.
    """
    found: dict[int, Checkpoint] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        # Sorted, `.step-N.old` comes before `step-N`, which has priority if it is complete.
        if named := _FOLDER.fullmatch(path.name) or _OLD.fullmatch(path.name):
            step = int(named[1])
            one = Checkpoint(path, step, _problem(path, step, full=full))
            if step not in found or one.problem is None:
                found[step] = one
    return [found[step] for step in sorted(found)]


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints, oldest first."""
    return [found for found in list_checkpoints(folder) if found.problem is None]


def newest_whole(folder: Path, warn: Callable[[str], None] = lambda sentence: None) -> Checkpoint | None:
    """The newest complete and undamaged checkpoint, None without one; `warn` is told of those skipped."""
    for found in reversed(list_checkpoints(folder)):
        if (problem := damage(found)) is None:
            return found
        warn(f"skipped {found.path}: {problem}")
    return None


def damage(found: Checkpoint) -> str | None:
    """Why a checkpoint is incomplete or damaged, after comparing the SHA-256 of every file; None if it is neither."""
    return found.problem or _problem(found.path, found.step, full=True)


def is_taught(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint's seats are those of a run, rather than half through its cold start."""
    return checkpoint.step > 0 or bool(read_state(checkpoint)["cold_started"])


def holds_seats_of(run: Path, checkpoint: Checkpoint) -> bool:
    """Whether `adapters/` in a run folder has the weights of a checkpoint, by their SHA-256."""
    return all(
        (run / name).is_file() and sha256_of(run / name) == about.get("sha256")
        for name, about in _manifest(checkpoint.path)["files"].items()
        if name.startswith("adapters/") and name.endswith(".safetensors")
    )


def load_checkpoint(checkpoint: Checkpoint, adapters: "Adapters") -> "dict[str, Tensor]":
    """Restore seats and snapshots from a checkpoint that `newest_whole` found; returns the optimizer's state.

    Raises RunFolderError, before anything is restored, if a file does not belong to this run.
    """
    from lite_selfplay.models.adapter_files import WEIGHTS

    path = checkpoint.path
    manifest, state = _manifest(path), read_state(checkpoint)
    for counts in (state["versions"], state["updates"]):
        if (named := counts.keys()) != set(adapters.seats):
            raise RunFolderError(f"{path / STATE} has the seats {', '.join(named)}, not {', '.join(adapters.seats)}")
    if (ranks := manifest.get("ranks")) != adapters.ranks():
        raise RunFolderError(f"{path / MANIFEST} has the ranks {ranks}, this run {adapters.ranks()}")

    def weights(file: Path, seat: str) -> "State":
        if file.relative_to(path).as_posix() not in manifest["files"]:
            raise RunFolderError(f"{file} is not listed in {MANIFEST}")
        return adapters.read(seat, file)

    seats = {seat: weights(path / "adapters" / seat / WEIGHTS, seat) for seat in adapters.seats}
    snapshots = {}
    for number, kept in enumerate(state["snapshots"]):
        if kept["seat"] not in seats or kept["name"] in seats:
            raise RunFolderError(f"{path / STATE} names a snapshot {kept['name']!r} of {kept['seat']!r}: no such seat")
        snapshots[kept["name"]] = kept["seat"], weights(_snapshot(path, number), kept["seat"])
    optimizer = _optimizer(path / OPTIMIZER, adapters)  # the last read that may raise
    for seat, tensors in seats.items():
        adapters.load_state(seat, tensors)
    for name, (seat, tensors) in snapshots.items():
        adapters.put_snapshot(name, seat, tensors)
    adapters.versions.update(state["versions"])
    adapters.updates.update(state["updates"])
    return optimizer


def read_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """The JSON state of a checkpoint. Raises RunFolderError if it is invalid."""
    state = read_json(checkpoint.path / STATE, _State, STATE_LIMIT)
    if state["step"] != checkpoint.step:
        raise RunFolderError(f"{checkpoint.path / STATE} is not the state of step {checkpoint.step}")
    return state


def check_identity(
    checkpoint: Checkpoint, identity: Mapping[str, str], config_hash: str, kept: Mapping[str, Any] | None = None
) -> None:
    """Raises RunFolderError, naming what differs, if a checkpoint belongs to another base model, game or configuration.
    `kept`: `kept_of` the configuration."""
    manifest = read_json(checkpoint.path / MANIFEST)
    for key, value in identity.items():
        if (was := manifest.get(key)) != value:
            what = difference(str(was), value) if key == "base" else f"it is {value!r}, and was {was!r}"
            raise RunFolderError(f"{checkpoint.path} was made with another {key}: {what}")
    if manifest.get("config_hash") != config_hash:
        ours = dict(dotted(dict(kept or {})))
        odd = [
            f"{key} is {ours.get(key)!r}, and was {was!r}"
            for key, was in dotted(manifest.get("config"))
            if was != ours.get(key)
        ]
        raise RunFolderError(
            f"{checkpoint.path} was made with another configuration: in config.yaml "
            f"{'; '.join(odd) or 'the game, the precision, the seed, or the rank or alpha of a seat has changed'}, "
            "which a run must keep"
        )


def kept_of(config: RunConfig) -> dict[str, Any]:
    """The part of a filled-in configuration that must not change within a run."""
    values = config.model_dump(mode="json", include={"game", "model", "seats", "run"})
    return {
        "game": {**values["game"], "name": config.game.label},  # its file may move
        "model": {key: values["model"][key] for key in ("precision", "thinking")},
        "seats": {name: {key: seat[key] for key in ("rank", "alpha")} for name, seat in values["seats"].items()},
        "seed": values["run"]["seed"],
    }


def hash_of(config: RunConfig) -> str:
    """SHA-256 of `kept_of` a configuration."""
    return hashlib.sha256(json.dumps(kept_of(config), sort_keys=True).encode()).hexdigest()


def dotted(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values of nested objects, in dotted keys."""
    for key, value in values.items() if isinstance(values, dict) else ():
        yield from dotted(value, f"{place}{key}.") if isinstance(value, dict) else [(f"{place}{key}", value)]


def kept_snapshots(checkpoint: Checkpoint) -> dict[str, tuple[str, Path]]:
    """The snapshots of a complete checkpoint by name: (seat, file of its weights)."""
    return {
        kept["name"]: (kept["seat"], _snapshot(checkpoint.path, number))
        for number, kept in enumerate(read_state(checkpoint)["snapshots"])
    }


def _snapshot(folder: Path, number: int) -> Path:
    return folder / f"snapshot-{number}.safetensors"


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


# Reading


def _optimizer(path: Path, adapters: "Adapters") -> "dict[str, Tensor]":
    """The optimizer's state. Raises RunFolderError unless moments have their parameter's shape."""
    tensors = read_tensors(path)
    shapes = {f"{seat}/{name}": p.shape for seat in adapters.seats for name, p in adapters.parameters(seat).items()}
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in shapes:
            raise RunFolderError(f"{path} has {owner!r}, which is in no seat of this run")
        if key.startswith("exp_avg") and tensor.is_floating_point() and tensor.shape != shapes[owner]:
            raise RunFolderError(f"{path} does not fit: {name} is {list(tensor.shape)}, not {list(shapes[owner])}")
    return tensors


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises RunFolderError if it does not list a checkpoint's files."""
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files")
    if not isinstance(files, dict) or not {STATE, OPTIMIZER} <= files.keys():
        raise RunFolderError(f"{MANIFEST} does not list a checkpoint's files")
    return manifest


def _problem(path: Path, step: int, *, full: bool = False) -> str | None:
    """Why a folder is not a checkpoint of a step, beginning with the file's name; None if it is one."""
    try:
        if not path.is_dir():
            return "it is not a folder"
        if (link := first_link(path)) is not None:
            what = "it" if link == path else link.relative_to(path).as_posix()
            return f"{what} is a symbolic link, which is not followed"
        if not (path / MANIFEST).is_file():
            return f"{MANIFEST} is missing"
        manifest = _manifest(path)
        if (written := manifest.get("step")) != step:
            return f"{MANIFEST} is from step {written!r}"
        # Only files in this folder: a manifest may name others.
        sizes = {file.relative_to(path).as_posix(): file.stat().st_size for file in path.rglob("*") if file.is_file()}
        for name, listed in manifest["files"].items():
            if not isinstance(listed, dict) or listed.get("size") != sizes.get(name, -1):
                return f"{MANIFEST} names {name!r}, which is missing or has another size"
            if full and sha256_of(path / name) != listed.get("sha256"):
                return f"{name} is damaged: its SHA-256 is not the one in {MANIFEST}"
    except RunFolderError as error:
        return str(error).removeprefix(f"{path}{os.sep}")
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return None

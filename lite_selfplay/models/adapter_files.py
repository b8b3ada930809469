"""The files of an adapter, and whether their weights fit a seat (a named LoRA adapter)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PositiveInt, create_model
from torch import Tensor

from lite_selfplay.errors import RunFolderError
from lite_selfplay.tasks.files import read_json

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

State = dict[str, Tensor]
# Kinds of LoRA with the same weights that compute something else.
_OTHER_KINDS = ("rank_pattern", "alpha_pattern", "use_dora", "fan_in_fan_out")
_Config = create_model("_Config", r=PositiveInt, lora_alpha=float)


@dataclass(frozen=True)
class SnapshotWeights:
    """A snapshot: a copy of a seat's weights, on the CPU."""

    seat: str
    state: State


def require_scale(own: Any, seat: str, file: Path) -> None:
    """Raises RunFolderError if an adapter with this `adapter_config.json` computes something else than the seat with
    its `own` LoraConfig: names and shapes of weights say nothing about the scale."""
    theirs = read_json(file, _Config)
    if odd := [key for key in _OTHER_KINDS if theirs.get(key)]:
        raise RunFolderError(
            f"{file}: {odd[0]} is {theirs[odd[0]]}, which a seat cannot have: merge the adapter into its base, and "
            "train over that"
        )
    root = math.sqrt(theirs["r"]) if theirs.get("use_rslora") else 1.0  # scaled by alpha / sqrt(r), not alpha / r
    for key, value, has, name in (
        ("r", theirs["r"], own.r, "rank"),
        ("lora_alpha", theirs["lora_alpha"] * root, own.lora_alpha, "alpha"),
    ):
        if value != has:
            as_if = f" (with use_rslora as {value:g} without)" if value != theirs[key] else ""
            raise RunFolderError(
                f"{file}: {key} is {theirs[key]}{as_if}, and seat {seat!r} has {name} {has}: set "
                f"seats.{seat}.{name}={value:g}, with --set or in the run's config.yaml"
            )


def require_fit(own: State, seat: str, state: Mapping[str, Tensor], file: Path | None = None) -> None:
    """Raises RunFolderError, naming the file and the difference, unless the weights fit the seat's `own`."""
    start = f"{f'{file}: ' if file else ''}these weights do not fit seat {seat!r}"
    if odd := sorted(own.keys() ^ state.keys()):
        which = "has no" if odd[0] in own else "has"
        raise RunFolderError(f"{start}: the file {which} {odd[0]} ({len(odd)} differ), so it belongs to another base")
    for key, tensor in state.items():
        if tensor.dtype != own[key].dtype:
            raise RunFolderError(f"{start}: {key} is {tensor.dtype}, not {own[key].dtype}")
        if tensor.shape != own[key].shape:
            outer = 1 if "lora_A" in key else 0  # the dimension that is not the rank
            same_base = tensor.ndim == 2 and tensor.shape[outer] == own[key].shape[outer]
            what = "another rank" if same_base else "another base"
            raise RunFolderError(
                f"{start}: {key} is {list(tensor.shape)}, not {list(own[key].shape)}, so it has {what}"
            )

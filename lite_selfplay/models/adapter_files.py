"""The files of an adapter, and whether their weights fit a seat (a named LoRA adapter)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt, create_model
from torch import Tensor

from lite_selfplay.errors import RunFolderError
from lite_selfplay.tasks.files import first_link, read_json, read_tensors

if TYPE_CHECKING:
    from lite_selfplay.models.adapters import Adapters

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


def check_folder(adapters: "Adapters", seat: str, folder: Path, *, brought: bool = False) -> State:
    """The weights in an adapter's folder or a snapshot's file. Raises RunFolderError if they are damaged or do not fit
    the seat. If they were `brought` from elsewhere, their type may be shorter, and layers without an adapter get one
    that adds nothing."""
    if (link := first_link(folder)) is not None:
        raise RunFolderError(f"{link} is a symbolic link, which is not followed")
    file = folder if folder.is_file() else folder / WEIGHTS
    if file != folder:
        _require_scale(adapters, seat, folder / CONFIG)
    state = adapters.named_here(read_tensors(file))
    if brought and state.keys() < (own := adapters.tensors(seat)).keys():
        state = {key: state.get(key, tensor if "lora_A" in key else 0 * tensor) for key, tensor in own.items()}
    if brought:
        state = {key: tensor.float() for key, tensor in state.items()}
    require_fit(adapters, seat, state, file)
    return state


def _require_scale(adapters: "Adapters", seat: str, file: Path) -> None:
    """Raises RunFolderError if an adapter of these weights computes something else in its `adapter_config.json` than in
    the seat: names and shapes say nothing about the scale."""
    theirs, own = read_json(file, _Config), adapters.config(seat)
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


def require_fit(adapters: "Adapters", seat: str, state: Mapping[str, Tensor], file: Path | None = None) -> None:
    """Raises RunFolderError, naming the file and the difference, unless the weights fit the seat."""
    own = adapters.tensors(seat)
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

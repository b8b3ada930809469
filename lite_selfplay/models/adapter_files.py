"""The files of an adapter, and whether their weights fit a seat (a named LoRA adapter)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from lite_selfplay.errors import RunFolderError
from lite_selfplay.tasks.files import first_link, read_tensors

if TYPE_CHECKING:
    from lite_selfplay.models.adapters import Adapters

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

State = dict[str, Tensor]


@dataclass(frozen=True)
class SnapshotWeights:
    """A snapshot: a copy of a seat's weights, on the CPU."""

    seat: str
    state: State


def check_folder(adapters: "Adapters", seat: str, folder: Path) -> State:
    """The weights in an adapter's folder or a snapshot's file. Raises RunFolderError if they are damaged or do not fit
    the seat."""
    if (link := first_link(folder)) is not None:
        raise RunFolderError(f"{link} is a symbolic link, which is not followed")
    file = folder if folder.is_file() else folder / WEIGHTS
    state = adapters.named_here(read_tensors(file))
    require_fit(adapters, seat, state, file)
    return state


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

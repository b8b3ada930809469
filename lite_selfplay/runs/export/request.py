"""What an export is asked for, checked as far as that goes without the model."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import ConfigError, RequestError, RunFolderError, UnknownNameError
from lite_selfplay.runs.export.card import FORMS, Form
from lite_selfplay.runs.folder import ADAPTERS, RunFolder
from lite_selfplay.tasks.files import require_no_link

DTYPES: Mapping[Form, tuple[str, ...]] = {
    "peft": ("fp32",),
    "merged": ("bf16", "fp16"),
    "gguf": ("fp16", "bf16", "q8_0"),
    "ollama": ("fp16", "bf16", "q8_0"),
}
"""What the weights may be held in, the default first: bf16 is what most bases come in and never overflows while a model
computes in it; llama.cpp computes in more, and fp16 rounds less."""


@dataclass(frozen=True)
class Asked:
    """A request that was checked."""

    folder: RunFolder
    config: RunConfig
    seat: str
    form: Form
    dtype: str
    out: Path
    portable: bool = False
    """Whether the files are for other machines, and name no folder of this one."""

    @property
    def adapter(self) -> Path:
        return self.folder.path / ADAPTERS / self.seat

    def require_base(self, identity: str) -> None:
        base = self.folder.base()
        if base != identity:
            name = self.config.model.name
            raise RunFolderError(f"{self.folder.path} was made over the base {base!r}; {name} is {identity!r} now")


def ask(
    folder: RunFolder,
    seat: str | None,
    form: Form,
    out: Path | str | None,
    dtype: str | None,
    trusted: bool,
    portable: bool = False,
) -> Asked:
    """Check everything that is known without the model. Raises RequestError."""
    config = folder.config_to_load(trusted, unsafe_code=True)  # nothing that the model writes is run
    if form not in FORMS:
        raise ConfigError(f"a seat is exported to {', '.join(FORMS)}, not to {form!r}")
    held = dtype or DTYPES[form][0]
    if held not in DTYPES[form]:
        raise ConfigError(f"--to {form} holds weights in {' or '.join(DTYPES[form])}, not in {held!r}")
    if config.model.trust_remote_code and form != "peft":
        raise ConfigError(f"{config.model.name} is Python code of its own, which only --to peft leaves where it is")
    chosen = choose_seat(config, folder, seat)
    backend = {"model": {"backend": "transformers", "fast_inference": False}}
    config = RunConfig.of(config.model_dump(mode="json"), backend)
    return Asked(folder, config, chosen, form, held, free_place(folder, chosen, form, out), portable)


def choose_seat(config: RunConfig, folder: RunFolder, seat: str | None) -> str:
    """The seat that is meant. Raises RequestError where several could be, it is none, or it has no adapter yet."""
    if seat is None and len(config.seats) > 1:
        raise RequestError(f"{folder.path} has the seats {', '.join(config.seats)}: say which one, after the run")
    chosen = seat or next(iter(config.seats))
    if chosen not in config.seats:
        raise UnknownNameError("seat", chosen, config.seats)
    saved = folder.seats()
    if chosen not in saved:
        raise RunFolderError(
            f"{folder.path} has no adapter of seat {chosen!r}: a run writes its adapters at its checkpoints and at its "
            "end"
        )
    require_no_link(saved[chosen])
    return chosen


def free_place(folder: RunFolder, seat: str, form: Form, out: Path | str | None) -> Path:
    """The folder to write. Raises ConfigError where there is something already."""
    path = Path(out) if out is not None else Path("exports") / f"{folder.path.resolve().name}-{seat}-{form}"
    path = path.expanduser()
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already and is not overwritten: choose another --out")
    return path

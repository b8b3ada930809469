"""What an export is asked for, checked as far as that goes without the model."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Sampling
from lite_selfplay.errors import ConfigError, RequestError, RunFolderError
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.targets import saved_adapters

Form = Literal["peft", "merged", "gguf"]
FORMS: tuple[Form, ...] = ("peft", "merged", "gguf")


@dataclass(frozen=True)
class Asked:
    """A request that was checked: the seat `name` (`A`, or `A@20`) after `step` steps, whose `metrics` are those up to
    there. `sampling` is that of the first of the `roles` it played."""

    folder: RunFolder
    config: RunConfig
    name: str
    seat: str
    adapter: Path
    step: int
    metrics: list[dict[str, Any]]
    roles: tuple[str, ...]
    sampling: Sampling
    form: Form
    out: Path

    @property
    def file(self) -> str:
        """The name of a GGUF file."""
        parts = self.config.game.label, Path(self.config.model.name).name, self.name, "f16.gguf"
        return re.sub(r"[^\w.-]+", "-", "-".join(parts))


def ask(folder: RunFolder, name: str | None, form: Form, out: Path | str | None, trusted: bool) -> Asked:
    """Check everything that is known without the model. Raises RequestError."""
    config = folder.config_to_load(trusted, unsafe_code=True)  # nothing that the model writes is run
    if form not in FORMS:
        raise ConfigError(f"a seat is exported to {', '.join(FORMS)}, not to {form!r}")
    if config.model.trust_remote_code and form != "peft":
        raise ConfigError(f"{config.model.name} is Python code of its own, which only --to peft leaves where it is")
    if name is None and len(config.seats) > 1:
        raise RequestError(f"{folder.path} has the seats {', '.join(config.seats)}: say which one, after the run")
    name = name or next(iter(config.seats))
    ((seat, step, adapter),) = saved_adapters(folder, config.seats, [name]).values()
    if not adapter.is_dir():
        when = "a run writes its adapters at its checkpoints and at its end"
        raise RunFolderError(f"{folder.path} has no adapter of seat {name!r}: {when}")
    metrics = [row for row in folder.metrics() if step is None or row["step"] <= step]
    played = {role for row in metrics for role, stream in row["streams"].items() if stream["seat"] == seat}
    roles = tuple(role for role in config.roles if role in played)
    tokens = config.run.max_completion_tokens or 512
    path = Path(out or f"exports/{folder.path.resolve().name}-{name.replace('@', '-')}-{form}").expanduser()
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already and is not overwritten: choose another --out")
    return Asked(
        folder,
        config.having({"model": {"backend": "transformers", "fast_inference": False}}),
        name,
        seat,
        adapter,
        (metrics[-1]["step"] if metrics else 0) if step is None else step,
        metrics,
        roles,
        config.roles[roles[0]].sampling(tokens) if roles else Sampling(max_tokens=tokens),
        form,
        path,
    )

"""An experiment as its YAML file says it: arms, seeds, evaluations and sizes."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.config import FLAT_KEYS, RunConfig, merge, nested, set_key
from lite_selfplay.config.layers import FILE_LIMIT, parse_mapping
from lite_selfplay.config.sections import Section
from lite_selfplay.config.user_files import places_in, read_utf8, require_accepted
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.runs.evaluating import Settings

EXPERIMENTS = "lite_selfplay.runs.reproduce.experiments"
COLD_START = "cold-start"
_WHOLE: dict[str, Any] = {"run": {"minutes": 0}}  # a preset's minutes would give each arm another number of steps


class ArmSection(Section):
    """An arm: seats that are trained in a `game`, those `of` another arm measured otherwise, or an untrained `start`.

    `set` are keys of the configuration (`game.reward: coop`), laid over those that all arms share. `mode`: how it is
    measured, by default as its game says. `paper`: what the paper found, in its words.
    """

    about: str = ""
    game: str | None = None
    of: str | None = None
    start: Literal["base", "cold-start"] | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    mode: str | None = None
    paper: str = ""

    @model_validator(mode="after")
    def _one_of_three(self) -> "ArmSection":
        if sum(value is not None for value in (self.game, self.of, self.start)) != 1:
            raise PydanticCustomError(
                "arm", "takes one of game (it is trained), of (another arm) and start (it is not)"
            )
        if self.set and self.game is None:
            raise PydanticCustomError("arm", "takes keys to set where it is trained alone")
        return self


class EvaluationSection(Section):
    """Held-out problems that every arm is measured on, with the same randomness."""

    tasks: str
    limit: int | None = Field(None, ge=1)
    samples: int | None = Field(None, ge=1)
    temperature: float = Field(0.6, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    def settings(self, data_dir: str | None, tokens: int | None) -> Settings:
        """How it asks; the seed is the same for every arm and seed of training. `tokens` caps what has no cap."""
        chosen = self.model_dump(exclude={"tasks"})
        chosen["max_completion_tokens"] = self.max_completion_tokens or tokens
        return Settings(**chosen, data_dir=data_dir)


class Experiment(Section):
    """A whole experiment.

    `base` is the configuration that all arms share. `cold_start`: what the seats of every trained arm start from, made
    once a seed: the `game` that teaches them, of one seat, and keys of the section `cold_start`; without it they start
    as they are made. `source` and `paper` say where the paper's figures stand, and with which model and hardware they
    were found. `scales` are other sizes: keys of this very file by name.
    """

    name: str
    about: str
    source: str
    paper: str
    base: dict[str, Any]
    cold_start: dict[str, Any] | None = None
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    evaluations: tuple[EvaluationSection, ...] = Field(..., min_length=1)
    arms: dict[str, ArmSection] = Field(..., min_length=1)
    baseline: str = ""
    scale: str = "full"

    @property
    def against(self) -> str:
        """The arm that others are compared with: `baseline`, else the first."""
        return self.baseline or next(iter(self.arms))

    def trained(self) -> dict[str, ArmSection]:
        """The arms that are trained."""
        return {name: arm for name, arm in self.arms.items() if arm.game is not None}

    @property
    def shared(self) -> RunConfig:
        """What all arms share, as the configuration of a run of no game in particular."""
        return RunConfig.of(self.base, {"game": "grpo"})

    def config(self, arm: str, seed: int, folder: Path, init: Path | None) -> RunConfig:
        """The configuration of a trained arm's run. Raises ConfigError."""
        keys: dict[str, Any] = {}
        for dotted, value in self.arms[arm].set.items():
            set_key(keys, FLAT_KEYS.get(dotted, dotted), value)
        started = {"cold_start": {"enabled": False}, "run": {"init": str(init)}} if init else {}
        run = {"run": {"seed": seed, "dir": str(folder), "preflight": False}}  # an arm is compared, whatever it learns
        return RunConfig.of(_WHOLE, self.base, {"game": self.arms[arm].game}, started, keys, run)

    def cold_start_config(self, seed: int, folder: Path) -> RunConfig:
        """The configuration of the cold start that all trained arms of a seed share."""
        keys = dict(self.cold_start or {})
        game = keys.pop("game", "self-refine")
        taught = {"cold_start": {**keys, "enabled": True}, "eval": {"tasks": None}}
        run = {"run": {"seed": seed, "dir": str(folder), "preflight": False}}
        return RunConfig.of(_WHOLE, self.base, {"game": game}, taught, run)


def experiment_names() -> list[str]:
    """The experiments that are shipped, by name."""
    found = (file.name for file in files(EXPERIMENTS).iterdir())
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))


def load_experiment(name: str, scale: str = "full") -> Experiment:
    """An experiment by its name or its file, in one of its sizes.

    Raises UnknownNameError with near names, ConfigError where the file is missing or is not an experiment.
    """
    if name in experiment_names():
        text, stem = files(EXPERIMENTS).joinpath(f"{name}.yaml").read_text(encoding="utf-8"), name
    elif name.endswith((".yaml", ".yml")):
        text, stem = read_utf8(Path(name), ConfigError, FILE_LIMIT), Path(name).stem
    else:
        raise UnknownNameError("experiment", name, experiment_names(), "A file of your own must end in .yaml.")
    return _checked(name, stem, parse_mapping(text, name), scale)


def _checked(name: str, stem: str, values: Mapping[str, Any], scale: str) -> Experiment:
    values = dict(values)
    scales = values.pop("scales", None) or {}
    if scale != "full":
        if scale not in scales:
            raise UnknownNameError("scale", scale, ["full", *scales], f"These are the sizes of {name}.")
        values = _resized(values, scales[scale])
    try:
        found = Experiment(**{**values, "name": stem, "scale": scale})
    except ValidationError as error:
        found_out = (f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"{name}: {'; '.join(found_out)}") from None
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from None
    for arm, section in found.arms.items():
        if not re.fullmatch(r"\w[\w ,.+-]*", arm) or arm == COLD_START:
            raise ConfigError(f"{name}: an arm's name is one of a folder, of letters, digits and ' ,.+-', got {arm!r}")
        if section.of is not None and section.of not in found.trained():
            raise ConfigError(f"{name}: arms.{arm}.of names {section.of!r}, which is no trained arm")
        if section.start == COLD_START and found.cold_start is None:
            raise ConfigError(f"{name}: arms.{arm} is the cold start, and there is none")
    if found.against not in found.arms:
        raise ConfigError(f"{name}: baseline names {found.baseline!r}, which is no arm")
    configs = [found.cold_start_config(0, Path()), *(found.config(arm, 0, Path(), None) for arm in found.trained())]
    for layer in (*(config.values() for config in configs), *({"eval": vars(one)} for one in found.evaluations)):
        require_accepted(places_in(layer), name)
    return found


def _resized(values: Mapping[str, Any], size: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a size laid over those of the whole; evaluations and seeds are replaced, null arms left out."""
    base = merge(nested(values.get("base") or {}), nested(size.get("base") or {}))
    arms = merge(values.get("arms") or {}, size.get("arms") or {})
    kept = {name: arm for name, arm in arms.items() if arm is not None}
    return {**values, **size, "base": base, "arms": kept}

"""The contents of an experiment's YAML file: arms (the compared training methods), seeds, evaluations and sizes."""

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.config import FLAT_KEYS, RunConfig, merge, nested, preset_layer, set_key
from lite_selfplay.config.layers import FILE_LIMIT, parse_mapping
from lite_selfplay.config.sections import Section
from lite_selfplay.config.user_files import places_in, read_utf8, require_accepted
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.evaluation.suites import MeasuringSection, Settings, find_suite
from lite_selfplay.games import make_game
from lite_selfplay.tasks import split_specs

EXPERIMENTS = files(__package__) / "experiments"
COLD_START = "cold-start"
RATE = "seats.*.lr"
EVALUATION = "evaluation"  # the name of the curve of pass@1 in the evaluations during training
_UNTIMED: dict[str, Any] = {"run": {"minutes": 0}}  # a preset's minutes would give arms different numbers of steps


class ArmSection(Section):
    """An arm (training method): seats trained in a `game`, the seats `of` another arm, or untrained ones (`start`).

    `set`: configuration keys (`game.reward: coop`) that override those shared by all arms; a `preset` among them
    replaces the shared one. `mode`, `seats` and `shots` (worked examples): how it is evaluated, by default as its game
    and the suite say; seats may be `solver@best` or a snapshot. `seeds`: the experiment's seeds that train it; None:
    all. `cold_start`: the game whose cold start teaches its seats; None: the experiment's. `paper`: the paper's results
    as printed, by task or by mean of a suite.
    """

    about: str = ""
    game: str | None = None
    of: str | None = None
    start: Literal["base", "cold-start"] | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    mode: str | None = None
    seats: tuple[str, ...] | None = None
    shots: int | None = Field(None, ge=0)
    cold_start: str | None = None
    seeds: tuple[int, ...] | None = None
    paper: dict[str, str] = Field(default_factory=dict)

    def at(self, rate: float) -> "ArmSection":
        """A copy of this arm that trains all seats with the learning rate `rate`."""
        return self.model_copy(update={"set": {**self.set, RATE: rate}})

    @model_validator(mode="after")
    def _one_of_three(self) -> "ArmSection":
        if sum(value is not None for value in (self.game, self.of, self.start)) != 1:
            raise PydanticCustomError(
                "arm", "needs exactly one of game (trained), of (another arm) and start (untrained)"
            )
        if self.set and self.game is None:
            raise PydanticCustomError("arm", "may have keys to set only if it is trained")
        return self


class EvaluationSection(MeasuringSection):
    """Held-out problems on which all arms are evaluated with the same seeds: `tasks`, or a paper's `suite`
    (`lite_selfplay.evaluation.suites`), which also sets samples, sampling and worked examples; other keys override
    them. `mode` overrides the arms' own modes."""

    tasks: str | None = None
    suite: str | None = None
    mode: str | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "EvaluationSection":
        if (self.tasks is None) == (self.suite is None):
            raise PydanticCustomError("evaluation", "needs either tasks or a suite")
        return self

    @property
    def specs(self) -> Sequence[str] | Mapping[str, int]:
        """The names of the tasks; for a suite, a mapping of its benchmarks to samples per problem."""
        return find_suite(self.suite).samples if self.suite else split_specs(self.tasks or "")

    def settings(self, shared: RunConfig, arm: ArmSection) -> Settings:
        """An arm's evaluation settings: the suite's, overridden by this section's, then by the arm's. `shared` has the
        data folder, `answer_from`, the default token limit and, for an untrained base, the precision."""
        untrained = arm.start == "base"
        chosen: dict[str, Any] = {
            "data_dir": shared.tasks.data_dir,
            "answer_from": shared.tasks.answer_from,
            "trained_on": True,
        }
        chosen |= find_suite(self.suite).settings(shared.model.name if untrained else "") if self.suite else {}
        chosen |= self.model_dump(exclude={"tasks", "suite", "mode"}, exclude_none=True)
        chosen |= arm.model_dump(include={"seats", "shots"}, exclude_none=True)
        chosen["max_completion_tokens"] = chosen.get("max_completion_tokens") or shared.run.max_completion_tokens
        return Settings(**chosen, precision=shared.model.precision if untrained else None)


class SearchSection(Section):
    """The search for each trained arm's learning rate, run before the experiment: of `rates`, the one with the highest
    mean pass@1 over `seeds` on `evaluations` (which should not be the experiment's own); of equal ones the lowest."""

    rates: tuple[float, ...] = Field(..., min_length=1)
    seeds: tuple[int, ...] = Field(..., min_length=1)
    evaluations: tuple[EvaluationSection, ...] = Field(..., min_length=1)


class Experiment(Section):
    """An experiment: `arms` (training methods), trained with each of the `seeds`, compared on the same `evaluations`.

    - `base`: the configuration shared by all arms.
    - `cold_start`: the `game` whose cold start teaches all trained arms' seats, once per seed, and keys of the
      configuration's section `cold_start`; None: seats start untrained. An arm with several seats is
      taught by its own game if the shared one would give them equal weights.
    - `budget`: the number that must be equal in all trained arms; `recipes`: each has its own.
    - `source`: the paper's table or section with its numbers; `paper`: the model and hardware behind them.
    - `search`: chooses each trained arm's learning rate; None: that of `base`.
    - `baseline`: the arm to compare others with; empty: the first.
    - `curve`: the value drawn over the steps: a key of metrics.jsonl with dots (`game.nash_conv`), or `evaluation`:
      pass@1 in the evaluations during training.

    The file's `scales` are other sizes: named sets of keys that override the file's own.
    """

    name: str
    about: str
    source: str
    paper: str
    base: dict[str, Any]
    cold_start: dict[str, Any] | None = None
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    evaluations: tuple[EvaluationSection, ...] = Field(..., min_length=1)
    search: SearchSection | None = None
    arms: dict[str, ArmSection] = Field(..., min_length=1)
    baseline: str = ""
    budget: Literal["completions", "steps", "recipes"] = "completions"
    curve: str = ""
    scale: str = "full"

    @property
    def against(self) -> str:
        """The name of the arm to compare others with: `baseline`, else the first arm."""
        return self.baseline or next(iter(self.arms))

    def trained(self) -> dict[str, ArmSection]:
        """The arms that are trained (have a `game`), by name."""
        return {name: arm for name, arm in self.arms.items() if arm.game is not None}

    @property
    def shared(self) -> RunConfig:
        """The configuration shared by all arms, for evaluations; its game is only a placeholder."""
        return RunConfig.of(self._layer("grpo"), {"game": "grpo"})

    def having(self, *layers: Mapping[str, Any]) -> "Experiment":
        """A copy whose shared configuration is overridden by `layers` in turn, for example with another model."""
        base = nested(self.base)
        for layer in layers:
            base = merge(base, nested(layer))
        return self.model_copy(update={"base": base})

    def at_every_rate(self) -> "Experiment":
        """The search as an experiment of its own, with an arm for each trained arm and rate, and the search's seeds."""
        assert self.search is not None
        arms = {
            f"{name} at {rate:g}": arm.at(rate).model_copy(update={"seeds": None})
            for name, arm in self.trained().items()
            for rate in self.search.rates
        }
        own = {"seeds": self.search.seeds, "evaluations": self.search.evaluations, "arms": arms}
        return self.model_copy(update={**own, "name": f"{self.name}, rates", "search": None, "baseline": ""})

    def at(self, rates: Mapping[str, float]) -> "Experiment":
        """A copy in which the arms in `rates` train with these learning rates."""
        arms = {name: arm.at(rates[name]) if name in rates else arm for name, arm in self.arms.items()}
        return self.model_copy(update={"arms": arms})

    def config(self, arm: str, seed: int, folder: Path, init: Path | None) -> RunConfig:
        """The configuration of a trained arm's run; `init`: the run whose seats it starts from. Raises ConfigError."""
        keys: dict[str, Any] = {}
        for dotted, value in self.arms[arm].set.items():
            set_key(keys, FLAT_KEYS.get(dotted, dotted), value)
        started = {"cold_start": {"enabled": False}, "run": {"init": str(init)}} if init else {}
        # Without a pre-flight, since an arm that cannot learn is compared too.
        run = {"run": {"seed": seed, "dir": str(folder), "preflight": False}}
        game = str(self.arms[arm].game)
        return RunConfig.of(self._layer(game, keys.pop("preset", None)), {"game": game}, started, keys, run)

    def _layer(self, game: str, preset: str | None = None) -> dict[str, Any]:
        """The shared configuration for a run of `game`, to be overridden by an arm's keys. A `preset` replaces the
        shared preset. If the shared configuration is for another game, its options, roles and seats are dropped."""
        shared = nested(self.base)
        common = shared.pop("preset", None)
        below = preset_layer(common) if common else {}
        another = merge(below, shared).get("game", {}).get("name", game) != game
        shared = merge({} if preset else below, merge(_UNTIMED, shared))
        if another:
            every = {section: {"*": shared.get(section, {}).get("*", {})} for section in ("roles", "seats")}
            shared = merge({**shared, **every, "game": {}}, {"run": {"preset": preset}})
        return merge(preset_layer(preset), shared) if preset else shared

    def starts_taught(self, arm: str) -> bool:
        """Whether a trained arm's seats start from the experiment's cold start; not if it sets `run.init: null`."""
        return self.cold_start is not None and self.arms[arm].set.get("run.init", "") is not None

    def teaching(self, arm: str | None = None) -> str:
        """The game whose cold start teaches an arm's seats: the arm's choice, else the experiment's, or the arm's own
        if the experiment's would give its several seats the same weights. `arm` None: the experiment's."""
        shared = str((self.cold_start or {}).get("game", "self-refine"))
        if arm and (chosen := self.arms[arm].cold_start):
            return chosen
        own = (self.arms[arm].game if arm else None) or shared
        several = len(make_game(own, {}).trained_seats()) > len(make_game(shared, {}).trained_seats()) == 1
        return own if several else shared

    def start_of(self, arm: str) -> str | None:
        """The arm that evaluates a trained arm's seats as they were before training: the one with the same cold start,
        or without a shared cold start the one `of` it whose seats are all at step 0 (`@0`). None if there is none. An
        arm `of` a trained arm has the same one."""
        trained = self.arms[arm].of or arm
        if self.arms[trained].game is None:
            return None
        if not self.starts_taught(trained):
            begun = (
                name
                for name, section in self.arms.items()
                if section.of == trained and name != arm and all(seat.endswith("@0") for seat in section.seats or ("",))
            )
            return next(begun, None)
        starts = (name for name, section in self.arms.items() if section.start == COLD_START)
        return next((name for name in starts if self.teaching(name) == self.teaching(trained)), None)

    def cold_start_config(self, game: str, seed: int, folder: Path) -> RunConfig:
        """The configuration of a run that only cold-starts the seats of `game` (supervised steps) with this seed."""
        keys = {key: value for key, value in (self.cold_start or {}).items() if key != "game"}
        taught = {"cold_start": {**keys, "enabled": True}, "eval": {"tasks": None}}
        run = {"run": {"seed": seed, "dir": str(folder), "preflight": False}}
        return RunConfig.of(self._layer(game), {"game": game}, taught, run)


def experiment_names() -> list[str]:
    """The names of the shipped experiments."""
    return sorted(file.name.removesuffix(".yaml") for file in EXPERIMENTS.iterdir() if file.name.endswith(".yaml"))


def load_experiment(name: str, scale: str = "full") -> Experiment:
    """Load a shipped experiment by its name, or one from a YAML file, in the size `scale`. Raises UnknownNameError with
    near names, ConfigError if the file is missing or is not an experiment."""
    if name in experiment_names():
        text, stem = EXPERIMENTS.joinpath(f"{name}.yaml").read_text(encoding="utf-8"), name
    elif name.endswith((".yaml", ".yml")):
        text, stem = read_utf8(Path(name), ConfigError, FILE_LIMIT), Path(name).stem
    else:
        raise UnknownNameError("experiment", name, experiment_names(), "A file of your own must end in .yaml.")
    values = dict(parse_mapping(text, name))
    scales = values.pop("scales", None) or {}
    if scale != "full":
        if scale not in scales:
            raise UnknownNameError("scale", scale, ["full", *scales], f"These are the sizes of {name}.")
        # A size overrides the file: base and arms are merged (null removes an arm), other keys replaced.
        size = scales[scale]
        base = merge(nested(values.get("base") or {}), nested(size.get("base") or {}))
        arms = merge(values.get("arms") or {}, size.get("arms") or {}).items()
        values = {**values, **size, "base": base, "arms": {name: arm for name, arm in arms if arm is not None}}
    try:
        found = Experiment.model_validate({**values, "name": stem, "scale": scale})
    except ValidationError as error:
        found_out = (f"{'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"{name}: {'; '.join(found_out)}") from None
    for arm, section in found.arms.items():
        if not re.fullmatch(r"\w[\w ,.+-]*", arm) or arm.startswith(COLD_START):
            raise ConfigError(
                f"{name}: an arm's name is a folder's name: only letters, digits and ' ,.+-' are allowed, got {arm!r}"
            )
        if section.of is not None and section.of not in found.trained():
            raise ConfigError(f"{name}: arms.{arm}.of names {section.of!r}, which is not a trained arm")
        if section.start == COLD_START and found.cold_start is None:
            raise ConfigError(f"{name}: arms.{arm} starts from the cold start, but there is none")
    if found.against not in found.arms:
        raise ConfigError(f"{name}: baseline names {found.baseline!r}, which is not an arm")
    taught = found.cold_start_config((found.cold_start or {}).get("game", "self-refine"), 0, Path())
    for config in (taught, *(found.config(arm, 0, Path(), None) for arm in found.trained())):
        require_accepted(places_in(config.values()), name)
    for spec in (spec for one in found.evaluations for spec in one.specs):
        require_accepted(places_in({"eval": {"tasks": spec}}), name)
    return found

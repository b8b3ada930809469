"""The contents of an experiment's YAML file: arms (the compared training methods), seeds, evaluations, and sizes (named
variants of the experiment, such as a smaller one)."""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.config import FLAT_KEYS, RunConfig, Section, merge, nested, preset_layer
from lite_selfplay.config.layers import FILE_LIMIT, parse_mapping, require_accepted
from lite_selfplay.config.user_files import read_utf8
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay.evaluation.suites import MeasuringSection, Settings, find_suite
from lite_selfplay.games import make_game
from lite_selfplay.runs.defaults import layer_of
from lite_selfplay.tasks import split_specs

EXPERIMENTS = files(__package__) / "experiments"
COLD_START = "cold-start"
RATE = "seats.*.lr"
EVALUATION = "evaluation"  # the name of the curve of pass@1 in the evaluations during training
_UNTIMED: dict[str, Any] = {"run": {"minutes": 0}}  # a preset's minutes would give arms different numbers of steps


class ArmSection(Section):
    """An arm of an experiment: a training method, or seats (named LoRA adapters) that are evaluated without training.

    Exactly one of `game`, `of` and `start` is set.

    - `about`: a description for readers of the YAML file.
    - `game`: the game in which this arm trains its seats.
    - `of`: the name of a trained arm whose seats this arm evaluates, for example in another mode.
    - `start`: what this arm evaluates without training in a game, either the base model or the seats after the cold
      start.
    - `set`: configuration keys for this arm's training, such as `game.reward: coop`. They override the keys shared by
      all arms. A `preset` among them replaces the shared preset.
    - `mode`: the mode of those evaluations that name none. None means the default mode of the evaluated run's game, or
      `single` for the base model.
    - `seats`: the seats to evaluate, also from checkpoints (`solver@best`). None means the seats that the game
      names for evaluation. (The game is that of the run whose seats are evaluated.)
    - `shots`: the number of worked examples before each evaluated problem. None means the number that the evaluation
      sets.
    - `cold_start`: the game whose cold start (supervised steps before training) teaches this arm's seats. None means
      the game of the experiment's cold start, with the exception that `Experiment.teaching` explains.
    - `seeds`: those of the experiment's seeds that this arm uses. None means all. The base model is evaluated only with
      the experiment's first seed.
    - `paper`: the results printed in the paper for this arm, by name of a task or of a mean over several tasks.
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
        """A copy of this arm (training method) that trains all seats (LoRA adapters) with the learning rate `rate`."""
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
    """Held-out problems on which an experiment evaluates all its arms (training methods), with the settings for
    sampling. Exactly one of `tasks` and `suite` is set: `tasks` is a comma-separated list of tasks, and `suite` the
    name of a paper's evaluation protocol in `lite_selfplay.evaluation.suites`. A suite also sets the number of samples
    per problem, the sampling and the worked examples. Other keys of this section override what it sets. `mode` is the
    evaluation mode for all arms. None means that `ArmSection.mode` of each arm decides."""

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
        """The names of the tasks to evaluate on. For a suite it maps each task's name to the number of samples per
        problem."""
        return find_suite(self.suite).samples if self.suite else split_specs(self.tasks or "")

    def settings(self, shared: RunConfig, arm: ArmSection) -> Settings:
        """The settings for evaluating `arm` (a training method). This section's settings override those of its suite (a
        named set of tasks), and the arm's `seats` and `shots` override both. `shared` is the configuration of all arms.
        It gives the folder of data sets, the rule for reading answers (`answer_from`: anywhere in a completion, or only
        in its `<answer>` block), the default of `max_completion_tokens`, and the precision of an untrained base
        model."""
        untrained = arm.start == "base"
        chosen: dict[str, Any] = {
            "data_dir": shared.tasks.data_dir,
            "answer_from": shared.tasks.answer_from,
            "trust_remote_code": shared.model.trust_remote_code,
            "unsafe_code": shared.tasks.unsafe_code,
            "trained_on": True,
            **(find_suite(self.suite).settings(shared.model.name if untrained else "") if self.suite else {}),
            **self.model_dump(exclude={"tasks", "suite", "mode"}, exclude_none=True),
            **arm.model_dump(include={"seats", "shots"}, exclude_none=True),
        }
        chosen["max_completion_tokens"] = chosen.get("max_completion_tokens") or shared.run.max_completion_tokens
        return Settings(**chosen, precision=shared.model.precision if untrained else None)


class SearchSection(Section):
    """The search for the learning rate of each trained arm (training method), made before the experiment itself. Each
    arm is trained at each of the `rates` with each of the `seeds`, and measured on the `evaluations`, which the search
    uses instead of the experiment's. The search chooses the rate with the highest mean pass@1 over seeds and
    evaluations; of several equally good rates, the lowest."""

    rates: tuple[float, ...] = Field(..., min_length=1)
    seeds: tuple[int, ...] = Field(..., min_length=1)
    evaluations: tuple[EvaluationSection, ...] = Field(..., min_length=1)


class Experiment(Section):
    """An experiment: training methods (`arms`), applied with the same seeds and compared on the same held-out problems.

    - `name`: the name of the YAML file, without its suffix.
    - `about`: a description, printed above the results.
    - `source`: the paper's tables, figures or sections that the experiment repeats.
    - `paper`: the model, data and hardware behind the paper's numbers.
    - `base`: the configuration keys shared by all arms.
    - `cold_start`: the shared cold start (supervised steps before training), run once for each seed. Its keys are
      `game`, the game whose seats (named LoRA adapters) it teaches, and those of the configuration's section
      `cold_start`. Trained arms start from the taught seats. None means that there is no shared cold start.
    - `seeds`: the seeds with which each arm is trained.
    - `evaluations`: the held-out problems on which all arms are evaluated, with the settings for sampling.
    - `search`: the search for each trained arm's learning rate. None means that the configuration's rates are used.
    - `arms`: the arms by name.
    - `baseline`: the name of the arm with which the others are compared. Empty means the first arm.
    - `budget`: the number that must be equal for all trained arms: `completions` (sampled in training) or `steps`. With
      `recipes` both may differ. `conduct` checks it.
    - `curve`: the metric drawn over the training steps, either a key of `metrics.jsonl` such as `game.nash_conv`, or
      `evaluation` for pass@1 in the evaluations during training. Empty means that no curve is drawn.
    - `scale`: the name of the chosen entry in the file's section `scales`. Each entry has keys that override the rest
      of the file, for a smaller experiment, for example; the other fields here already have them. `full` means the file
      without any.
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
        """The name of the arm (training method) to compare others with: the field `baseline`, or if that is empty, the
        name of the first arm."""
        return self.baseline or next(iter(self.arms))

    def trained(self) -> dict[str, ArmSection]:
        """The arms (training methods) that train seats in a `game`, by name; not those that only evaluate seats."""
        return {name: arm for name, arm in self.arms.items() if arm.game is not None}

    @property
    def shared(self) -> RunConfig:
        """The configuration for evaluations: the settings that all arms (training methods) share. It names a game only
        because every configuration has to name one."""
        return RunConfig.of(self._layer("grpo"), {"game": "grpo"})

    def having(self, *layers: Mapping[str, Any]) -> "Experiment":
        """A copy with changes to the configuration shared by all arms (training methods), for example another model.
        Each of the `layers` maps configuration keys to new values; a later layer overrides an earlier one."""
        return self.model_copy(update={"base": reduce(merge, map(nested, layers), nested(self.base))})

    def at_every_rate(self) -> "Experiment":
        """The search for learning rates as an experiment of its own, with the seeds and evaluations of `search`, which
        must not be None. It has an arm such as `ARM at 0.0001` for each trained arm (training method) and each rate."""
        assert self.search is not None
        return self.model_copy(
            update={
                "name": f"{self.name}, rates",
                "seeds": self.search.seeds,
                "evaluations": self.search.evaluations,
                "arms": {
                    f"{name} at {rate:g}": arm.at(rate).model_copy(update={"seeds": None})
                    for name, arm in self.trained().items()
                    for rate in self.search.rates
                },
                "search": None,
                "baseline": "",
            }
        )

    def at(self, rates: Mapping[str, float]) -> "Experiment":
        """A copy in which the arms (training methods) named in `rates` train with these learning rates."""
        arms = {name: arm.at(rates[name]) if name in rates else arm for name, arm in self.arms.items()}
        return self.model_copy(update={"arms": arms})

    def config(self, arm: str, seed: int, folder: Path, init: Path | None) -> RunConfig:
        """The configuration of the run that trains the arm (training method) named `arm` with this seed, in the run
        folder `folder`. `init` is the folder of an earlier run from whose seats (LoRA adapters) the training starts.
        None means that it starts as the experiment's configuration says. Raises ConfigError if a key is unknown or its
        value is not allowed."""
        keys = layer_of({FLAT_KEYS.get(key, key): value for key, value in self.arms[arm].set.items()})
        started = {"cold_start": {"enabled": False}, "run": {"init": str(init)}} if init else {}
        # Without a pre-flight, since an arm that cannot learn is compared too.
        run = {"run": {"seed": seed, "dir": str(folder), "preflight": False}}
        game = str(self.arms[arm].game)
        return RunConfig.of(self._layer(game, keys.pop("preset", None)), {"game": game}, started, keys, run)

    def _layer(self, game: str, preset: str | None = None) -> dict[str, Any]:
        """The configuration keys shared by all arms (training methods), prepared for a run of `game`. An arm's own keys
        override them. `preset` is a preset that replaces the shared preset; None keeps the shared one. If the shared
        keys are written for another game than `game`, two kinds of them are left out: the options of that other game,
        and every key that applies to a single role or seat."""
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
        """Whether the seats (LoRA adapters) of the trained arm (training method) named `arm` start from a cold start
        (supervised steps before training) that the experiment runs. False if the experiment has no cold start, or the
        arm sets `run.init: null`."""
        return self.cold_start is not None and self.arms[arm].set.get("run.init", "") is not None

    def teaching(self, arm: str | None = None) -> str:
        """The game whose cold start (supervised steps before training) teaches the seats (LoRA adapters) of the arm
        named `arm`. If the arm sets `cold_start`, it is that game. Otherwise it is the shared game, named by
        `cold_start.game` of the experiment (`self-refine` if that is missing), with one exception: if the shared game
        trains one seat and the arm's `game` several, it is the arm's `game`, since the arm's seats would otherwise all
        start with equal weights. With `arm` None, it is the shared game."""
        shared = str((self.cold_start or {}).get("game", "self-refine"))
        if arm and (chosen := self.arms[arm].cold_start):
            return chosen
        own = (self.arms[arm].game if arm else None) or shared
        several = len(make_game(own, {}).trained_seats()) > len(make_game(shared, {}).trained_seats()) == 1
        return own if several else shared

    def starts_of(self, arm: str) -> list[str]:
        """The names of the arms that evaluate the weights from which the arm (training method) `arm` was trained, in
        the order of the file; a gain is over the first one measured in the mode of `arm`. For an arm that trains
        nothing and evaluates the seats (LoRA adapters) of a trained arm, the result is the same as for the trained arm.
        If the training began with a cold start (supervised steps before training), these are the arms with
        `start: cold-start` and the same cold start. If it began without one, these are the other arms that train
        nothing and evaluate the trained arm's seats as they were at step 0, such as `A@0` for seat A."""
        trained = self.arms[arm].of or arm
        if self.arms[trained].game is None:
            return []
        if not self.starts_taught(trained):
            return [
                name
                for name, section in self.arms.items()
                if section.of == trained and name != arm and all(seat.endswith("@0") for seat in section.seats or ("",))
            ]
        return [
            name
            for name, section in self.arms.items()
            if section.start == COLD_START and self.teaching(name) == self.teaching(trained)
        ]

    def cold_start_config(self, game: str, seed: int, folder: Path) -> RunConfig:
        """The configuration of a run, in the run folder `folder` and with this seed, that only does the cold start
        (supervised steps before training) of the seats of `game`."""
        keys = {key: value for key, value in (self.cold_start or {}).items() if key != "game"}
        own = {
            "cold_start": {**keys, "enabled": True},
            "eval": {"tasks": None},
            "run": {"seed": seed, "dir": str(folder), "preflight": False},
        }
        return RunConfig.of(self._layer(game), {"game": game}, own)


def experiment_names() -> list[str]:
    """The names of the experiments that come with this library, sorted."""
    return sorted(file.name.removesuffix(".yaml") for file in EXPERIMENTS.iterdir() if file.name.endswith(".yaml"))


def load_experiment(name: str, scale: str = "full", chosen: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment: the one called `name` that comes with this library, or else the YAML file at the path `name`.
    `scale` is the name of an entry in the file's section `scales`; the entry's keys override the rest of the file. With
    `full`, nothing is overridden. Raises UnknownNameError, which suggests similar names, for an unknown experiment or
    size. Raises ConfigError if the file cannot be read, has a wrong key or value, or refers to a missing arm, and if
    it decides what only the user may (`config.layers.require_accepted`, to which `chosen` are the user's keys)."""
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
    require_accepted(values, name, chosen)
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
    found.cold_start_config((found.cold_start or {}).get("game", "self-refine"), 0, Path())  # raises for a wrong key
    for arm in found.trained():
        found.config(arm, 0, Path(), None)
    return found

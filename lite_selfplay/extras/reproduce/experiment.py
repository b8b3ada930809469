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
    """An arm (training method) of an experiment: its seats (LoRA adapters) are trained in a `game`, those `of` another
    arm, or untrained ones (`start`: the base model, or after the supervised steps of a cold start). Exactly one of
    these is set. `set`: configuration keys for training (`game.reward: coop`), which override those shared by all arms;
    a `preset` among them replaces the shared one. `mode`, `seats` and `shots` (worked examples): for its evaluation;
    None: as its game and the experiment's evaluation say; seats may be from checkpoints (`solver@best`). `seeds`: those
    of the experiment to train with; None: all. `cold_start`: the game whose cold start teaches its seats; None: the
    experiment's. `paper`: the paper's results for it as printed, by task or by mean of a suite."""

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
    """Held-out problems on which an experiment evaluates all its arms (training methods), with the same seeds. Exactly
    one of two fields names them: `tasks`, or `suite`, a paper's evaluation protocol in
    `lite_selfplay.evaluation.suites`. A suite also sets the number of samples, the sampling and the worked examples;
    other keys of this section override these. `mode` is the evaluation mode for all arms; None: each arm's own."""

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
        """The names of the tasks to evaluate on; for a suite, a mapping of its benchmarks to samples per problem."""
        return find_suite(self.suite).samples if self.suite else split_specs(self.tasks or "")

    def settings(self, shared: RunConfig, arm: ArmSection) -> Settings:
        """The settings for the evaluation of `arm` (a training method): the suite's, overridden by this section's, then
        by the arm's. `shared`, the configuration of all arms, gives the folder of data sets, where to read answers
        (`answer_from`), the default token limit of a completion, and the precision of an untrained base model."""
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
    """The search for each trained arm's (training method's) learning rate, before the experiment: of `rates`, the one
    with the highest mean pass@1 over `seeds` on `evaluations` (not the experiment's own); of equal ones the lowest."""

    rates: tuple[float, ...] = Field(..., min_length=1)
    seeds: tuple[int, ...] = Field(..., min_length=1)
    evaluations: tuple[EvaluationSection, ...] = Field(..., min_length=1)


class Experiment(Section):
    """An experiment: `arms` (training methods), each trained with each of the `seeds`, compared on the same
    `evaluations`.

    - `base`: the configuration shared by all arms.
    - `cold_start`: the `game` whose cold start (supervised steps) teaches all trained arms' seats (LoRA adapters), once
      per seed, and keys of the configuration's section `cold_start`; None: seats start untrained. An arm with several
      seats is taught by its own game if the shared one would give them equal weights.
    - `budget`: the number, of training's completions or steps, that is equal in all trained arms; `recipes`: none is.
    - `source`: the paper's table or section with its numbers; `paper`: the model and hardware behind them.
    - `search`: chooses each trained arm's learning rate; None: that of `base`.
    - `baseline`: the arm to compare others with; empty: the first.
    - `curve`: the value drawn over the steps: a key of metrics.jsonl with dots (`game.nash_conv`), or `evaluation`:
      pass@1 in the evaluations during training; empty: none.
    - `scale`: one of the sizes in the file, named sets of keys that override its own; `full`: the file unchanged.
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
        """The name of the arm (training method) to compare others with: `baseline`, or the first arm if it is empty."""
        return self.baseline or next(iter(self.arms))

    def trained(self) -> dict[str, ArmSection]:
        """The arms (training methods) that train seats in a `game`, by name; not those that only evaluate seats."""
        return {name: arm for name, arm in self.arms.items() if arm.game is not None}

    @property
    def shared(self) -> RunConfig:
        """The configuration shared by all arms (training methods), for evaluations. Its game is only a placeholder."""
        return RunConfig.of(self._layer("grpo"), {"game": "grpo"})

    def having(self, *layers: Mapping[str, Any]) -> "Experiment":
        """A copy in which `layers` override the configuration shared by all arms (training methods), for example with
        another model. A layer maps configuration keys to values; later layers override earlier ones."""
        base = nested(self.base)
        for layer in layers:
            base = merge(base, nested(layer))
        return self.model_copy(update={"base": base})

    def at_every_rate(self) -> "Experiment":
        """The search for learning rates as an experiment: an arm for each trained arm (training method) and rate, named
        such as `ARM at 0.0001`, with the seeds and evaluations of `search`, which must not be None."""
        assert self.search is not None
        arms = {
            f"{name} at {rate:g}": arm.at(rate).model_copy(update={"seeds": None})
            for name, arm in self.trained().items()
            for rate in self.search.rates
        }
        own = {"seeds": self.search.seeds, "evaluations": self.search.evaluations, "arms": arms}
        return self.model_copy(update={**own, "name": f"{self.name}, rates", "search": None, "baseline": ""})

    def at(self, rates: Mapping[str, float]) -> "Experiment":
        """A copy in which the arms (training methods) named in `rates` train with these learning rates."""
        arms = {name: arm.at(rates[name]) if name in rates else arm for name, arm in self.arms.items()}
        return self.model_copy(update={"arms": arms})

    def config(self, arm: str, seed: int, folder: Path, init: Path | None) -> RunConfig:
        """The configuration of the run in `folder` that trains the arm (training method) named `arm` with this seed.
        `init` is the run folder from whose seats (LoRA adapters) training starts; None: it starts as the experiment's
        configuration says. Raises ConfigError if a key is unknown or its value is not allowed."""
        keys: dict[str, Any] = {}
        for dotted, value in self.arms[arm].set.items():
            set_key(keys, FLAT_KEYS.get(dotted, dotted), value)
        started = {"cold_start": {"enabled": False}, "run": {"init": str(init)}} if init else {}
        # Without a pre-flight, since an arm that cannot learn is compared too.
        run = {"run": {"seed": seed, "dir": str(folder), "preflight": False}}
        game = str(self.arms[arm].game)
        return RunConfig.of(self._layer(game, keys.pop("preset", None)), {"game": game}, started, keys, run)

    def _layer(self, game: str, preset: str | None = None) -> dict[str, Any]:
        """The configuration keys shared by all arms (training methods), for a run of `game`, to be overridden by an
        arm's keys. `preset`: the preset that replaces the shared one; None: none does. If the shared keys are for
        another game, its options are left out, and so are keys for single roles and seats."""
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
        """Whether the seats of the trained arm (training method) named `arm` start from the experiment's cold start,
        supervised steps before training. False if the experiment has none, or the arm sets `run.init: null`."""
        return self.cold_start is not None and self.arms[arm].set.get("run.init", "") is not None

    def teaching(self, arm: str | None = None) -> str:
        """The game whose cold start (supervised steps before training) teaches the seats of the arm (training method)
        `arm`: the arm's choice, else the experiment's; but the arm's own game if that has several seats and the
        experiment's choice would give them the same weights. `arm` None: the experiment's."""
        shared = str((self.cold_start or {}).get("game", "self-refine"))
        if arm and (chosen := self.arms[arm].cold_start):
            return chosen
        own = (self.arms[arm].game if arm else None) or shared
        several = len(make_game(own, {}).trained_seats()) > len(make_game(shared, {}).trained_seats()) == 1
        return own if several else shared

    def start_of(self, arm: str) -> str | None:
        """The arm (training method) that evaluates the seats of `arm` as they were before training; None if there is
        none. It is the untrained arm with the same cold start (supervised steps) or, without a cold start, the one `of`
        this arm whose seats are all from step 0 (`@0`). For an arm `of` a trained one, it is the trained one's."""
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
        """The configuration of a run in `folder`, with this seed, that only does the cold start (supervised steps
        before training) of the seats of `game`."""
        keys = {key: value for key, value in (self.cold_start or {}).items() if key != "game"}
        taught = {"cold_start": {**keys, "enabled": True}, "eval": {"tasks": None}}
        run = {"run": {"seed": seed, "dir": str(folder), "preflight": False}}
        return RunConfig.of(self._layer(game), {"game": game}, taught, run)


def experiment_names() -> list[str]:
    """The names of the experiments that come with this library, sorted."""
    return sorted(file.name.removesuffix(".yaml") for file in EXPERIMENTS.iterdir() if file.name.endswith(".yaml"))


def load_experiment(name: str, scale: str = "full") -> Experiment:
    """The experiment called `name` that comes with this library, or the one in the YAML file `name`. `scale` is one of
    the sizes that the file defines; `full`: the file unchanged. Raises UnknownNameError, with similar names, if there
    is no such experiment or size; ConfigError if the file cannot be read, a key or value in it is not allowed, it
    refers to an arm that does not exist, or it names Python code that this user has not run before."""
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

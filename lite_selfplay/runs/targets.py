"""Targets of an evaluation: runs and base models, the data they were trained on, and where results are written."""

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config import RunConfig, SeatConfig
from lite_selfplay.data import BASE, EvalSpec, Problem
from lite_selfplay.errors import ConfigError, ModelNotFoundError, RunFolderError, TaskError, UnknownNameError
from lite_selfplay.evaluation.suites import Settings
from lite_selfplay.games import make_game
from lite_selfplay.games.modes import find_mode
from lite_selfplay.models.sources import ResolvedModel, base_of, locate, saved_precision
from lite_selfplay.runs.checkpoints import is_taught, kept_snapshots, list_checkpoints
from lite_selfplay.runs.folder import ADAPTERS, CHECKPOINTS, CONFIG, EVALUATIONS, EXAMPLES, RunFolder, nearest_runs
from lite_selfplay.runs.planning import draws_problems, evaluated, held_out
from lite_selfplay.tasks import Task, is_data, load_task, task_names, without
from lite_selfplay.tasks.files import read_object_lines, require_no_link, sha256_of
from lite_selfplay.tasks.hub_data import FILES, folder_of_data, no_file
from lite_selfplay.tasks.passages import read_passages
from lite_selfplay.training.progress import Monitor, Progress

if TYPE_CHECKING:
    from lite_selfplay.training.rollout import LiveTable

_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Target:
    """A run or, with `folder` None, a base model, whose `config` then has only what loading it needs.

    `saved` maps each seat to its adapter's folder. `past` maps `SEAT@STEP` or a snapshot's name to a seat and the
    adapter's path in a checkpoint: see `at`.
    """

    name: str
    config: RunConfig
    folder: RunFolder | None
    mode: str
    seats: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    saved: Mapping[str, Path] = field(default_factory=dict)
    past: Mapping[str, tuple[str, Path]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: Path | str, settings: Settings, warn: Callable[[str], None] = lambda sentence: None) -> "Target":
        """A run if the folder has a `config.yaml`, else a base model by any of its names, with the adapters of the
        `settings`' seats.

        `warn` is told of damaged checkpoints. Raises UnknownNameError, ModelNotFoundError or ConfigError, and
        RunFolderError if the run was stopped in its cold start.
        """
        reading = settings.model_dump(include={"unsafe_code", "answer_from"}, exclude_none=True)
        if os.path.isfile(Path(name) / CONFIG):
            folder = RunFolder.open(Path(name))
            config = folder.config_to_load(settings.trust_remote_code, settings.unsafe_code)
            chosen = settings.model_dump(include={"precision"}, exclude_none=True)
            config = config.having({"model": chosen, "tasks": reading})
            game = make_game(
                config.game.name,
                config.game.options,
                group_size=config.run.group_size,
                problems_per_step=config.run.problems_per_step,
            )
            spec = game.evaluation()
            found = cls(str(name), config, folder, spec.mode, spec.seats, game.other_evaluations(), folder.seats(warn))
            return found.at(settings.seats or ())
        place, near = Path(name), nearest_runs(Path(name))
        in_it = os.path.isdir(place.parent) and any(place.parent.glob(f"*/{CONFIG}"))
        # A path beside runs is not a hub id, although `runs/nope` looks like one.
        if not os.path.exists(place) and place.parent != Path() and (place.parent.name == "runs" or in_it):
            raise RunFolderError(f"there is no run at {name}{near}")
        try:
            locate(str(name))
        except (UnknownNameError, ModelNotFoundError) as error:
            error.args = (f"{str(error).rstrip('.')}{near}",)
            raise
        # There is no game. There is one seat because PEFT needs an adapter.
        config = RunConfig(
            game="none",
            model={
                "name": str(name),
                "precision": settings.precision or saved_precision(str(name)) or "4bit",
                "trust_remote_code": settings.trust_remote_code,
            },
            seats={"unused": SeatConfig(rank=1)},
            tasks=reading,
            seed=settings.seed,
        )
        return cls(str(name), config, None, "single", (BASE,))

    def at(self, names: Sequence[str]) -> "Target":
        """This target with the named seats of checkpoints (`A@20`), and snapshots in the newest one (`critic@round-1`).
        Raises the errors of `saved_adapters`."""
        asked = [name for name in names if "@" in name]
        if not asked or self.folder is None:
            return self
        last = self.folder.saved()
        kept = {} if last is None else {name: at for name, at in kept_snapshots(last).items() if name in asked}
        found = saved_adapters(self.folder, self.config.seats, [name for name in asked if name not in kept])
        return replace(self, past={**kept, **{name: (seat, path) for name, (seat, _, path) in found.items()}})

    def spec(self, mode: str | None, seats: Sequence[str] | None) -> EvalSpec:
        """The mode and seats of an evaluation, by default the game's. Raises UnknownNameError."""
        mode = mode or self.mode
        find_mode(mode)
        known = (*self.config.seats, *self.past, BASE) if self.folder else (BASE,)
        for seat in seats or ():
            if seat not in known:
                raise UnknownNameError("seat", seat, known)
        return EvalSpec(mode, tuple(seats or self.others.get(mode, self.seats)))

    def require_adapters(self) -> None:
        """Raises RunFolderError if a seat of the run has no adapter."""
        for seat in self.config.seats if self.folder else ():
            if seat not in self.saved or not (self.saved[seat] / _WEIGHTS).is_file():
                raise RunFolderError(
                    f"{self.name} has no adapter of seat {seat!r}: its {_WEIGHTS} is missing. A run writes its "
                    "adapters with its checkpoints and at its end"
                )

    def base(self, progress: Progress) -> ResolvedModel:
        """The base model. Raises RunFolderError if its name now refers to another base than the run's. Warns of another
        precision."""
        model = base_of(self.config.model, progress)
        if self.folder is not None:
            self.folder.require_base(model)
            if (was := self.folder.config().model.precision) != (now := self.config.model.precision):
                progress.warn(
                    f"{self.name} was made with model.precision={was}, and its base is held in {now}: omit --precision"
                )
        return model

    @contextlib.contextmanager
    def table(self, model: ResolvedModel, max_completion_tokens: int, monitor: Monitor) -> "Iterator[LiveTable]":
        """A context with a table: the base in memory with the run's adapters, and a checker."""
        from lite_selfplay.training.rollout import LiveTable, Loaded

        monitor.progress.say(f"loading {model.name} in {self.config.model.precision}")
        with contextlib.closing(Loaded.of(self.config, model, monitor)) as loaded:
            for seat in self.config.seats if self.folder else ():
                loaded.adapters.load(seat, self.saved[seat])
            for name, (seat, place) in self.past.items():
                loaded.adapters.put_snapshot(name, seat, loaded.adapters.read(seat, place))
            yield LiveTable(loaded, {}, self.config, max_completion_tokens=max_completion_tokens)

    def weights(self) -> dict[str, str]:
        """The SHA-256 of each seat's adapter, by seat; empty for a base model."""
        places = {
            **({seat: self.saved[seat] for seat in self.config.seats} if self.folder else {}),
            **{name: place for name, (_, place) in self.past.items()},
        }
        return {name: sha256_of(place if place.is_file() else place / _WEIGHTS) for name, place in places.items()}


def saved_adapters(
    folder: RunFolder, seats: Collection[str], names: Sequence[str]
) -> dict[str, tuple[str, int | None, Path]]:
    """(seat, step, adapter's folder) of each name: `A` as saved last (step None without checkpoints), `A@20` in the
    checkpoint of step 20, `A@best` in the best checkpoint.

    Raises UnknownNameError with the known names, RunFolderError if a checkpoint is damaged or from within a cold start,
    or there is no best one.
    """
    place = folder.path / CHECKPOINTS
    there = {str(found.step): found for found in list_checkpoints(place, full=any("@" in name for name in names))}
    found = {}
    for name in names:
        seat, at, step = name.partition("@")
        if at and step == "best":
            if (best := folder.best()) is None:
                raise RunFolderError(f"{folder.path} has no best checkpoint: none was saved at an evaluation")
            step = str(best["step"])
        if seat not in seats or (at and step not in there):
            raise UnknownNameError("seat", name, [*seats, *(f"{seat}@{step}" for step in there for seat in seats)])
        if at and (problem := there[step].problem) is not None:
            raise RunFolderError(f"{there[step].path} cannot be used: {problem}")
        if at and not is_taught(there[step]):
            raise RunFolderError(f"{there[step].path} cannot be used: it was saved within the cold start")
        of = there[step] if at else folder.saved()
        path = (of or folder).path / ADAPTERS / seat
        require_no_link(path.parent)
        require_no_link(path)
        found[name] = seat, of.step if of else None, path
    return found


def find_task(
    spec: str, data_dir: Path | str | None, seed: int, own: Callable[[str], Task] | None = None
) -> tuple[Task, str]:
    """The held-out side of a task, and its name.

    `data_dir` has the data of benchmarks and of `hub:NAME`; another bare name means `data_dir/NAME.jsonl` if that
    exists. `own` replaces `load_task`, for a mode with tasks of its own.
    """
    folder = folder_of_data(data_dir)
    if folder is not None and not is_data(spec) and not os.path.isfile(spec):
        if not os.path.isdir(folder):
            raise TaskError(f"no folder of data at {folder}")
        places = (folder / f"{spec}{ending}" for ending in ("", ".jsonl", ".json"))
        spec = next((str(place) for place in places if os.path.lexists(place)), spec)
    if spec in FILES and spec not in task_names():
        raise no_file(spec, folder)
    where = None if data_dir is None else str(data_dir)
    task = own(spec) if own else load_task(spec, seed=seed, held_out=True, data_dir=where)
    return task, spec if task.procedural or is_data(spec) else task.name


def trained_on(config: RunConfig, progress: Progress) -> list[Problem]:
    """The problems that a run, and the run it started from, were trained on, without those it held out itself.

    Generated tasks have none: their two sides never overlap. A missing file is only a warning, and so is code of the
    run it started from that this user has not run here.
    """
    section, found, own = config.cold_start, list[Problem](), list[Problem]()
    taught = [section.tasks, section.top_up] if section.enabled else []
    try:
        drawn = draws_problems(config, make_game(config.game.name, config.game.options))
        for spec in dict.fromkeys([config.tasks.train if drawn else None, config.tasks.solutions, *taught]):
            if spec is None or not (Path(spec).is_absolute() or is_data(spec)):  # runs save absolute paths
                continue
            task = load_task(spec, seed=config.run.seed, data_dir=config.tasks.data_dir)
            found += [] if task.procedural else task.problems
            own = list(task.problems) if spec == config.tasks.train and not task.procedural else own
        found = without(found, held_out(config, evaluated(config), own)) if found else found
    except (TaskError, ConfigError) as error:
        progress.warn(f"these may include problems that the run was trained on: {error}")
    try:
        if (before := _started_from(config)) is not None:
            found += trained_on(before.config_to_load(True, True), progress)  # runs neither base nor programs
    except ConfigError as error:
        progress.warn(f"these may include problems that the earlier run was trained on: {error}")
    return found


def texts_trained_on(folder: RunFolder, progress: Progress) -> Iterator[str]:
    """Other texts that a run, and the run it started from, were trained on: examples of a cold start, passages."""
    config, examples = folder.config(), folder.path / EXAMPLES
    try:
        for _, row in read_object_lines(examples, TaskError) if os.path.isfile(examples) else ():
            yield f"{row.get('prompt', '')}\n{row.get('completion', '')}"
        if config.tasks.knowledge is not None:
            yield from (passage.text for passage in read_passages(config.tasks.knowledge))
    except TaskError as error:
        progress.warn(f"texts that the run was trained on cannot be read: {error}")
    if (before := _started_from(config)) is not None:
        yield from texts_trained_on(before, progress)


def _started_from(config: RunConfig) -> RunFolder | None:
    init = config.run.init
    return RunFolder(Path(init)) if init is not None and os.path.isfile(Path(init) / CONFIG) else None


def write_result(folder: RunFolder, result: Mapping[str, Any]) -> Path:
    """Write an evaluation to `eval/<mode>-<tasks>-<n>.json` in a run's folder, with -2, -3, ... if that exists."""
    tasks = re.sub(r"[^\w.-]+", "-", result["tasks"]).strip("-")
    stem = f"{result['mode']}-{tasks}-{result['n']}"
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    free = next(name for name in names if not (folder.path / EVALUATIONS / f"{name}.json").exists())
    return folder.write_evaluation(free, result)

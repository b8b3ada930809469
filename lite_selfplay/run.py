"""A run from its configuration to its folder: `train`, `resume`, `load_run`."""

import contextlib
import datetime
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config import RunConfig, merge, nested, set_key, spread
from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.games import Game, make_game
from lite_selfplay.interrupts import Interrupts
from lite_selfplay.records import ADAPTERS, CHECKPOINTS, CONFIG, RunFolder
from lite_selfplay.rewards import RewardFunction, load_reward
from lite_selfplay.tasks import Task, load_task

if TYPE_CHECKING:
    import pandas as pd

    from lite_selfplay.session import Session

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """A run before it starts: the whole configuration, the game and the task, checked against each other."""

    config: RunConfig
    game: Game
    task: Task
    max_completion_tokens: int

    def lines(self) -> list[str]:
        """What would happen, in sentences."""
        run, model = self.config.run, self.config.model
        seats = ", ".join(f"{name} (lr {seat.lr:g}, rank {seat.rank})" for name, seat in self.config.seats.items())
        rollouts = self.game.rollouts_per_step()
        sampled = "a number of completions that varies" if rollouts is None else f"{rollouts} completions"
        lines = [
            f"{self.config.game.name} with {model.name} in {model.precision}, {run.steps} steps, seed {run.seed}",
            f"tasks: {self.task.name}, {len(self.task.problems):,} problems, {run.problems_per_step} a step",
            f"seats: {seats}",
            f"a step samples {sampled} of at most {self.max_completion_tokens} tokens",
        ]
        if rollouts is not None:
            most = rollouts * self.max_completion_tokens
            lines.append(f"so at most {most:,} tokens a step and {most * run.steps:,} in the whole run")
        return lines


def plan(config: RunConfig, *, own_checker: bool = False) -> Plan:
    """Fill in everything a configuration leaves open, and check it. Starts nothing, downloads nothing.

    `own_checker`: a reward function takes the checker's place, so problems need no answers.
    Raises ConfigError, UnknownNameError or TaskError.
    """
    from lite_selfplay.models import suggested

    chosen = config.chosen()
    game_options = config.game.options
    run = config.run
    sizes = {"group_size": run.group_size, "problems_per_step": run.problems_per_step}
    game = make_game(config.game.name, game_options, **sizes)
    if config.tasks.train is None:
        raise ConfigError("no tasks: give --tasks a .jsonl file or a name such as letters")
    task = load_task(config.tasks.train, seed=run.seed)
    resolved = _layered(game, suggested(config.model.name), chosen)
    options = game.options.model_dump(mode="json")
    resolved = RunConfig.of(resolved.chosen(), {"game": {"name": config.game.name, **options}})
    tokens = resolved.run.max_completion_tokens or task.max_completion_tokens
    resolved = RunConfig.of(resolved.model_dump(mode="json"), {"run": {"max_completion_tokens": tokens}})
    for name, role in resolved.roles.items():
        if not role.sampling(tokens).is_policy:
            raise ConfigError(
                f"roles.{name}: completions sampled with top_p, top_k, min_p or a repetition penalty are not the "
                "policy's own, and training on them as if they were is silently wrong: only temperature may change"
            )
    if game.needs_answers and not own_checker:
        missing = next((problem.id for problem in task.problems if problem.answer is None), None)
        if missing is not None:
            raise ConfigError(f"{config.game.name} needs an answer to every problem; {missing} has none")
    return Plan(resolved, game, task, tokens)


def _layered(game: Game, suggested: Mapping[str, Any], chosen: Mapping[str, Any]) -> RunConfig:
    """The game's recipe, what the model suggests, and the user's own keys, with `*` spread over roles and seats."""
    hints: dict[str, Any] = {}
    for dotted, value in suggested.items():
        set_key(hints, dotted, value)
    defaults: dict[str, Any] = {"seats": {"*": {}}, "roles": {"*": {}}}
    merged: dict[str, Any] = {}
    for layer in (defaults, game.recipe, hints, chosen):
        layer = spread(nested(layer), "seats", game.trained_seats())
        layer = spread(layer, "roles", game.roles)
        merged = merge(merged, layer)
    for section, names in (("seats", game.trained_seats()), ("roles", game.roles)):
        merged[section] = {name: merged.get(section, {}).get(name, {}) for name in names}
    return RunConfig.of(merged)


class Run:
    """A run, read from its folder."""

    def __init__(self, folder: RunFolder):
        self.path = folder.path
        self.config = folder.config()
        self._folder = folder

    @property
    def seats(self) -> dict[str, Path]:
        """The folder of each seat's adapter, which plain PEFT loads."""
        return {name: self.path / ADAPTERS / name for name in self.config.seats}

    def metrics(self) -> "pd.DataFrame":
        """`metrics.jsonl` as a table, a row a step, nested keys joined by dots."""
        import pandas as pd

        return pd.json_normalize(self._folder.metrics())

    def metrics_rows(self) -> list[dict[str, Any]]:
        """`metrics.jsonl` as it stands, an object a step."""
        return self._folder.metrics()

    def episodes(self) -> list[dict[str, Any]]:
        """Every completion of the run, as in `episodes.jsonl`."""
        return list(self._folder.episodes())

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def train(config: RunConfig, reward: RewardFunction | None = None, *, say: Say | None = None) -> Run:
    """Train a game's seats and write the run folder.

    `reward` takes the checker's place (see `lite_selfplay.rewards`). `say` is told about progress, a line at a time.
    Raises RequestError where the request is wrong, before anything is written; LiteSelfPlayError where the run fails;
    Interrupted after saving, where it was stopped by a signal.
    """
    say = say or _silent
    if reward is None and config.run.reward is not None:
        reward = load_reward(config.run.reward)
    ready = plan(config, own_checker=reward is not None)
    folder = _free_folder(ready.config)
    with _quiet(), Interrupts() as interrupts:
        from lite_selfplay.models import resolve

        model = resolve(ready.config.model.name, say=say)
        run_folder = RunFolder.create(folder, ready.config)
        session = _session(ready, model, run_folder, reward, say, interrupts.poll)
        with contextlib.closing(session):
            run_folder.write_environment(**session.facts())
            session.run()
    return Run(run_folder)


def resume(
    path: Path | str, *, steps: int | None = None, reward: RewardFunction | None = None, say: Say | None = None
) -> Run:
    """Go on with a run from its last complete checkpoint, up to `steps` in all if given.

    Raises RunFolderError where there is nothing to resume, or where base, game or task are not what they were.
    """
    from lite_selfplay.checkpoints import check_identity, find_checkpoints

    say = say or _silent
    folder = RunFolder.open(Path(path))
    config = folder.config()
    if steps is not None:
        config = RunConfig.of(config.model_dump(mode="json"), {"run": {"steps": steps}})
    if reward is None and config.run.reward is not None:
        reward = load_reward(config.run.reward)
    ready = plan(config, own_checker=reward is not None)
    checkpoints = find_checkpoints(folder.path / CHECKPOINTS)
    if not checkpoints:
        raise RunFolderError(f"{path} has no complete checkpoint to resume from")
    last = checkpoints[-1]
    if last.step > ready.config.run.steps:
        raise RunFolderError(f"{path} is at step {last.step} already, past the {ready.config.run.steps} asked for")
    with _quiet(), Interrupts() as interrupts:
        from lite_selfplay.models import resolve

        model = resolve(ready.config.model.name, say=say)
        check_identity(last, _identity(ready, model.identity))
        (folder.path / CONFIG).write_text(ready.config.to_yaml(), encoding="utf-8")
        session = _session(ready, model, folder, reward, say, interrupts.poll)
        say(f"going on from step {last.step} of {ready.config.run.steps}")
        folder.cut(last.step)
        with contextlib.closing(session):
            session.run(last)
    return Run(folder)


def load_run(path: Path | str) -> Run:
    """A finished or stopped run, from its folder. Raises RunFolderError where it is none."""
    return Run(RunFolder.open(Path(path)))


def _identity(ready: Plan, model_identity: str) -> dict[str, str]:
    return {"base": model_identity, "game": ready.config.game.name}


def _session(
    ready: Plan, model: Any, folder: RunFolder, reward: RewardFunction | None, say: Say, poll: Callable[[], None]
) -> "Session":
    from lite_selfplay.session import Session

    return Session(ready, model, folder, reward=reward, say=say, poll=poll)


def _free_folder(config: RunConfig) -> Path:
    if config.run.dir is not None:
        path = config.run.dir
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            RunFolder.create(path, config)  # raises, before a model is loaded for nothing
        return path
    model = re.sub(r"[^\w.-]+", "-", Path(config.model.name).name)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.game.name}-{model}-{stamp}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' progress bars and notices off the terminal for the length of a run."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _silent(line: str) -> None:
    """The listener used where nobody listens."""

"""A run from its configuration to its folder: `train`, `resume`, `load_run`."""

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.interrupts import Interrupts
from lite_selfplay.listener import Listener, as_listener
from lite_selfplay.planning import Plan, plan
from lite_selfplay.quiet import quiet
from lite_selfplay.records import ADAPTERS, CHECKPOINTS, CONFIG, RunFolder
from lite_selfplay.rewards import RewardFunction, load_reward

if TYPE_CHECKING:
    import pandas as pd

    from lite_selfplay.session import Session

Watcher = Listener | Callable[[str], None] | None


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

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The evaluations made in training, by their moment (`untouched`, `after cold start`, `after 20 steps`)."""
        return self._folder.evaluations()

    def later_evaluations(self) -> dict[str, dict[str, Any]]:
        """What `evaluate` and `lite-selfplay eval` found of the run, by the name of the file in `eval/`."""
        return self._folder.later_evaluations()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def train(config: RunConfig, reward: RewardFunction | None = None, *, listener: Watcher = None) -> Run:
    """Train a game's seats and write the run folder.

    `reward` takes the checker's place (see `lite_selfplay.rewards`). `listener` is told about progress: a `Listener`,
    or a function of a line such as `print`.
    Raises RequestError where the request is wrong, before anything is written; LiteSelfPlayError where the run fails;
    Interrupted after saving, where it was stopped by a signal.
    """
    with _fresh_session(config, reward, listener) as session:
        session.run()
    return Run(session.folder)


def cold_start(config: RunConfig, reward: RewardFunction | None = None, *, listener: Watcher = None) -> Run:
    """Teach a game's seats their output format and stop there; another run starts from the folder by its `run.init`.

    Raises what `train` raises.
    """
    config = RunConfig.of(config.chosen(), {"cold_start": {"enabled": True}})
    if config.run.init is not None:
        raise ConfigError("a cold start begins with fresh seats: --init does not go with it")
    with _fresh_session(config, reward, listener) as session:
        session.cold_start_only()
    return Run(session.folder)


@contextlib.contextmanager
def _fresh_session(config: RunConfig, reward: RewardFunction | None, listener: Watcher) -> "Iterator[Session]":
    """A session with a new folder, its model found and loaded."""
    told = as_listener(listener)
    if reward is None and config.run.reward is not None:
        reward = load_reward(config.run.reward)
    ready = plan(config, own_checker=reward is not None)
    folder = RunFolder(free_folder(ready.config))
    with quiet(), Interrupts() as interrupts:
        from lite_selfplay.models import resolve
        from lite_selfplay.session import Session

        model = resolve(ready.config.model.name, say=told.say)
        session = Session(ready, model, folder, reward=reward, listener=told, poll=interrupts.poll)
        with contextlib.closing(session):
            folder.create(ready.config)
            folder.write_environment(**session.facts())
            yield session


def resume(
    path: Path | str, *, steps: int | None = None, reward: RewardFunction | None = None, listener: Watcher = None
) -> Run:
    """Go on with a run from its last complete checkpoint, up to `steps` in all if given.

    Raises RunFolderError where there is nothing to resume, or where base, game or task are not what they were.
    """
    from lite_selfplay.checkpoints import check_identity, find_checkpoints

    told = as_listener(listener)
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
    with quiet(), Interrupts() as interrupts:
        from lite_selfplay.models import resolve
        from lite_selfplay.session import Session

        model = resolve(ready.config.model.name, say=told.say)
        check_identity(last, _identity(ready, model.identity))
        (folder.path / CONFIG).write_text(ready.config.to_yaml(), encoding="utf-8")
        session = Session(ready, model, folder, reward=reward, listener=told, poll=interrupts.poll)
        told.say(f"going on from step {last.step} of {ready.config.run.steps}")
        folder.cut(last.step)
        with contextlib.closing(session):
            session.run(last)
    return Run(folder)


def load_run(path: Path | str) -> Run:
    """A finished or stopped run, from its folder. Raises RunFolderError where it is none."""
    return Run(RunFolder.open(Path(path)))


def _identity(ready: Plan, model_identity: str) -> dict[str, str]:
    return {"base": model_identity, "game": ready.config.game.name}


def free_folder(config: RunConfig) -> Path:
    """Where a run will be written. Raises RunFolderError where something is there already."""
    if config.run.dir is not None:
        RunFolder(config.run.dir).require_free()
        return config.run.dir
    model = re.sub(r"[^\w.-]+", "-", Path(config.model.name).name)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.game.name}-{model}-{stamp}"

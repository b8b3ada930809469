"""A run from its configuration to its folder: `train`, `resume`, `load_run`."""

import base64
import contextlib
import datetime
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config import RunConfig
from lite_selfplay.config.user_files import absolute, load, places_in, require_accepted, sources_of
from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.evaluation.tables import as_markdown, change, comparison
from lite_selfplay.games import Game
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.choices import Choice
from lite_selfplay.runs.folder import ADAPTERS, CHECKPOINTS, CONFIG, RunFolder
from lite_selfplay.runs.lock import writing
from lite_selfplay.runs.plan import Plan, chosen, plan
from lite_selfplay.runs.processes import require_one_kind, require_one_run
from lite_selfplay.runs.report.declared import game_of
from lite_selfplay.runs.report.drawn import save_figures
from lite_selfplay.runs.report.transcripts import choose_transcripts, transcripts_markdown
from lite_selfplay.tasks.registry import OBJECTS
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Progress, as_progress
from lite_selfplay.training.ranks import Ranks, joined
from lite_selfplay.verify.reward_functions import RewardFunction

if TYPE_CHECKING:
    import pandas as pd

    from lite_selfplay.runs.checkpoints import Checkpoint
    from lite_selfplay.runs.session import Session

ProgressLike = Progress | Callable[[str], None] | None


class Page(str):
    """Markdown that a notebook shows as such."""

    def _repr_markdown_(self) -> str:
        return self


class Pictures(list[Path]):
    """Files of pictures that a notebook shows."""

    def _repr_html_(self) -> str:
        data = [base64.b64encode(path.read_bytes()).decode() for path in self]
        return "".join(f'<img src="data:image/png;base64,{picture}">' for picture in data)


class Run:
    """A run, read from its folder."""

    def __init__(self, folder: RunFolder):
        self.path = folder.path
        self.config = folder.config()
        self._folder = folder

    def game(self) -> tuple[type[Game], str]:
        """The class of its game, which says how the run is shown, and a warning where it cannot be had."""
        return game_of(self._folder)

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

    def comparison(self) -> Page:
        """The evaluations made in training, side by side, and what changed between the last two, as Markdown."""
        if not (moments := self.evaluations()):
            return Page("No evaluation was made in training.")
        return Page(f"{as_markdown(*comparison(moments))}\n\n{change(moments) or ''}".rstrip())

    def transcripts(self, count: int = 3, rule: str = "kinds") -> Page:
        """Completions that are read together, such as a draft and the challenge to it, as Markdown, chosen by a `rule`:
        `kinds` (the latest of each kind), `first` or `spread` (of evenly spaced steps)."""
        game, _ = self.game()
        return Page(
            transcripts_markdown(game, "Transcripts", choose_transcripts(game, self.episodes(), count, rule), rule)
        )

    def plot(self) -> Pictures:
        """The run's charts, a picture for each group of them, written into its folder `figures`. Raises ConfigError
        without matplotlib."""
        return Pictures(save_figures(self.path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def train(config: RunConfig, reward: RewardFunction | None = None, *, progress: ProgressLike = None) -> Run:
    """Train a game's seats and write the run folder.

    `reward` takes the checker's place (see `lite_selfplay.verify.reward_functions`). `progress` shows
    how the run goes: a `Progress`, or a function of a line such as `print`.
    Raises RequestError where the request is wrong, before anything is written; LiteSelfPlayError where the run fails;
    Interrupted after saving, where it was stopped by a signal.
    """
    with _fresh_session(config, reward, progress) as session:
        session.run()
    return Run(session.folder)


def cold_start(config: RunConfig, reward: RewardFunction | None = None, *, progress: ProgressLike = None) -> Run:
    """Teach a game's seats their output format and stop there; another run starts from the folder by its `run.init`.

    Raises what `train` raises.
    """
    config = RunConfig.of(config.chosen(), {"cold_start": {"enabled": True}})
    if config.run.init is not None:
        raise ConfigError("a cold start begins with fresh seats: --init does not go with it")
    with _fresh_session(config, reward, progress) as session:
        session.cold_start_only()
    return Run(session.folder)


@contextlib.contextmanager
def _fresh_session(config: RunConfig, reward: RewardFunction | None, progress: ProgressLike) -> "Iterator[Session]":
    """A session with a new folder, its model found and loaded."""
    with joined() as ranks, _fresh_session_of(ranks, config, reward, progress) as session:
        yield session


@contextlib.contextmanager
def _fresh_session_of(
    ranks: Ranks, config: RunConfig, reward: RewardFunction | None, progress: ProgressLike
) -> "Iterator[Session]":
    """The same, in one of the processes of a run."""
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"train takes a RunConfig, not a {type(config).__name__}: train(RunConfig(game=..., model=...))"
        )
    began, shown = time.monotonic(), as_progress(progress) if ranks.main else Progress()
    if reward is not None:
        config = RunConfig.of(config.chosen(), {"run": {"reward": None}})
    elif config.run.reward is not None:
        reward = load(config.run.reward, "--reward", "function")
    said = ranks.from_main("what is chosen", lambda: [asdict(choice) for choice in chosen(config)])
    ready = plan(config, own_checker=reward is not None, choices=[Choice(**choice) for choice in said])
    for line in ready.chosen():
        shown.say(line)
    path = ranks.from_main("the run folder", lambda: str(free_folder(ready.config)))
    folder = RunFolder(Path(path), ours=ranks.main)
    tasks = ready.config.tasks.train or ""
    objects = tasks if tasks.startswith("{") else ""
    if objects:
        ready = replace(ready, config=ready.config.learning_from(folder.path / OBJECTS))
    require_one_run(ranks, ready)
    import_first(ready.config.model)
    with quiet(), Interrupts(patient=ranks.world > 1) as interrupts:
        from lite_selfplay.models.sources import base_of

        model = base_of(ready.config.model, shown)  # refused, where it cannot be had, before the libraries are loaded
        from lite_selfplay.runs.session import Session

        session = Session(
            ready,
            model,
            folder,
            reward=reward,
            progress=shown,
            poll=interrupts.poll,
            began=began,
            ranks=ranks,
            look=True,
        )
        with contextlib.closing(session):
            require_one_kind(ranks, session)
            if ready.config.run.init is not None:
                session.seats_of(RunFolder.open(Path(ready.config.run.init)))  # raises before anything is written
            if not ranks.main:
                yield session
                return
            interrupts.poll()  # from here on a signal waits for the session, which saves
            folder.create(session.config, objects, **session.facts())
            with writing(folder.path):
                yield session


def resume(
    path: Path | str,
    *,
    steps: int | None = None,
    reward: RewardFunction | str | None = None,
    rollouts: str | None = None,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    progress: ProgressLike = None,
) -> Run:
    """Go on with a run from its newest complete and undamaged checkpoint, up to `steps` in all if given.

    A warning names every newer one that is skipped, and why. A run made with `trust_remote_code` or `unsafe_code` needs
    it given again, one whose `reward` was given as an object needs that, and one that sampled on servers needs
    `rollouts`: their addresses, others, or `none`. `reward` may also be `FILE.py:FUNCTION`. Code that the folder names
    is run if this user has run it on this machine; what has changed since the run was made is warned of. Raises
    RunFolderError, with nothing changed, where there is nothing to resume, where base, game or task are not what they
    were, where a file of the folder is damaged, or where another process is writing it; ConfigError where the
    configuration is not one, or code is not trusted.
    """
    with joined() as ranks:
        return _resume(ranks, Path(path), steps, reward, rollouts, trust_remote_code, unsafe_code, progress)


def _resume(
    ranks: Ranks,
    path: Path,
    steps: int | None,
    reward: RewardFunction | str | None,
    rollouts: str | None,
    trust_remote_code: bool,
    unsafe_code: bool,
    progress: ProgressLike,
) -> Run:
    shown = as_progress(progress) if ranks.main else Progress()
    folder = RunFolder.open(path)
    folder.ours = ranks.main
    config = folder.config_to_load(trust_remote_code, unsafe_code)
    if rollouts is not None:
        config = RunConfig.of(config.model_dump(mode="json"), {"rollouts": rollouts})
    elif servers := ",".join(config.rollouts.servers):  # a stranger's folder does not choose whom to speak to
        raise ConfigError(f"{path} was sampled on servers: give --rollouts {servers} again, or others, or none")
    if steps is not None:
        config = RunConfig.of(config.model_dump(mode="json"), {"run": {"steps": steps}})
    before = folder.code()
    if reward is not None:
        place = absolute(reward) if isinstance(reward, str) else None
        config = RunConfig.of(config.model_dump(mode="json"), {"run": {"reward": place}})
    elif config.run.reward is None and "reward" in before:
        raise RunFolderError(
            f"{path} was made with a reward given in Python, {before['reward'].get('name')} of "
            f"{before['reward'].get('file') or 'no file'}: go on with {folder.go_on()}"
        )
    places = places_in(config.values()).items()
    require_accepted({key: place for key, place in places if reward is None or key != "run.reward"}, path / CONFIG)
    ready = plan(config, own_checker=(reward or config.run.reward) is not None)
    folder.require_own_files()
    folder.evaluations()  # read at every save: damage is reported before the first step
    require_one_run(ranks, ready)
    import_first(ready.config.model)
    again = config.rollouts.again
    lock = writing(folder.path, again=again) if ranks.main else contextlib.nullcontext()
    with lock, quiet(), Interrupts(patient=ranks.world > 1) as interrupts:
        from lite_selfplay.models.sources import base_of
        from lite_selfplay.runs.checkpoints import check_identity, hash_of
        from lite_selfplay.runs.session import Session

        last = _last_checkpoint(folder, ready, shown)
        ranks.require_same({"last checkpoint in the run folder, which all must see,": last.step})
        model = base_of(ready.config.model, shown)
        check_identity(last, _identity(ready, model.identity), hash_of(ready.config))
        given = None if isinstance(reward, str) else reward
        code = sources_of(ready.config.values(), given)
        for key, one in code.items():
            if (was := before.get(key)) is not None and was.get("sha256") != one["sha256"]:
                shown.warn(f"the source of {one['name']} ({key}) is not what it was when the run was made")
        if ready.config.run.reward is not None:
            given = load(ready.config.run.reward, "--reward", "function")
        session = Session(ready, model, folder, reward=given, progress=shown, poll=interrupts.poll, ranks=ranks)
        with contextlib.closing(session):
            require_one_kind(ranks, session)
            _check_state(last, session)
            if ranks.main:
                folder.cut(last.step)
                folder.rewrite_config(ready.config)
                folder.note_code(code)
            of = "" if ready.game.open_ended else f" of {ready.config.run.steps}"
            shown.say(f"going on from step {last.step}{of}")
            session.run(last)
    return Run(folder)


def _last_checkpoint(folder: RunFolder, ready: Plan, progress: Progress) -> "Checkpoint":
    from lite_selfplay.runs.checkpoints import newest_whole

    skipped: list[str] = []
    last = newest_whole(folder.path / CHECKPOINTS, skipped.append)
    if last is None:
        reasons = f" ({'; '.join(skipped)})" if skipped else ""
        raise RunFolderError(f"{folder.path} has no complete checkpoint to resume from{reasons}")
    if last.step > ready.config.run.steps:
        raise RunFolderError(
            f"{folder.path} is at step {last.step} already, past the {ready.config.run.steps} asked for"
        )
    for sentence in skipped:
        progress.warn(sentence)
    return last


def _check_state(checkpoint: "Checkpoint", session: "Session") -> None:
    """Raises RunFolderError where a session could not go on from a checkpoint. Its seats stay as they are."""
    from lite_selfplay.runs.checkpoints import STATE, check_checkpoint

    state, path = check_checkpoint(checkpoint, session.adapters), checkpoint.path / STATE
    kinds = {"cold_started": bool, "skipped_steps": int, "nonfinite": int, "game": dict, "sources": dict}
    for key, kind in kinds.items():
        if type(state.get(key)) is not kind:
            raise RunFolderError(f"{path} is not the state of a run: {key} is not what it writes")
    try:
        for name, source in session.sources.items():
            if not (type(position := state["sources"][name]["position"]) is int and position >= 0):
                raise ValueError(f"{name} is at {position!r}")
            source.restore(state["sources"][name])
        session.game.restore(state["game"])
        session.trainer.restore(state)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} is not the state of such a run: {type(error).__name__}: {error} in its game or sources"
        ) from None


def load_run(path: Path | str) -> Run:
    """A finished or stopped run, from its folder. Raises RunFolderError if it is not one."""
    return Run(RunFolder.open(Path(path)))


def _identity(ready: Plan, model_identity: str) -> dict[str, str]:
    return {"base": model_identity, "game": ready.config.game.label}


def free_folder(config: RunConfig) -> Path:
    """Where a run will be written. Raises RunFolderError where something is there already."""
    if config.run.dir is not None:
        RunFolder(config.run.dir).require_free()
        return config.run.dir
    model = re.sub(r"[^\w.-]+", "-", Path(config.model.name).name)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / f"{config.game.label}-{model}-{stamp}"

"""Builds a run's loop: from a configuration, with a new folder, or from the folder of an earlier run."""

import contextlib
import datetime
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config import ModelSection, RunConfig
from lite_selfplay.config.layers import require_accepted
from lite_selfplay.config.user_files import absolute, agree, agreed, leaves, load, sources_of
from lite_selfplay.errors import ConfigError, RequestError, RunFolderError
from lite_selfplay.models.backends import chosen, import_first
from lite_selfplay.models.packages import versions
from lite_selfplay.models.silence import quiet
from lite_selfplay.models.sources import ResolvedModel, base_of
from lite_selfplay.runs import planning
from lite_selfplay.runs.checkpoints import Checkpoint, check_identity, hash_of, kept_of, newest_whole
from lite_selfplay.runs.defaults import layer_of
from lite_selfplay.runs.folder import CHECKPOINTS, CONFIG, PACKAGES, RunFolder, writing
from lite_selfplay.tasks.registry import OBJECTS
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Monitor, Progress
from lite_selfplay.training.ranks import Ranks
from lite_selfplay.verify.reward_functions import RewardFunction

if TYPE_CHECKING:
    from lite_selfplay.runs.loop import RunLoop


@contextlib.contextmanager
def fresh(monitor: Monitor, config: RunConfig, reward: RewardFunction | None) -> "Iterator[RunLoop]":
    """A new run, with its model loaded and its folder created."""
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"train takes a RunConfig, not a {type(config).__name__}: train(RunConfig(game=..., model=...))"
        )
    began, progress, ranks = time.monotonic(), monitor.progress, monitor.ranks
    if reward is not None:
        config = RunConfig.of(config.chosen(), {"run": {"reward": None}})
    elif config.run.reward is not None:
        reward = load(config.run.reward, "--reward", "function")
    plan = planning.plan(config, own_checker=reward is not None, ranks=ranks)
    for line in plan.chosen():
        progress.say(line)
    if minutes := plan.config.run.minutes:
        progress.say(f"{minutes:g} minutes: as many of the {plan.config.run.steps} steps as fit")
    path = ranks.from_main("the run folder", lambda: str(free_folder(plan.config)))
    folder, given = RunFolder(Path(path), ours=ranks.main), dict(leaves(plan.config.values()))
    objects = {key: given[key] for key in OBJECTS if (given[key] or "").startswith("{")}
    if objects:
        files = layer_of({key: str((folder.path / OBJECTS[key]).absolute()) for key in objects})
        plan = replace(plan, config=plan.config.having(files))
    with _at_work(monitor, plan):
        model = base_of(plan.config.model, progress)  # raises before the libraries are loaded
        with _loaded(monitor, plan, model, folder, reward, began) as loop:
            resources = loop.resources
            if plan.config.run.init is not None:
                # Raises before anything is written.
                resources.seats_of(RunFolder.open(Path(plan.config.run.init), or_adapter=True), progress.warn)
            if ranks.main:
                monitor.stop()  # from here on a signal waits for the run, which saves
                folder.create(resources.config, objects, **resources.facts())
                agree(*folder.outside(resources.config).values())
            with writing(folder.path, warn=progress.warn) if ranks.main else contextlib.nullcontext():
                yield loop


@contextlib.contextmanager
def resumed(
    monitor: Monitor,
    path: Path,
    changes: dict[str, Any],
    reward: RewardFunction | str | None,
    allowed: Mapping[str, bool],
) -> "Iterator[RunLoop]":
    """The run at `path`, continued from its newest complete checkpoint with `changes` of its configuration. `allowed`
    are the keywords of `RunFolder.config_to_load`."""
    progress, ranks, folder = monitor.progress, monitor.ranks, RunFolder.open(path)
    folder.ours = ranks.main
    config = folder.config_to_load(**allowed)
    if "rollouts" not in changes and (servers := ",".join(config.rollouts.servers)):
        # A stranger's folder must not choose which servers are contacted.
        raise ConfigError(f"{path} sampled on servers: repeat --rollouts {servers}, or give other servers, or none")
    before = folder.noted("code")
    if reward is not None:
        changes["run"]["reward"] = absolute(reward) if isinstance(reward, str) else None
    elif config.run.reward is None and "reward" in before:
        raise RunFolderError(
            f"{path} was made with a reward given in Python, {before['reward'].get('name')} of "
            f"{before['reward'].get('file') or 'no file'}: continue it with {folder.resume_command()}"
        )
    config = config.having(changes)
    chosen = {"reward": config.run.reward} if reward else {}
    require_accepted(config.values(), path / CONFIG, {**allowed, **chosen})
    for key, what in folder.outside(config).items():
        if key not in dict(leaves(changes)) and not agreed(what):
            raise ConfigError(
                f"{path / CONFIG} sets {key}, which acts outside of the folder, and the run was not made here by you: "
                f"{what[key]}. If you want it, repeat it: --report-to {config.run.report_to}, or in Python "
                "resume(path, rollouts={'servers': ..., 'folder': ...})"
            )
    plan = planning.plan(config, own_checker=(reward or config.run.reward) is not None)
    former = folder.noted("data")
    if others := [
        what
        for what, of in plan.data().items()
        if former.get(what, {}).get("fingerprint") not in (None, of.get("fingerprint"))
    ]:
        raise RunFolderError(
            f"{path} was made with other problems: the texts, answers or order of those for {' and '.join(others)} "
            f"have changed. Restore the file, or start another run from the seats: --init {path}"
        )
    lock = writing(path, again=config.rollouts.again, warn=progress.warn) if ranks.main else contextlib.nullcontext()
    with lock, _at_work(monitor, plan):
        last = _last_checkpoint(folder, plan, progress)
        ranks.require_same({"last checkpoint in the run folder, which all must see,": last.step})
        model = base_of(plan.config.model, progress)
        check_identity(last, plan.identity(model), hash_of(plan.config), kept_of(plan.config))
        given = None if isinstance(reward, str) else reward
        for key, one in sources_of(plan.config.values(), given).items():
            if (was := before.get(key)) is not None and was.get("sha256") != one["sha256"]:
                progress.warn(f"the source of {one['name']} ({key}) has changed since the run was made")
        if plan.config.run.reward is not None:
            given = load(plan.config.run.reward, "--reward", "function")
        with _loaded(monitor, plan, model, folder, given) as loop:
            loop.load(last)
            if ranks.main:
                folder.cut(last.step)
                folder.rewrite_config(plan.config)
                agree(*folder.outside(plan.config).values())
                folder.note(loop.resources.facts())
            of = "" if plan.game.open_ended else f" of {plan.config.run.steps}"
            progress.say(f"continuing from step {last.step}{of}")
            yield loop


@contextlib.contextmanager
def _at_work(monitor: Monitor, plan: planning.Plan) -> Iterator[None]:
    """A context for loading and training a base without the libraries' output. After a signal, the monitor raises
    Interrupted."""
    require_one_run(monitor.ranks, plan)
    import_first(plan.config.model)
    with quiet(), Interrupts(patient=monitor.ranks.world > 1) as interrupts:
        monitor.stop = interrupts.poll
        yield


@contextlib.contextmanager
def _loaded(
    monitor: Monitor,
    plan: planning.Plan,
    model: ResolvedModel,
    folder: RunFolder,
    reward: RewardFunction | None,
    began: float | None = None,
) -> "Iterator[RunLoop]":
    """A context with the loop of a plan. A new run has `began`, by the clock, and may be probed.

    Raises RequestError if another process has another device, base or data.
    """
    from lite_selfplay.runs.loop import RunLoop
    from lite_selfplay.runs.preflight import probe_base
    from lite_selfplay.runs.resources import Resources, leaving_as_an_error

    with contextlib.closing(Resources.of(plan, model, folder, reward, monitor)) as resources:
        if began is not None and plan.open and monitor.ranks.alone:
            with leaving_as_an_error():
                probe_base(resources)
        loop, facts = RunLoop(resources, began=began), resources.facts()
        monitor.ranks.require_same(
            {
                "device": f"{facts['device']}, {resources.loaded.backend.compute_dtype}",
                "base model": facts["base"],
                "set of problems": facts["data"],
            }
        )
        yield loop


def _last_checkpoint(folder: RunFolder, plan: planning.Plan, progress: Progress) -> Checkpoint:
    skipped: list[str] = []
    last = newest_whole(folder.path / CHECKPOINTS, skipped.append)
    if last is None:
        reasons = f" ({'; '.join(skipped)})" if skipped else ""
        raise RunFolderError(f"{folder.path} has no complete checkpoint to resume from{reasons}")
    if last.step > plan.config.run.steps:
        raise RunFolderError(
            f"{folder.path} is already at step {last.step}, past the {plan.config.run.steps} asked for"
        )
    for sentence in skipped:
        progress.warn(sentence)
    return last


def free_folder(config: RunConfig) -> Path:
    """The folder for a new run. Raises RunFolderError if it is not free."""
    if config.run.dir is not None:
        RunFolder(config.run.dir).require_free()
        return config.run.dir
    model = re.sub(r"[^\w.-]+", "-", Path(config.model.name).name)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / f"{config.game.label}-{model}-{stamp}"


# Runs of several processes


def require_one_run(ranks: Ranks, plan: planning.Plan) -> None:
    """Raises RequestError if another process was started with something else, naming the difference, or if the backend
    is untested with several processes."""
    if ranks.alone:
        return
    config = plan.config
    require_shareable(ranks, config.model)
    if config.rollouts.servers:
        raise RequestError(f"--rollouts is for one process, and there are {ranks.world}: omit it, or torchrun")
    packages = {"python": platform.python_version(), **versions(PACKAGES)}
    ranks.require_same(
        {
            "set of packages": "\n".join(f"{name} {version}" for name, version in packages.items()),
            "configuration": config.to_yaml(),
            **{f"code of {key}": code["sha256"] for key, code in sources_of(config.values()).items()},
        }
    )


def require_shareable(ranks: Ranks, section: ModelSection) -> None:
    """Raises RequestError for a backend that is untested with several processes."""
    if ranks.world > 1 and chosen(section) == "unsloth":
        raise RequestError(
            f"the Unsloth backend is untested with several processes ({ranks.world}): use --backend transformers"
        )

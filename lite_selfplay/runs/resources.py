"""What a run has in memory: the base with its seats, the problems, and tables for its game."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from lite_selfplay.config import RunConfig
from lite_selfplay.config.user_files import file_of, guarded, sources_of
from lite_selfplay.data import Problem
from lite_selfplay.errors import GameError, RunFolderError, TaskError
from lite_selfplay.games import Game
from lite_selfplay.models import adapter_files
from lite_selfplay.models.backends.backend import REMEDY, Rollouts
from lite_selfplay.models.backends.vllm import require_temperature
from lite_selfplay.models.chat_template import DATE
from lite_selfplay.models.sources import ResolvedModel
from lite_selfplay.runs.defaults import without_its_gpu
from lite_selfplay.runs.folder import COLLECTIONS, ROLLOUTS, RunFolder
from lite_selfplay.runs.planning import OPTIONAL, Plan, fitted
from lite_selfplay.scan import extra
from lite_selfplay.tasks import Source
from lite_selfplay.tasks.files import read_json
from lite_selfplay.tasks.passages import short_enough
from lite_selfplay.training.progress import Monitor, Progress, Several
from lite_selfplay.training.ranks import Ranks
from lite_selfplay.training.rollout import LiveTable, Loaded
from lite_selfplay.verify.reward_functions import RewardFunction

T = TypeVar("T", bound=LiveTable)


@dataclass
class Resources:
    """A plan with its base in memory and the problems of its game; must be closed.

    `reward` replaces the checker. Of several processes, only the main one writes `folder` and has a `tracker`.
    `scratch` is a temporary folder. `plan` may be replaced.
    """

    plan: Plan
    model: ResolvedModel
    folder: RunFolder
    reward: RewardFunction | None
    loaded: Loaded
    tracker: Any  # `extras.trackers.AccelerateTracker`, or None
    sources: dict[str, Source]
    scratch: tempfile.TemporaryDirectory[str]

    @classmethod
    def of(
        cls,
        plan: Plan,
        model: ResolvedModel,
        folder: RunFolder,
        reward: RewardFunction | None,
        monitor: Monitor,
    ) -> Self:
        """Load the base that a plan names."""
        config = fitted(plan.config, model.path, plan.max_completion_tokens, monitor.progress.warn)
        plan = replace(plan, config=config)
        limit = config.eval.limit is not None and config.eval.tasks is None
        idle = "eval.limit does nothing without problems to evaluate on: --eval-tasks T names them" if limit else None
        for doubt in filter(None, (without_its_gpu(config), idle)):
            monitor.progress.warn(doubt)
        monitor.progress.say(f"loading {model.name} in {config.model.precision}")
        loaded = Loaded.of(config, model, monitor, rollouts=_rollouts(plan, folder))
        tracker = None
        if monitor.ranks.main and config.run.report_to != "none":
            tracker = extra("trackers").AccelerateTracker(
                config.run.report_to, config, type(plan.game), folder.path, monitor.progress.warn
            )
            monitor.progress = Several(monitor.progress, tracker)
        scratch = tempfile.TemporaryDirectory(prefix="lite-selfplay-")
        resources = cls(plan, model, folder, reward, loaded, tracker, {}, scratch)
        try:
            resources.sources = resources.sources_of(plan.sources)
            resources._require_short_problems()
        except BaseException:
            resources.close()
            raise
        return resources

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    @property
    def game(self) -> Game:
        return self.plan.game

    @property
    def progress(self) -> Progress:
        return self.loaded.monitor.progress

    @property
    def ranks(self) -> Ranks:
        return self.loaded.monitor.ranks

    def close(self) -> None:
        """End the checker's processes, undo the backend's changes, and remove temporary files."""
        if self.tracker is not None:
            self.tracker.close()
        self.loaded.close()
        self.scratch.cleanup()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What a resume is compared with: the base, the game, the problems and the user's own code."""
        return {
            **self.plan.identity(self.model),
            "data": self.plan.data(),
            "code": sources_of(self.config.values(), None if self.config.run.reward else self.reward),
        }

    def facts(self) -> dict[str, Any]:
        """The facts for `environment.json` besides versions."""
        config, device = self.config, self.loaded.backend.device
        cpu = f"{torch.get_num_threads()} CPU threads"
        return {
            "backend": self.loaded.backend.name,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
            **({"processes": self.ranks.world} if self.ranks.world > 1 else {}),
            **({"rollouts": list(servers)} if (servers := config.rollouts.servers) else {}),
            "seed": config.run.seed,
            "rewards": self.plan.rewards,
            "date": DATE,
            **self.identity,
        }

    def sources_of(self, items: Mapping[str, Sequence[Problem]]) -> dict[str, Source]:
        """The sources of the game, with passages short enough for this base."""
        found = {name: items[name] for name in self.game.sources}
        if "passages" in found:
            limit, chat = self.config.tasks.passage_tokens, self.loaded.chat
            found["passages"] = short_enough(found["passages"], lambda text: len(chat.tokens(text)), limit)
        return {
            name: Source(problems, seed=self.config.run.seed, name=name, may_be_empty=name in OPTIONAL)
            for name, problems in found.items()
        }

    def _require_short_problems(self) -> None:
        """Warn of problems that are longer than a prompt may be. Raises TaskError if most are."""
        task, tokens, limit = self.plan.task, self.loaded.chat.tokens, self.config.run.max_prompt_tokens
        drawn = task.problems if "problems" in self.sources and not task.procedural else ()
        # A token has at least one byte.
        if too_long := sum(len(p.text.encode()) > limit and len(tokens(p.text)) > limit for p in drawn):
            found = f"{too_long} of {len(drawn)} problems of {task.name} have more than {limit} tokens"
            if 2 * too_long > len(drawn):
                raise TaskError(f"{found} and would never be asked: raise run.max_prompt_tokens, or remove them")
            self.progress.warn(f"{found} and are never asked: raise run.max_prompt_tokens")

    @property
    def collections(self) -> Path:
        """The folder that the game writes to; a temporary copy in processes that do not write the run folder."""
        return (self.folder.path if self.ranks.main else Path(self.scratch.name)) / COLLECTIONS

    def table(self, kind: type[T], **others: Any) -> T:
        """A table of a kind with the run's sources, config and reward, or `others`."""
        own: dict[str, Any] = {
            "sources": self.sources,
            "config": self.config,
            "reward": self.reward,
            "max_completion_tokens": self.plan.max_completion_tokens,
            "folder": self.collections,
        }
        return kind(self.loaded, **{**own, **others})

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        """A context for playing the game: errors of a user's own game become GameError, which saves the run."""
        if file_of(self.config.game.name) is None:
            return contextlib.nullcontext()
        return guarded(f"the game {self.config.game.label}", GameError, self.progress.warn)

    def seats_of(
        self, other: RunFolder, tell: Callable[[str], None] = lambda sentence: None
    ) -> dict[str, adapter_files.State]:
        """Another run's weights for this run's seats: of the seat of the same name, or of its only seat.

        Raises RunFolderError if it has another base, or a seat is missing, damaged or of another shape or scale. Tells
        of another precision or way of thinking, and of another name of the base if PEFT wrote the folder.
        """
        model = self.config.model
        if other.brought:
            theirs = read_json(other.path / adapter_files.CONFIG).get("base_model_name_or_path")
            if theirs not in (self.model.hub_id, model.name):
                tell(f"{other.path} says that its base is {theirs}, and this run's is {model.name}: compare them")
        else:
            other.require_base(self.model)
            theirs = other.config().model
            for key in ("precision", "thinking"):
                if (was := getattr(theirs, key)) != (now := getattr(model, key)):
                    tell(f"{other.path} was made with model.{key}={was}, this run has {now}: --set model.{key}={was}")
        folders, found = other.seats(self.progress.warn), {}
        for seat in self.loaded.adapters.seats:
            folder = folders.get(seat) or (next(iter(folders.values())) if len(folders) == 1 else None)
            if folder is None:
                raise RunFolderError(f"{other.path} has no seat {seat!r}: it has {', '.join(folders) or 'none'}")
            found[seat] = self.loaded.adapters.read(seat, folder, brought=other.brought)
        return found


@contextlib.contextmanager
def leaving_as_an_error() -> Iterator[None]:
    """A context in which `sys.exit`, called by a game's or a task's own code, becomes a GameError."""
    try:
        yield
    except SystemExit as left:
        raise GameError(f"code of the game, or of its tasks, called sys.exit({left})") from left


def _rollouts(plan: Plan, folder: RunFolder) -> Rollouts | None:
    """How the run samples on servers; None if it samples here."""
    config, tokens = plan.config, plan.max_completion_tokens
    if not config.rollouts.servers:
        return None
    sampled = [role.sampling(tokens) for role in config.roles.values()]
    for temperature in (config.eval.temperature, config.cold_start.temperature, *(one.temperature for one in sampled)):
        require_temperature(temperature, REMEDY)
    longest = max([tokens, *(sampling.max_tokens for sampling in sampled)])
    return Rollouts(config.rollouts, folder.path / ROLLOUTS, config.run.max_prompt_tokens + longest)

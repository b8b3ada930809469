"""A run before it starts: its configuration filled in and checked. Nothing is downloaded, nothing written."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lite_selfplay.backends import require_available
from lite_selfplay.config import RunConfig, merge, nested, set_key, spread
from lite_selfplay.errors import ConfigError
from lite_selfplay.games import Game, make_game
from lite_selfplay.models import require_known, suggested
from lite_selfplay.tasks import Task, load_task
from lite_selfplay.tasks.base import derived_rng

_LOOKED_AT = 50


@dataclass(frozen=True)
class Plan:
    """The whole configuration, the game and the task, checked against each other."""

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
        if self.config.cold_start.enabled:
            section = self.config.cold_start
            examples = section.steps * section.examples_per_step
            lines.append(f"before that, a cold start of {examples} worked examples a seat")
        return lines


def plan(config: RunConfig, *, own_checker: bool = False) -> Plan:
    """Fill in everything a configuration leaves open, and check it.

    `own_checker`: a reward function takes the checker's place, so problems need no answers.
    Raises ConfigError, UnknownNameError or TaskError.
    """
    if config.tasks.train is None:
        raise ConfigError("no tasks: give --tasks a .jsonl file or a name such as letters")
    task = load_task(config.tasks.train, seed=config.run.seed)
    resolved = _layered(make_game(config.game.name, config.game.options), config)
    tokens = resolved.run.max_completion_tokens or task.max_completion_tokens
    reward = resolved.run.reward
    files = {
        "tasks": {"train": _absolute(config.tasks.train)},
        "run": {"max_completion_tokens": tokens, "reward": reward and _absolute_function(reward)},
    }
    sizes = {"group_size": resolved.run.group_size, "problems_per_step": resolved.run.problems_per_step}
    game = make_game(resolved.game.name, resolved.game.options, **sizes)
    options = {"game": {"name": resolved.game.name, **game.options.model_dump(mode="json")}}
    ready = Plan(RunConfig.of(resolved.model_dump(mode="json"), files, options), game, task, tokens)
    _check_model(ready.config)
    _check_sampling(ready.config)
    _check_problems(ready, own_checker)
    return ready


def _layered(game: Game, config: RunConfig) -> RunConfig:
    """The game's recipe, what the model suggests, and the user's own keys, with `*` spread over roles and seats."""
    hints: dict[str, Any] = {}
    for dotted, value in suggested(config.model.name).items():
        set_key(hints, dotted, value)
    merged: dict[str, Any] = {}
    sections = {"seats": game.trained_seats(), "roles": game.roles}
    for layer in (game.recipe, hints, config.chosen()):
        spread_out: Mapping[str, Any] = nested(layer)
        for section, names in sections.items():
            spread_out = spread(spread_out, section, names)
        merged = merge(merged, spread_out)
    for section, names in sections.items():
        merged[section] = {name: merged.get(section, {}).get(name, {}) for name in names}
    return RunConfig.of(merged)


def _absolute(spec: str) -> str:
    """A file by its whole path, so that the run can be resumed and repeated from another folder."""
    return str(Path(spec).resolve()) if Path(spec).is_file() else spec


def _absolute_function(spec: str) -> str:
    place, colon, name = spec.rpartition(":")
    return f"{_absolute(place)}{colon}{name}"


def _check_model(config: RunConfig) -> None:
    require_known(config.model.name)
    require_available(config.model.backend)
    tracker = config.run.report_to
    if tracker != "none" and importlib.util.find_spec(tracker) is None:
        raise ConfigError(f"run.report_to is {tracker}, which is not installed: pip install {tracker}")


def _check_sampling(config: RunConfig) -> None:
    for name, role in config.roles.items():
        if not role.sampling(1).is_policy:
            raise ConfigError(
                f"roles.{name}: completions sampled with top_p, top_k, min_p or a repetition penalty are not the "
                "policy's own, and training on them as if they were is silently wrong: only temperature may change"
            )


def _check_problems(ready: Plan, own_checker: bool) -> None:
    name, game, cold_start = ready.config.game.name, ready.game, ready.config.cold_start
    if game.needs_answers and not own_checker:
        missing = next((problem.id for problem in ready.task.problems if problem.answer is None), None)
        if missing is not None:
            raise ConfigError(f"{name} needs an answer to every problem; {missing} has none")
    if not cold_start.enabled:
        return
    task = load_task(cold_start.tasks) if cold_start.tasks else ready.task
    shown = [task.problems[i] for i in range(min(_LOOKED_AT, len(task.problems)))]
    rng = derived_rng("looking")
    if not any(game.cold_start(role, p, rng, thinks=False) for p in shown for role in game.roles):
        raise ConfigError(
            f"cold start needs worked solutions, and {task.name} brings none for {name}: use --no-cold-start, or "
            "--set cold_start.tasks=stories"
        )

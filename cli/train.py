"""`lite-selfplay train` and `cold-start`: a game's seats, from flags and files to a run folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lite_selfplay.config import RunConfig
from lite_selfplay.config.user_files import load
from lite_selfplay.errors import RequestError
from lite_selfplay.models.shapes import shape_of
from lite_selfplay.models.sources import hub_id
from lite_selfplay.runs import api
from lite_selfplay.runs.build import free_folder
from lite_selfplay.runs.defaults import without_its_card
from lite_selfplay.runs.planning import plan
from lite_selfplay.training.ranks import here
from lite_selfplay_cli import flags
from lite_selfplay_cli.display import make_progress

_RESUME_TAKES = ("steps", "reward", "rollouts", "trust_remote_code", "unsafe_code")


@flags.takes(flags.TRAIN)
def train(
    game: flags.Game = None,
    *,
    given: dict[str, Any],
    preset: flags.Preset = None,
    config: flags.Config = None,
    assignments: flags.Assignments = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on from a run's last complete checkpoint.", metavar="RUN")
    ] = None,
    dry_run: flags.DryRun = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every figure of a step, not only those that are wrong.")
    ] = False,
) -> None:
    """Train the seats of a game. What is left out is chosen: problems, an evaluation, a size for this machine, whether
    the base thinks aloud and is taught the format first. Each choice is said, with the flag that changes it.

    The run folder holds the configuration, a line of metrics a step, every completion with its reward, the evaluations,
    the adapters (which plain PEFT loads), checkpoints to resume from, and a model card.

    Examples:

      lite-selfplay train agon --model Qwen3-0.6B

      lite-selfplay train agon --model tiny --steps 20

      lite-selfplay train agon --preset demo

      lite-selfplay train agon --model Qwen3-0.6B --tasks problems.jsonl --eval-tasks problems.jsonl

      lite-selfplay train --resume runs/agon-tiny-20260101-120000 --steps 40
    """
    if resume is not None:
        own = {"preset": preset, "config": config, "set": assignments, "dry_run": dry_run}
        used = [*(["game"] if game else []), *given, *(flag for flag, value in own.items() if value)]
        if others := [flag.replace("_", "-") for flag in used if flag not in _RESUME_TAKES]:
            raise RequestError(
                "--resume reads everything from the run folder; only --steps, --reward and --rollouts go with it, not "
                f"{others[0]}"
            )
        with make_progress(verbose=verbose) as progress:
            api.resume(resume, **{"trust_remote_code": False, "unsafe_code": False, **given}, progress=progress)
        return

    asked = RunConfig.of(*flags.layers({"game": game, **given}, preset, config, assignments))
    if dry_run:
        _dry_run(asked)
        return
    with make_progress(verbose=verbose) as progress:
        api.train(asked, progress=progress)


def _dry_run(config: Any) -> None:
    """Print what a configuration would do, and start nothing."""

    if not here().main:
        return
    if base_id := hub_id(config.model.name):
        shape_of(base_id)  # of one that is not in the list, the hub is asked
    own_checker = config.run.reward is not None and load(config.run.reward, "--reward", "function") is not None
    for line in plan(config, own_checker=own_checker).lines():
        typer.echo(line)
    typer.echo(f"run folder: {free_folder(config)}")
    if doubt := without_its_card(config):
        typer.echo(f"warning: {doubt}", err=True)
    typer.echo("dry run: nothing was started")


_OWN = ("source", "steps", "examples_per_step", "lr")
_SHARED = (
    "model", "tasks", "data_dir", "knowledge", "max_completion_tokens", "seed", "run_dir", "eval_tasks", "eval_limit",
    "backend", "precision", "trust_remote_code", "reward", "rollouts",
)  # fmt: skip
_PATHS = {**{flag: flags.TRAIN[flag] for flag in _SHARED}, **{flag: f"cold_start.{flag}" for flag in _OWN}}


@flags.takes(_PATHS)
def cold_start(
    game: flags.Game = None,
    *,
    given: dict[str, Any],
    preset: flags.Preset = None,
    config: flags.Config = None,
    assignments: flags.Assignments = None,
    dry_run: flags.DryRun = False,
) -> None:
    """Teach the seats of a game their output format, without a teacher model.

    worked: solutions that the tasks bring along, written in the game's format; a challenger is shown right and wrong
    attempts. self: the base plays the game by itself, and what is right and well-formed is learned, topped up by worked
    solutions. A .jsonl file: lines of prompt, completion and possibly role. auto: worked where the tasks bring
    solutions, self elsewhere. What was learned from is kept in the run folder, in cold_start.jsonl.

    Examples:

      lite-selfplay cold-start agon --model smollm2-135m --tasks arithmetic --run-dir runs/taught

      lite-selfplay train agon --model smollm2-135m --tasks arithmetic --init runs/taught
    """

    values = {"game": game, "cold_start.enabled": True, **given}
    asked = RunConfig.of(*flags.layers(values, preset, config, assignments, _PATHS))
    if dry_run:
        _dry_run(asked)
        return
    with make_progress() as progress:
        api.cold_start(asked, progress=progress)

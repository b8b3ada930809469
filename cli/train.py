"""`lite-selfplay train` and `cold-start`: train a game's seats into a run folder, from flags and files."""

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
from lite_selfplay.runs.defaults import without_its_gpu
from lite_selfplay.runs.planning import plan
from lite_selfplay.training.ranks import here
from lite_selfplay_cli import flags
from lite_selfplay_cli.display import make_progress

_RESUME_TAKES = ("steps", "reward", "rollouts", "report_to", "trust_remote_code", "unsafe_code")


@flags.takes(flags.TRAIN)
def train(
    game: flags.Game = None,
    *,
    given: dict[str, Any],
    preset: flags.Preset = None,
    config: flags.Config = None,
    assignments: flags.Assignments = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue from a run's last complete checkpoint.", metavar="RUN")
    ] = None,
    dry_run: flags.DryRun = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every metric of a step, not only those that look wrong.")
    ] = False,
) -> None:
    """Train the seats (named LoRA adapters) of a game. Settings that you do not give are chosen: problems, an
    evaluation, sizes for this machine, thinking, a cold start. Each choice is printed with the flag that changes it.

    The run folder holds the configuration, one line of metrics per step, every completion with its reward, the
    evaluations, the adapters (for plain PEFT), checkpoints to resume from, and a model card.

    \b
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
                "--resume reads its settings from the run folder: only --steps, --reward, --rollouts and --report-to "
                f"may be added, not {others[0]}"
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
    """Print what a run would do, without starting it."""
    if not here().main:
        return
    if base_id := hub_id(config.model.name):
        shape_of(base_id)  # asks the hub about models that are not in the list
    own_checker = config.run.reward is not None and load(config.run.reward, "--reward", "function") is not None
    for line in plan(config, own_checker=own_checker).lines():
        typer.echo(line)
    typer.echo(f"run folder: {free_folder(config)}")
    if doubt := without_its_gpu(config):
        typer.echo(f"warning: {doubt}", err=True)
    typer.echo("dry run: nothing was started")


_SHARED = (
    "model", "tasks", "data_dir", "knowledge", "max_completion_tokens", "seed", "run_dir", "eval_tasks", "eval_limit",
    "backend", "precision", "trust_remote_code", "reward", "rollouts",
)  # fmt: skip
_PATHS = {
    **{flag: flags.TRAIN[flag] for flag in _SHARED},
    **{flag: f"cold_start.{flag}" for flag in ("source", "steps", "examples_per_step", "lr")},
}


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

    --source worked: the tasks' own solutions, written in the game's format; roles that read an attempt see right and
    wrong attempts. self: the base plays the game, and its right, well-formed completions are the examples, topped up
    with worked solutions. A .jsonl file: lines with prompt, completion and optionally role. auto: worked if the tasks
    have solutions, else self. The examples are kept in the run folder, in cold_start.jsonl.

    \b
    Examples:
      lite-selfplay cold-start agon --model smollm2-135m --tasks arithmetic --run-dir runs/taught
      lite-selfplay train agon --model smollm2-135m --tasks arithmetic --init runs/taught
    """
    given |= {"game": game, "cold_start.enabled": True}
    asked = RunConfig.of(*flags.layers(given, preset, config, assignments, _PATHS))
    if dry_run:
        _dry_run(asked)
        return
    with make_progress() as progress:
        api.cold_start(asked, progress=progress)

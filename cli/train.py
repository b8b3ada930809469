"""`lite-selfplay train`: a game's seats, from flags and files to a run folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lite_selfplay.errors import RequestError
from lite_selfplay_cli import flags

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
        _resume(resume, given, [flag for flag in used if flag not in _RESUME_TAKES], verbose)
        return

    from lite_selfplay.config import RunConfig
    from lite_selfplay.runs.api import train as run
    from lite_selfplay_cli.display import make_progress

    asked = RunConfig.of(*flags.layers({"game": game, **given}, preset, config, assignments))
    if dry_run:
        flags.dry_run(asked)
        return
    with make_progress(verbose=verbose) as progress:
        run(asked, progress=progress)


def _resume(path: Path, given: dict[str, Any], others: list[str], verbose: bool) -> None:
    from lite_selfplay.runs.api import resume
    from lite_selfplay_cli.display import make_progress

    if others:
        flag = others[0].replace("_", "-")
        raise RequestError(
            "--resume reads everything from the run folder; only --steps, --reward and --rollouts go with it, not "
            f"{flag}"
        )
    with make_progress(verbose=verbose) as progress:
        resume(
            path,
            steps=given.get("steps"),
            reward=given.get("reward"),
            rollouts=given.get("rollouts"),
            trust_remote_code=bool(given.get("trust_remote_code")),
            unsafe_code=bool(given.get("unsafe_code")),
            progress=progress,
        )

"""`lite-selfplay cold-start`: seats that know their output format, for `train --init` to start from."""

from typing import Any

from lite_selfplay_cli import flags

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
    from lite_selfplay.config import RunConfig
    from lite_selfplay.runs.api import cold_start as run
    from lite_selfplay_cli.display import make_progress

    values = {"game": game, "cold_start.enabled": True, **given}
    asked = RunConfig.of(*flags.layers(values, preset, config, assignments, _PATHS))
    if dry_run:
        flags.dry_run(asked)
        return
    with make_progress() as progress:
        run(asked, progress=progress)

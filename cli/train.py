"""`lite-selfplay train`: a game's seats, from flags and files to a run folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lite_selfplay.errors import ConfigError, RequestError


def train(
    game: Annotated[str | None, typer.Argument(help="agon, grpo, ...: `lite-selfplay games` lists them.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A short name, hub id, folder, .gguf file, smollm2-135m, or tiny.", metavar="M"
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", "-t", help="A .jsonl file, or a task by name: letters.", metavar="T")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of play and update. [default: 200]")] = None,
    group_size: Annotated[int | None, typer.Option(help="Completions that share a baseline. [default: 8]")] = None,
    problems_per_step: Annotated[int | None, typer.Option(help="Problems drawn at a step. [default: 4]")] = None,
    max_completion_tokens: Annotated[
        int | None, typer.Option(help="Cap of a completion. [default: the task's: 16 for letters, else 512]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it. [default: 0]")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="The run folder; never overwritten. [default: runs/GAME-MODEL-TIME]")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file; flags go over it.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Any key: --set seats.A.lr=1e-4. Repeatable.", metavar="K=V")
    ] = None,
    cold_start: Annotated[
        bool | None,
        typer.Option("--cold-start/--no-cold-start", help="Teach the format first, by worked examples. [default: no]"),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="auto, transformers or unsloth. [default: auto]")] = None,
    precision: Annotated[str | None, typer.Option(help="4bit, bf16, fp16 or fp32. [default: 4bit]")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints. [default: 50]")] = None,
    reward: Annotated[
        str | None, typer.Option(help="A function in the checker's place.", metavar="FILE.py:FUNCTION")
    ] = None,
    report_to: Annotated[str | None, typer.Option(help="tensorboard, wandb, trackio or none. [default: none]")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on from a run's last complete checkpoint.", metavar="RUN")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would run, stop.")] = False,
) -> None:
    """Train the seats of a game.

    The run folder holds the configuration, a line of metrics a step, every completion with its reward, the adapters
    (which plain PEFT loads) and checkpoints to resume from.

    Examples:

      lite-selfplay train agon --model tiny --tasks letters --steps 20

      lite-selfplay train agon --model Qwen3-0.6B --tasks problems.jsonl

      lite-selfplay train --resume runs/agon-tiny-20260101-120000 --steps 40
    """
    flags = {
        "steps": steps,
        "group_size": group_size,
        "problems_per_step": problems_per_step,
        "max_completion_tokens": max_completion_tokens,
        "seed": seed,
        "run_dir": run_dir,
        "cold_start": cold_start,
        "backend": backend,
        "precision": precision,
        "save_every": save_every,
        "reward": reward,
        "report_to": report_to,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    if resume is not None:
        others = {"game": game, "model": model, "tasks": tasks, "config": config, "set": assignments, **given}
        others["dry_run"] = dry_run or None
        _resume(resume, steps, [key for key, value in others.items() if value not in (None, []) and key != "steps"])
        return
    _start(_layers(game, model, tasks, config, given, assignments or []), dry_run)


def _layers(
    game: str | None,
    model: str | None,
    tasks: str | None,
    config: Path | None,
    given: dict[str, Any],
    assignments: list[str],
) -> list[dict[str, Any]]:
    """The layers of the configuration, the later over the earlier: file, names, flags, --set."""
    from lite_selfplay.config import load_layer, parse_assignment

    layers: list[dict[str, Any]] = [load_layer(config)] if config else []
    names = {"game": game, "model": model, "tasks": tasks}
    layers.append({key: value for key, value in names.items() if value is not None})
    layers.append(given)
    layers += [parse_assignment(text) for text in assignments]
    chosen = {key for layer in layers for key in layer}
    if missing := [key for key in ("game", "model") if key not in chosen]:
        raise ConfigError(f"no {missing[0]} given: try `lite-selfplay train agon --model tiny --tasks letters`")
    return layers


def _start(layers: list[dict[str, Any]], dry_run: bool) -> None:
    from lite_selfplay.config import RunConfig
    from lite_selfplay.planning import plan
    from lite_selfplay.rewards import load_reward
    from lite_selfplay.run import free_folder, train

    config = RunConfig.of(*layers)
    if dry_run:
        reward = load_reward(config.run.reward) if config.run.reward else None
        for line in plan(config, own_checker=reward is not None).lines():
            typer.echo(line)
        typer.echo(f"run folder: {free_folder(config)}")
        typer.echo("dry run: nothing was started")
        return
    train(config, say=_say)


def _resume(path: Path, steps: int | None, others: list[str]) -> None:
    from lite_selfplay.run import resume

    if others:
        flag = others[0].replace("_", "-")
        raise RequestError(f"--resume reads everything from the run folder; only --steps goes with it, not {flag}")
    resume(path, steps=steps, say=_say)


def _say(line: str) -> None:
    typer.echo(line, err=line.startswith("warning:"))

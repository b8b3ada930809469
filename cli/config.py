"""`lite-selfplay config`: write, show and check configuration files, and list their keys."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lite_selfplay.config import SECTIONS, Key, RunConfig, keys_in, load_layer
from lite_selfplay.config.layers import GUARDS, require_accepted
from lite_selfplay.errors import ConfigError
from lite_selfplay.runs.planning import plan
from lite_selfplay.tasks.files import write_errors
from lite_selfplay_cli import flags

app = typer.Typer(
    help="Write, show and check configuration files, and list their keys.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_File = Annotated[Path, typer.Argument(help="A YAML configuration.")]


@app.command()
def init(
    game: Annotated[str, typer.Argument(help="The game to configure.")] = "agon",
    model: Annotated[str, typer.Option("--model", "-m", help="The base model.")] = "Qwen3-0.6B",
    tasks: Annotated[str, typer.Option("--tasks", "-t", help="A .jsonl file or a task by name.")] = "letters",
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it.")] = Path("config.yaml"),
) -> None:
    """Write a configuration with every key of a game and its default."""
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists already: choose another --out")
    text = plan(RunConfig(game=game, model=model, tasks=tasks)).config.to_yaml()
    with write_errors(out, ConfigError):
        out.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {out}; run it with: lite-selfplay train --config {out}")


@app.command()
def show(file: _File, as_json: flags.Json = False) -> None:
    """Print a configuration with all defaults filled in."""
    config = _resolved(file)
    if as_json:
        flags.echo_json(config.values())
    else:
        typer.echo(config.to_yaml(), nl=False)


@app.command()
def validate(file: _File) -> None:
    """Check a configuration against its game, its tasks and the ranges of its keys."""
    _resolved(file)
    typer.echo(f"{file} is valid")


@app.command()
def keys(
    section: Annotated[str | None, typer.Argument(help=f"One of {', '.join(SECTIONS)}.", show_default="all")] = None,
    as_json: flags.Json = False,
) -> None:
    """List the keys of a configuration: the type, range, default, flag and meaning of each.

    ROLE and SEAT stand for a name, or * for all of them. `list games` shows the switches of each game, which are
    further keys of the section game. --set sets any key, as in --set run.minibatches=2.
    """
    found = [key for name in ([section] if section else SECTIONS) for key in keys_in(name)]
    flags.show(as_json, [*map(_as_json, found)], map(_as_text, found))


def _as_text(key: Key) -> str:
    default = "must be given" if key.required else f"default: {key.default_text or 'none'}"
    flag = f"; --{key.flag.replace('_', '-')}" if key.flag else ""
    return f"{key.path}  ({f'{key.type_text} {key.bounds}'.strip()}; {default}{flag})\n    {key.about}"


def _as_json(key: Key) -> dict[str, Any]:
    return {
        "key": key.path,
        "type": key.type_text,
        "range": key.bounds or None,
        "required": key.required,
        "default": key.default,
        "unset": key.unset or None,
        "flag": key.flag or None,
        "meaning": key.about,
    }


def _resolved(file: Path) -> RunConfig:
    config = RunConfig.of(layer := load_layer(file))
    require_accepted(layer, file, dict.fromkeys(GUARDS, True))  # nothing runs that these keys guard
    return plan(config, own_checker=config.run.reward is not None).config

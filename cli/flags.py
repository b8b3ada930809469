"""The flags that commands share, and the configuration layers they produce.

A flag for a configuration key takes its name, type and help from the key's declaration
(`lite_selfplay.config.sections`).
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lite_selfplay.config import FLAGS, KEYS, Key, load_layer, merge, nested, parse_assignment, preset_layer, set_key
from lite_selfplay.config.layers import require_accepted
from lite_selfplay.errors import ConfigError
from lite_selfplay.training.progress import printable

Game = Annotated[
    str | None,
    typer.Argument(help="agon, grpo, ... (`lite-selfplay list games` lists them), or your own: FILE.py:CLASS."),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", "-p", help="demo, t4, agon-paper, ...; everything else overrides it.", metavar="P"),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file; flags override it.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any key: --set seats.A.lr=1e-4. Repeatable.", metavar="K=V")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would run, stop.")]
Json = Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")]

_ORDER = ("tasks", "run", "seats", "cold_start", "eval", "model", "rollouts")
TRAIN: Mapping[str, str] = {
    "model": FLAGS["model"].path,
    **{flag: key.path for name in _ORDER for flag, key in FLAGS.items() if key.path.startswith(f"{name}.")},
}
"""The configuration key of each flag of `train`, in the order of its help."""


def option(flag: str, key: Key) -> Any:
    """The annotation of the command parameter for a key's flag; its value is None if the flag is not given."""
    name = f"--{flag.replace('_', '-')}"
    names = [f"{name}/--no-{name[2:]}" if key.kind is bool else name, *filter(None, [key.short])]
    default = f" [default: {key.default_text}]" if key.default_text else ""
    metavar = key.metavar or "|".join(key.choices) or None
    kind = str if key.kind is tuple else key.kind  # a list is one text with commas
    return Annotated[kind | None, typer.Option(*names, help=f"{key.about}.{default}", metavar=metavar)]


TrustRemoteCode = option("trust_remote_code", FLAGS["trust_remote_code"])
UnsafeCode = option("unsafe_code", FLAGS["unsafe_code"])


def takes(paths: Mapping[str, str | Key]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that adds options to a command. `paths` maps a flag's name to a configuration key or its path. The
    command gets the flags that were used in its parameter `given`, by name."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            asked = {flag: values.pop(flag) for flag in paths}
            command(**values, given={flag: value for flag, value in asked.items() if value is not None})

        by_name, parameters = inspect.Parameter.KEYWORD_ONLY, list[inspect.Parameter]()
        kinds = {flag: option(flag, KEYS[path] if isinstance(path, str) else path) for flag, path in paths.items()}
        taken = [inspect.Parameter(flag, by_name, default=None, annotation=kind) for flag, kind in kinds.items()]
        for own in inspect.signature(command).parameters.values():
            parameters += taken if own.name == "given" else [own.replace(kind=by_name)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def layers(
    given: Mapping[str, Any],
    preset: str | None,
    config: Path | None,
    assignments: list[str] | None,
    paths: Mapping[str, str] = TRAIN,
    needs: Sequence[str] = ("game", "model"),
) -> list[dict[str, Any]]:
    """The layers of a configuration, each overriding the one before: preset, file, flags, --set. `given` holds the
    values of flags, `paths` the key of each (by default its name). Raises ConfigError if no layer sets a key in
    `needs`, or if the file decides what only the user may (`require_accepted`)."""
    found: list[dict[str, Any]] = [preset_layer(preset)] if preset is not None else []
    flags: dict[str, Any] = {}
    for flag, value in given.items():
        if value is not None:
            set_key(flags, paths.get(flag, flag).replace(".SEAT.", ".*."), value)
    flags = nested(flags)
    for text in assignments or []:
        flags = merge(flags, nested(parse_assignment(text)))
    if config is not None:
        found.append(load_layer(config))
        require_accepted(merge(found[-1], flags), config, flags)
    found.append(flags)
    chosen = {key for layer in found for key, value in layer.items() if value is not None}
    if missing := [key for key in needs if key not in chosen and "preset" not in chosen]:
        raise ConfigError(f"no {missing[0]} given: try `lite-selfplay train agon --model tiny`")
    return found


def echo(text: str) -> None:
    """Print text that may come from a run, a task or a model, without control characters."""
    typer.echo(printable(text))


def show(as_json: bool, value: Any, lines: Iterable[str]) -> None:
    """Print a value as JSON, or as lines of text."""
    if as_json:
        echo_json(value)
    else:
        echo("\n".join(lines))


def short(text: str, most: int) -> str:
    """The first `most` characters of a text in one line, without control characters."""
    words = " ".join(printable(text[: 4 * most]).split()) or "(nothing)"
    return words if len(words) <= most else f"{words[:most]}..."


def to_stderr(line: str) -> None:
    """Print a line on stderr, without control characters."""
    typer.echo(printable(line), err=True)


def echo_json(value: Any) -> None:
    """Print a value as ASCII JSON, so that no name in it can control the terminal."""
    typer.echo(json.dumps(value, allow_nan=False, indent=1))

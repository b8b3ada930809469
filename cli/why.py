"""`lite-selfplay why`: what is wrong with a run, or what one of its figures means."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.games import Game
    from lite_selfplay.runs.report.diagnosis import Diagnosis

_MARKS = {"wrong": "!", "watch": "?", "normal": "."}
_PREVIEW = 100


def why(
    what: Annotated[
        str,
        typer.Argument(
            help="A run folder; or a figure: a key of metrics.jsonl, such as kl, or the name of a chart.",
            metavar="RUN|KEY",
        ),
    ],
    run: Annotated[Path | None, typer.Argument(help="After a figure, a run folder: for its values.")] = None,
    step: Annotated[
        int | None, typer.Option(help="One step, counted from 1.", show_default="the last quarter", min=1)
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Say in sentences what is wrong with a run, with the evidence and the next command, and what moved it most.

    Looked for: completions that are cut off, nothing well-formed, groups without variance, a KL term that explodes, a
    sampler that is off, numbers that are not finite, and what the game itself declares unhealthy or warned of. The
    bounds are rules of thumb. Before its first step it says what the pre-flight found.

    Of a figure: what it means, which values are healthy, what to change for others, and what a run has.

    Examples:

      lite-selfplay why runs/agon-tiny-20260101-120000

      lite-selfplay why kl runs/agon-tiny-20260101-120000
    """
    if run is None and (os.path.lexists(what) or os.sep in what):
        _why(Path(what), step, as_json)
    elif step is not None:
        raise ConfigError("--step goes with a run folder alone")
    else:
        _explain(what, run, as_json)


def _why(run: Path, step: int | None, as_json: bool) -> None:
    from lite_selfplay.runs.api import load_run
    from lite_selfplay.runs.folder import as_written
    from lite_selfplay.runs.report.diagnosis import diagnose

    found = diagnose(run, step)
    folder = load_run(run)
    with as_written(run):
        if found.without_game:
            typer.echo(f"warning: {found.without_game}", err=True)
        if as_json:
            flags.echo_json(_why_json(run, found))
        else:
            _print_why(f"{folder.config.game.label} on {folder.config.model.name}", folder.game()[0], found)


def _why_json(run: Path, found: "Diagnosis") -> dict[str, Any]:
    from lite_selfplay.runs.report.steps import only_finite

    moved = [dict(row) for row in found.moved_most]
    return {"run": str(run), "steps": found.steps, "findings": [asdict(cause) for cause in found.causes],
            "moved_most": only_finite(moved), "preflight": list(found.preflight)}  # fmt: skip


def _print_why(title: str, game: "type[Game]", found: "Diagnosis") -> None:
    from lite_selfplay.training.progress import printable

    first, last = found.steps or (0, 0)
    steps = f"steps {first} to {last}" if last > first else f"step {first}"
    typer.echo(printable(f"{title}, {steps if found.steps else 'before its first step'}:"))
    for cause in found.causes:
        typer.echo(f"\n{_MARKS.get(cause.level, '?')} {printable(cause.sentence)}")
        for name, text in (("evidence", cause.evidence), ("next", cause.next)):
            if text:
                typer.echo(printable(f"    {name}: {text}"))
    if found.moved_most:
        typer.echo("\nthe completions that moved most (by their advantage):")
    for row in found.moved_most:
        about = f"  step {row['step']}, {row['role']} (seat {row['seat']}), {row.get('problem_id') or 'a problem'}"
        typer.echo(printable(f"{about}: {game.verdict(row)}, advantage {row['advantage']:+.2f}"))
        typer.echo(f"    {_one_line(row['text'])}")
    if found.preflight:
        typer.echo("\nbefore the first step:")
    for line in found.preflight:
        typer.echo(f"  {printable(line)}")


def _one_line(text: str) -> str:
    from lite_selfplay.training.progress import printable

    words = " ".join(printable(str(text)[: 4 * _PREVIEW]).split()) or "(nothing)"
    return words if len(words) <= _PREVIEW else f"{words[:_PREVIEW]}..."


def _explain(figure: str, run: Path | None, as_json: bool) -> None:
    from lite_selfplay.runs.folder import RunFolder, as_written
    from lite_selfplay.runs.report.declared import game_of
    from lite_selfplay.runs.report.meanings import find_meaning, values_of

    if run is None:
        meaning, values = find_meaning(figure), None
    else:
        folder = RunFolder.open(run)
        with as_written(run):
            meaning = find_meaning(figure, game_of(folder)[0])
            values = values_of(meaning, folder.metrics())
    if as_json:
        facts = {key: getattr(meaning, key) for key in ("key", "part", "meaning", "healthy", "change")}
        own = (
            {} if values is None else {"run": str(run), "values": {k or "run": _summary(v) for k, v in values.items()}}
        )
        flags.echo_json({"name": meaning.name or meaning.key, **facts, **own})
        return
    typer.echo(f"{meaning.key}: {meaning.meaning}")
    typer.echo(f"healthy: {meaning.healthy}")
    if meaning.change:
        typer.echo(f"to change: {meaning.change}")
    if values is not None:
        _print_values(values, meaning.unit)


def _summary(values: Sequence[float]) -> dict[str, float | int]:
    """The first and the last value, and the mean of the last quarter."""
    late = values[-max(1, len(values) // 4) :]
    return {"steps": len(values), "first": values[0], "last": values[-1], "last_quarter": sum(late) / len(late)}


def _print_values(values: Mapping[str, Sequence[float]], unit: Any) -> None:
    from lite_selfplay.games.presentation import value_in_words
    from lite_selfplay.training.progress import printable

    if not values:
        typer.echo("this run: it has no value")
    for name, each in values.items():
        found = _summary(each)
        words = ", ".join(
            f"{key.replace('_', ' ')} {value_in_words(found[key], unit)}" for key in ("first", "last_quarter", "last")
        )
        typer.echo(printable(f"this run{f', {name}' if name else ''}: {words}; {len(each)} steps"))

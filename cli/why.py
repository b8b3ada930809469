"""`lite-selfplay why`: what is wrong with a run, or what one of its figures means."""

import os
from collections.abc import Iterator, Sequence
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
    rate that is too high, held-out problems that are answered worse than before training, a sampler that is off,
    numbers that are not finite, and what the game itself declares unhealthy or warned of. The bounds are rules of
    thumb. Before its first step it says what the pre-flight found.

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
    from lite_selfplay.runs.report.steps import only_finite

    found = diagnose(run, step)
    folder = load_run(run)
    with as_written(run):
        if found.without_game:
            flags.to_stderr(f"warning: {found.without_game}")
        moved = [dict(row) for row in found.moved_most]
        about = {"run": str(run), "steps": found.steps, "findings": [asdict(cause) for cause in found.causes],
                 "moved_most": only_finite(moved), "preflight": list(found.preflight)}  # fmt: skip
        title = f"{folder.config.game.label} on {folder.config.model.name}"
        flags.show(as_json, about, _lines(title, folder.game()[0], found))


def _lines(title: str, game: "type[Game]", found: "Diagnosis") -> Iterator[str]:
    first, last = found.steps or (0, 0)
    steps = f"steps {first} to {last}" if last > first else f"step {first}"
    yield f"{title}, {steps if found.steps else 'before its first step'}:"
    for cause in found.causes:
        yield f"\n{_MARKS.get(cause.level, '?')} {cause.sentence}"
        yield from (
            f"    {name}: {text}" for name, text in (("evidence", cause.evidence), ("next", cause.next)) if text
        )
    if found.moved_most:
        yield "\nthe completions that moved most (by their advantage):"
    for row in found.moved_most:
        about = f"  step {row['step']}, {row['role']} (seat {row['seat']}), {row.get('problem_id') or 'a problem'}"
        yield f"{about}: {game.verdict(row)}, advantage {row['advantage']:+.2f}"
        yield f"    {flags.short(str(row['text']), _PREVIEW)}"
    if found.preflight:
        yield "\nbefore the first step:"
    yield from (f"  {line}" for line in found.preflight)


def _explain(figure: str, run: Path | None, as_json: bool) -> None:
    from lite_selfplay.games.presentation import value_in_words
    from lite_selfplay.runs.folder import RunFolder, as_written
    from lite_selfplay.runs.report.declared import game_of
    from lite_selfplay.runs.report.meanings import find_meaning, values_of

    own: dict[str, Any] = {}
    if run is None:
        meaning, lines = find_meaning(figure), list[str]()
    else:
        folder = RunFolder.open(run)
        with as_written(run):
            meaning = find_meaning(figure, game_of(folder)[0])
            found = {name: _summary(each) for name, each in values_of(meaning, folder.metrics()).items()}
        own = {"run": str(run), "values": {name or "run": summary for name, summary in found.items()}}
        lines = [] if found else ["this run: it has no value"]
        for name, summary in found.items():
            shown = {key: value_in_words(summary[key], meaning.unit) for key in ("first", "last_quarter", "last")}
            words = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shown.items())
            lines.append(f"this run{f', {name}' if name else ''}: {words}; {summary['steps']} steps")
    facts = {key: getattr(meaning, key) for key in ("key", "part", "meaning", "healthy", "change")}
    told = [f"{meaning.key}: {meaning.meaning}", f"healthy: {meaning.healthy}"]
    told += [f"to change: {meaning.change}"] if meaning.change else []
    flags.show(as_json, {"name": meaning.name or meaning.key, **facts, **own}, [*told, *lines])


def _summary(values: Sequence[float]) -> dict[str, float | int]:
    """The first and the last value, and the mean of the last quarter."""
    late = values[-max(1, len(values) // 4) :]
    return {"steps": len(values), "first": values[0], "last": values[-1], "last_quarter": sum(late) / len(late)}

"""`lite-selfplay why`, `explain` and `runs`: what is wrong with a run, what a figure means, which runs there are."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lite_selfplay.errors import RunFolderError
from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.games import Game
    from lite_selfplay.runs.report.diagnosis import Diagnosis
    from lite_selfplay.runs.state import RunState

_MARKS = {"wrong": "!", "watch": "?", "normal": "."}
_PREVIEW = 100


def why(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    step: Annotated[
        int | None, typer.Option(help="One step, counted from 1.", show_default="the last quarter", min=1)
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Say in sentences what is wrong with a run, with the evidence and the next command, and what moved it most.

    Looked for: completions that are cut off, nothing well-formed, groups without variance, a KL term that explodes, a
    sampler that is off, numbers that are not finite, and what the game itself declares unhealthy or warned of. The
    bounds are rules of thumb. Before its first step it says what the pre-flight found.
    """
    from lite_selfplay.runs.api import load_run
    from lite_selfplay.runs.folder import as_written
    from lite_selfplay.runs.report.diagnosis import diagnose

    found = diagnose(run, None if step is None else step - 1)
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

    steps = None if found.steps is None else [found.steps[0] + 1, found.steps[1] + 1]
    moved = [dict(row) for row in found.moved_most]
    return {"run": str(run), "steps": steps, "findings": [asdict(cause) for cause in found.causes],
            "moved_most": only_finite(moved), "preflight": list(found.preflight)}  # fmt: skip


def _print_why(title: str, game: "type[Game]", found: "Diagnosis") -> None:
    from lite_selfplay.training.progress import printable

    first, last = found.steps or (-1, -1)
    steps = f"steps {first + 1} to {last + 1}" if last > first else f"step {first + 1}"
    typer.echo(printable(f"{title}, {steps if found.steps else 'before its first step'}:"))
    for cause in found.causes:
        typer.echo(f"\n{_MARKS.get(cause.level, '?')} {printable(cause.sentence)}")
        for name, text in (("evidence", cause.evidence), ("next", cause.next)):
            if text:
                typer.echo(printable(f"    {name}: {text}"))
    if found.moved_most:
        typer.echo("\nthe completions that moved most (by their advantage):")
    for row in found.moved_most:
        about = f"  step {row['step'] + 1}, {row['role']} (seat {row['seat']}), {row.get('problem_id') or 'a problem'}"
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


def explain(
    metric: Annotated[str, typer.Argument(help="A key of metrics.jsonl, such as kl, or a name that a table shows.")],
    run: Annotated[Path | None, typer.Argument(help="A run folder, for its values.")] = None,
    as_json: flags.Json = False,
) -> None:
    """Say what a figure means, which values are healthy, what to change for others, and what this run has."""
    from lite_selfplay.runs.folder import RunFolder, as_written
    from lite_selfplay.runs.report.declared import game_of
    from lite_selfplay.runs.report.meanings import find_meaning, values_of

    if run is None:
        meaning, values = find_meaning(metric), None
    else:
        folder = RunFolder.open(run)
        with as_written(run):
            meaning = find_meaning(metric, game_of(folder)[0])
            values = values_of(meaning, folder.metrics())
    facts = {key: getattr(meaning, key) for key in ("key", "part", "meaning", "healthy", "change")}
    shown = {"name": meaning.key if meaning.figure is None else meaning.figure.name, **facts}
    if as_json:
        own = None if values is None else {name or "run": _summary(each) for name, each in values.items()}
        flags.echo_json(shown if own is None else {**shown, "run": str(run), "values": own})
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


def runs(
    folder: Annotated[Path, typer.Argument(help="A folder of run folders.")] = Path("runs"),
    as_json: flags.Json = False,
) -> None:
    """List run folders: game, model, step, state, best checkpoint, size, and the command that goes on.

    A glance alone: `lite-selfplay train --resume RUN` checks whether one can be resumed.
    """
    from lite_selfplay.runs.state import run_folders, state_of

    found = []
    for path in run_folders(folder):
        try:
            found.append(state_of(path))
        except RunFolderError:  # it went away meanwhile
            continue
    if as_json:
        flags.echo_json([{**asdict(state), "path": str(state.path)} for state in found])
        return
    if not found:
        typer.echo(f"no run folders in {folder}: `lite-selfplay train` makes one")
        return
    _print_runs(found)


def _print_runs(found: "Sequence[RunState]") -> None:
    from lite_selfplay.evaluation.tables import as_text
    from lite_selfplay.training.progress import printable

    rows = [
        [
            state.path.name,
            state.game,
            state.model,
            f"{state.step}/{state.steps}",
            state.stage,
            state.best,
            _megabytes(state.size),
        ]
        for state in found
    ]
    typer.echo(printable(as_text(["run", "game", "model", "step", "state", "best", "size"], rows)))
    for state in found:
        if state.resume or state.problem:
            typer.echo(printable(f"{state.path.name}: {state.resume or state.problem}"))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

"""`lite-selfplay report`: what happened in a run, read from its folder."""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.games import Game
    from lite_selfplay.games.presentation import Transcript
    from lite_selfplay.runs.api import Run


class Rule(StrEnum):
    """How transcripts are chosen: `lite_selfplay.runs.report.transcripts.RULES` says what each name means."""

    KINDS = "kinds"
    FIRST = "first"
    SPREAD = "spread"


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    duels: Annotated[int, typer.Option(help="How many transcripts to show.", min=0)] = 1,
    choose: Annotated[
        Rule,
        typer.Option(help="The latest of each kind in turn, the first of the run, or one each of evenly spread steps."),
    ] = Rule.KINDS,
    figures: Annotated[bool, typer.Option("--figures", help="Draw the run's curves, which needs matplotlib.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the transcripts there, as Markdown; with --figures, the folder of these.",
            metavar="FILE.md|DIR",
            show_default="with --figures RUN/figures",
        ),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Print a run's first and last steps, its evaluations, and transcripts: completions that belong together.

    The game says which those are and of what kind: a draft and its challenge, where the challenge turned a wrong draft
    into a right answer, say, or a question and an answer that agrees with its label.

    With --figures: rewards, accuracies, lengths, pass@1 (learning.png), the game's own figures (the-game.png), KL,
    truncation and the rest of the training's health (health.png), over the steps.
    """
    from lite_selfplay.runs.api import load_run
    from lite_selfplay.runs.folder import as_written
    from lite_selfplay.runs.report.drawn import save_figures

    if out is not None and os.path.lexists(out) and not (figures and out.is_dir()):
        raise ConfigError(f"{out} exists already: choose another --out")
    folder = load_run(run)
    drawn = save_figures(run, out) if figures else []
    with as_written(run):
        _report(folder, duels, choose, None if figures else out, drawn, as_json)


def _report(folder: "Run", duels: int, choose: Rule, out: Path | None, drawn: list[Path], as_json: bool) -> None:
    from lite_selfplay.runs.folder import BUDGET
    from lite_selfplay.runs.report.transcripts import choose_transcripts, transcripts_markdown
    from lite_selfplay.tasks.files import read_json
    from lite_selfplay.training.progress import printable

    rows = folder.metrics_rows()
    game, warning = folder.game()
    title = f"{folder.config.game.label} on {folder.config.model.name}"
    if warning:
        typer.echo(f"warning: {warning}", err=True)
    chosen = choose_transcripts(game, folder.episodes(), duels, choose.value) if duels else []
    if out is not None:
        _write(out, transcripts_markdown(game, f"Transcripts of {title}, {len(rows)} steps", chosen, choose.value))
    if as_json:
        flags.echo_json({**_to_json(folder, rows, chosen), "figures": [str(path) for path in drawn]})
        return
    typer.echo(f"{title}: {len(rows)} steps in {folder.path}")
    for row in rows[:1] + rows[1:][-1:]:
        _print_step(game, row)
    _print_evaluations(folder)
    if out is not None:
        typer.echo(f"\nwrote {len(chosen)} transcripts to {out}")
    else:
        for number, transcript in enumerate(chosen, 1):
            _print_transcript(game, number, transcript)
    if drawn:
        typer.echo(f"\nfigures: {', '.join(map(str, drawn))}")
    typer.echo("\nadapters, which plain PEFT loads: " + ", ".join(str(path) for path in folder.seats.values()))
    if os.path.isfile(folder.path / BUDGET) and (outcome := read_json(folder.path / BUDGET).get("outcome")):
        typer.echo(printable(str(outcome)))


def _to_json(run: "Run", rows: Sequence[Mapping[str, Any]], chosen: "Sequence[Transcript]") -> dict[str, Any]:
    """The report as JSON: the objects that the run's files hold, and the transcripts with their kinds."""
    return {
        "run": str(run.path),
        "game": run.config.game.name,
        "model": run.config.model.name,
        "steps": len(rows),
        "first_step": rows[0] if rows else None,
        "last_step": rows[-1] if rows else None,
        "evaluations": run.evaluations(),
        "later_evaluations": run.later_evaluations(),
        "transcripts": [{"kind": one.kind, "problem": one.subject, "completions": one.rows} for one in chosen],
        "adapters": {seat: str(path) for seat, path in run.seats.items()},
    }


def _print_step(game: "type[Game]", row: Mapping[str, Any]) -> None:
    from lite_selfplay.runs.report.steps import stream_words

    for role, stream in row["streams"].items():
        if not stream["completions"]:
            continue
        figures = stream_words(game, role, stream, verbose=True)
        typer.echo(f"  step {row['step']}: {role} (seat {stream['seat']}): {', '.join(figures)}")


def _print_evaluations(run: "Run") -> None:
    """The moments of training side by side, then what `lite-selfplay eval` measured."""
    from lite_selfplay.evaluation.tables import as_text, change, comparison, headline

    if moments := run.evaluations():
        tasks = list(moments.values())[-1]["tasks"]
        typer.echo(f"\nheld-out problems of {tasks}, pass@1 with 95% intervals:")
        typer.echo(as_text(*comparison(moments)))
        if changed := change(moments):
            typer.echo(changed)
    if later := run.later_evaluations():
        typer.echo("\nmeasured with `lite-selfplay eval`, pass@1:")
    for name, result in later.items():
        typer.echo(f"  {name}: {headline(result)}")


def _write(path: Path, text: str) -> None:
    from lite_selfplay.tasks.files import write_errors

    with write_errors(path, ConfigError):
        path.write_text(text, encoding="utf-8")


def _print_transcript(game: "type[Game]", number: int, transcript: "Transcript") -> None:
    from lite_selfplay.runs.report.transcripts import earned
    from lite_selfplay.training.progress import printable

    title = f"step {transcript.step}, problem {printable(transcript.subject)}: {transcript.kind}"
    typer.echo(f"\n== transcript {number}, {title}")
    for row in transcript.rows:
        typer.echo(f"-- {row['role']} (seat {row['seat']}) was asked:\n{_indent(printable(row['prompt']))}")
        judged = f"{printable(game.verdict(row))}{earned(row)}"
        typer.echo(f"-- and answered, {judged}:\n{_indent(printable(row['text']))}")


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines() or ["(nothing)"])

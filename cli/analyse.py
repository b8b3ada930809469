"""`lite-selfplay analyse`: how runs went over their steps, as tables and figures."""

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.games.studies import Study, Window
    from lite_selfplay.runs.report.analysis import Analysis

FOLDER = "figures"


class Format(StrEnum):
    """What figures are saved as."""

    PNG = "png"
    SVG = "svg"


def analyse(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders; several lie over each other in figures.", metavar="RUN")
    ],
    windows: Annotated[int, typer.Option(help="Columns of the tables: the run in so many parts.", min=1, max=50)] = 6,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the figures.", metavar="D", show_default="RUN/figures, of one run"),
    ] = None,
    kind: Annotated[Format, typer.Option("--format", help="What figures are saved as.")] = Format.PNG,
    figures: Annotated[bool, typer.Option(help="Draw figures at all.")] = True,
    references: Annotated[
        Path | None,
        typer.Option(
            help="A .jsonl file of true answers to questions of the run's own, to check its labels by.",
            metavar="FILE",
        ),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Show how runs went: each role's rewards and accuracies, the game's own figures, evaluations, over the steps.

    Then come the studies of the game's paper: are the labels of its own questions
    right, how hard are these and what about, how different are they; how long
    are answers by the draft that they read.

    A column of a table is a window of steps. Shares are over all completions,
    questions or groups of a window. Figures hold the same, step by step; they
    need matplotlib, an extra: pip install "lite-selfplay[plots]".

    Examples:

      lite-selfplay analyse runs/sqlm-smollm2-135m-20260101-120000

      lite-selfplay analyse runs/first runs/second --out comparison --format svg

      lite-selfplay analyse runs/sqlm --no-figures --references answers.jsonl
    """
    from lite_selfplay.runs.folder import as_written
    from lite_selfplay.runs.report.analysis import analyse as read
    from lite_selfplay.runs.report.analysis.references import read_references

    if out is not None and os.path.lexists(out) and not os.path.isdir(out):
        raise ConfigError(f"{out} is a file: --out names the folder of the figures")
    known = {} if references is None else read_references(references)
    found = [read(run, known) for run in dict.fromkeys(runs)]
    with as_written(found[0].path):
        _analyse(found, windows, out, kind, figures, as_json)


def _analyse(
    found: "Sequence[Analysis]", windows: int, out: Path | None, kind: Format, figures: bool, as_json: bool
) -> None:
    from lite_selfplay.runs.report.analysis import to_json

    for warning in filter(None, (run.without_game for run in found)):
        typer.echo(f"warning: {warning}", err=True)
    paths, hint = _draw(found, windows, out, kind) if figures else ([], "")
    if as_json:
        analyses = [to_json(run, run.windows(windows)) for run in found]
        flags.echo_json({"runs": analyses, "figures": [str(path) for path in paths]})
        return
    for number, run in enumerate(found):
        _print_run(run, windows, first=not number)
    if paths:
        typer.echo(f"\nfigures: {', '.join(str(path) for path in paths)}")
    if hint:
        typer.echo(f"\n{hint}")


def _draw(found: "Sequence[Analysis]", windows: int, out: Path | None, kind: Format) -> tuple[list[Path], str]:
    """The figures' paths, and why there are none."""
    from lite_selfplay.runs.report.analysis.figures import HOW_TO_DRAW, can_draw, save_figures

    if not can_draw():
        return [], HOW_TO_DRAW
    if out is None and len(found) > 1:
        return [], "figures of several runs are drawn into the folder that --out names"
    return save_figures(found, out or found[0].path / FOLDER, kind.value, windows), ""


def _print_run(run: "Analysis", windows: int, *, first: bool) -> None:
    from lite_selfplay.runs.report.analysis import moments_table, part_table
    from lite_selfplay.training.progress import printable

    steps, shown = len(run.steps), run.windows(windows)
    title = f"{run.game} on {run.model}: {steps} step{'s' if steps > 1 else ''} in {run.path}"
    typer.echo(printable(title if first else f"\n{title}"))
    for part in run.parts:
        _print_table(part, *part_table(run, part, shown))
    if run.moments:
        tasks = dict.fromkeys(f"{moment.problems} of {moment.tasks}" for moment in run.moments)
        _print_table(f"held-out problems ({', '.join(tasks)}), pass@1 with 95% intervals", *moments_table(run))
    if run.recorded < run.spoken:
        held = f"{run.recorded} of {run.spoken} steps"
        typer.echo(f"\nepisodes.jsonl holds the completions of {held}: reasons and studies are of these")
    if run.analysts and not run.observations:
        typer.echo("\nno studies: episodes.jsonl holds nothing that this game's are about")
    for study in run.studies(shown):
        _print_study(study, shown)
    if run.warnings:
        typer.echo("\nwarnings, the last of each kind:")
    for sentence, count in run.warnings.items():
        typer.echo(f"  at {count} step{'s' if count > 1 else ''}: {printable(sentence)}")


def _print_study(study: "Study", windows: "Sequence[Window]") -> None:
    from lite_selfplay.games.studies import drawn
    from lite_selfplay.training.progress import printable

    _print_table(study.title, study.columns, study.rows)
    plane = drawn(study.points, windows)
    if plane:
        typer.echo("\n".join(["the plane; a mark is a window, * several of them:", *plane]))
    for note in study.notes:
        typer.echo(printable(f"  {note}"))


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of rich's where stdout is a terminal, plain text elsewhere."""
    from lite_selfplay.evaluation.tables import as_text
    from lite_selfplay.training.progress import printable

    columns, rows = [printable(cell) for cell in columns], [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        typer.echo(f"\n{printable(title)}\n{as_text(columns, rows)}")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=Text(printable(title), "bold"), title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)

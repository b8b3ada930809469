"""`lite-selfplay arena`: the base and the seats of a run's checkpoints meet on held-out problems."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.runs.arena import Arena, Table


def arena(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks", "-t", help="Held-out problems.", metavar="T", show_default="what the run is measured on"
        ),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(help="Steps separated by commas, or all.", metavar="N,...", show_default="the first and the last"),
    ] = None,
    limit: Annotated[int, typer.Option(help="Problems that every two contestants meet on.", min=1)] = 50,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.6,
    seed: Annotated[int, typer.Option(help="Which problems and which samples.", min=0)] = 0,
    figure: Annotated[bool, typer.Option(help="Draw the heat map.")] = True,
    suffix: Annotated[Literal["png", "svg"], typer.Option("--format", help="Of the heat map.")] = "png",
    trust_remote_code: flags.TrustRemoteCode = None,
    unsafe_code: flags.UnsafeCode = None,
    as_json: flags.Json = False,
) -> None:
    """Let the base and the seats of a run, as they were in its checkpoints, meet on held-out problems.

    In a game whose seats read each other's drafts (agon), a duel is that: one drafts, the other reads what it may see
    of the draft and answers, and who is right alone wins; every two meet in both orders. In other games both answer by
    themselves. A share is given with its 95% interval (Clopper-Pearson) and the number of duels that one of two won.

    A call that was stopped goes on where it was when it is given again. Results are kept in RUN/arena/.

    Examples:

      lite-selfplay arena runs/agon-tiny-20260101-120000 --limit 20

      lite-selfplay arena runs/agon --checkpoints 0,20,40 --tasks gsm8k
    """
    from lite_selfplay.runs.arena import hold
    from lite_selfplay.runs.report.drawn import HOW_TO_DRAW, can_draw
    from lite_selfplay.training.progress import PlainProgress

    progress = PlainProgress(lambda line: typer.echo(line, err=True))
    found, written = hold(
        run,
        tasks=tasks,
        checkpoints=checkpoints,
        limit=limit,
        seed=seed,
        temperature=temperature,
        trust_remote_code=bool(trust_remote_code),
        unsafe_code=bool(unsafe_code),
        progress=progress,
    )
    progress.say(f"written: {written}")
    if figure and can_draw():
        from lite_selfplay.runs.report.heat_map import save_heat_map

        save_heat_map(found, written.with_suffix(f".{suffix}"))
        progress.say(f"written: {written.with_suffix(f'.{suffix}')}")
    elif figure:
        progress.say(HOW_TO_DRAW)
    if as_json:
        flags.echo_json(found.to_json())
        return
    _print(found)


def _print(found: "Arena") -> None:
    from lite_selfplay.runs.arena import summary
    from lite_selfplay.training.progress import printable

    rule = "the second reads the first's draft" if found.drafts else "both answer alone"
    typer.echo(printable(f"{found.n} problems of {found.tasks}; {rule}\n"))
    typer.echo("the share of decided duels that the row won, with its 95% interval:")
    _table(found.win_table())
    if found.drafts:
        typer.echo("who converts whom: wrong drafts made right (+), right ones made wrong (-):")
        _table(found.conversion_table())
    typer.echo(printable(summary(found)))


def _table(table: "Table") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lite_selfplay.training.progress import printable

    columns, rows = table
    shown = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        shown.add_column(Text(printable(column)), justify="right" if number else "left")
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    # Wide enough for every column where stdout is a file or a pipe.
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 240, highlight=False).print(shown)

"""`lite-selfplay report`: what happened in a run, read from its folder."""

import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay.training.progress import printable
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
    from lite_selfplay.runs.folder import BUDGET, as_written
    from lite_selfplay.runs.report.transcripts import choose_transcripts, transcripts_markdown
    from lite_selfplay.tasks.files import read_json, write_errors

    if out is not None and os.path.lexists(out) and not (figures and out.is_dir()):
        raise ConfigError(f"{out} exists already: choose another --out")
    folder = load_run(run)
    drawn = []
    if figures:
        from lite_selfplay.extras.figures import save_figures

        drawn = [*map(str, save_figures(run, out))]
    page = None if figures else out
    with as_written(run):
        rows, (game, warning) = folder.metrics_rows(), folder.game()
        title = f"{folder.config.game.label} on {folder.config.model.name}"
        if warning:
            flags.to_stderr(f"warning: {warning}")
        chosen = choose_transcripts(game, folder.episodes(), duels, choose.value) if duels else []
        if page is not None:
            text = transcripts_markdown(game, f"Transcripts of {title}, {len(rows)} steps", chosen, choose.value)
            with write_errors(page, ConfigError):
                page.write_text(text, encoding="utf-8")
        about = {
            "run": str(folder.path),
            "game": folder.config.game.name,
            "model": folder.config.model.name,
            "steps": len(rows),
            "first_step": rows[0] if rows else None,
            "last_step": rows[-1] if rows else None,
            "evaluations": folder.evaluations(),
            "later_evaluations": folder.later_evaluations(),
            "transcripts": [{"kind": one.kind, "problem": one.subject, "completions": one.rows} for one in chosen],
            "adapters": {seat: str(path) for seat, path in folder.seats.items()},
            "figures": drawn,
        }
        transcripts = [f"\nwrote {len(chosen)} transcripts to {page}"] if page else _transcripts(game, chosen)
        adapters = f"\nadapters, which plain PEFT loads: {', '.join(about['adapters'].values())}"
        held = read_json(run / BUDGET).get("outcome") if os.path.isfile(run / BUDGET) else None
        end = [*([f"\nfigures: {', '.join(drawn)}"] if drawn else []), adapters, *([str(held)] if held else [])]
        flags.show(as_json, about, [*_lines(folder, game, f"{title}: {len(rows)} steps"), *transcripts, *end])


def _lines(run: "Run", game: "type[Game]", title: str) -> Iterator[str]:
    """The first and the last step, the moments of training side by side, and what `lite-selfplay eval` measured."""
    from lite_selfplay.evaluation.result import as_text, change, comparison, headline
    from lite_selfplay.runs.report.steps import stream_words

    rows = run.metrics_rows()
    yield f"{title} in {run.path}"
    for row in rows[:1] + rows[1:][-1:]:
        for role, stream in row["streams"].items():
            if stream["completions"]:
                words = ", ".join(stream_words(game, role, stream, verbose=True))
                yield f"  step {row['step']}: {role} (seat {stream['seat']}): {words}"
    if moments := run.evaluations():
        tasks = list(moments.values())[-1]["tasks"]
        yield f"\nheld-out problems of {tasks}, pass@1 with 95% intervals:\n{as_text(*comparison(moments))}"
        yield from filter(None, [change(moments)])
    if later := run.later_evaluations():
        yield "\nmeasured with `lite-selfplay eval`, pass@1:"
    yield from (f"  {name}: {headline(result)}" for name, result in later.items())


def _transcripts(game: "type[Game]", chosen: "Sequence[Transcript]") -> Iterator[str]:
    from lite_selfplay.runs.report.transcripts import earned

    def indented(text: str) -> str:
        return indent(printable(text).strip() or "(nothing)", "    ", lambda line: True)

    for number, transcript in enumerate(chosen, 1):
        title = f"step {transcript.step}, problem {transcript.subject}: {transcript.kind}"
        yield f"\n== transcript {number}, {title}"
        for row in transcript.rows:
            yield f"-- {row['role']} (seat {row['seat']}) was asked:\n{indented(row['prompt'])}"
            yield f"-- and answered, {game.verdict(row)}{earned(row)}:\n{indented(row['text'])}"

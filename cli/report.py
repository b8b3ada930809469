"""`lite-selfplay report` and `why`: a run's results, and their causes, read from its folder."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Literal

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay.evaluation.result import as_text, change, comparison, headline
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Transcript, value_in_words
from lite_selfplay.runs.folder import ADAPTERS, BUDGET, RunFolder, as_written, ignored
from lite_selfplay.runs.report.closing import counted
from lite_selfplay.runs.report.diagnosis import Diagnosis, diagnose
from lite_selfplay.runs.report.figures import find_meaning, game_of, values_of
from lite_selfplay.runs.report.pages import choose_transcripts, earned, transcripts_markdown
from lite_selfplay.runs.report.step_rows import only_finite, stream_words
from lite_selfplay.tasks.files import read_json, write_errors
from lite_selfplay.training.progress import printable
from lite_selfplay_cli import flags


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    duels: Annotated[int, typer.Option(help="How many transcripts to show.", min=0)] = 1,
    choose: Annotated[
        Literal["kinds", "first", "spread"],
        typer.Option(help="kinds: the latest of each kind; first: the run's first; spread: from evenly spread steps."),
    ] = "kinds",
    figures: Annotated[bool, typer.Option("--figures", help="Draw the run's curves (needs matplotlib).")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the transcripts to this Markdown file; with --figures, the folder for figures.",
            metavar="FILE.md|DIR",
            show_default="with --figures RUN/figures",
        ),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Print a run's first and last steps, its evaluations, and transcripts: completions that belong together.

    The game groups completions into transcripts and names their kind: a draft and a challenge that corrects it, for
    example, or a question and an answer that agrees with its label.

    --figures draws curves over the steps: rewards, accuracies, lengths and pass@1 (learning.png), the game's own
    figures (the-game.png), KL, truncation and other signs of sound training (health.png).
    """
    if out is not None and os.path.lexists(out) and not (figures and out.is_dir()):
        raise ConfigError(f"{out} exists already: choose another --out")
    opened = RunFolder.open(run)
    config = opened.config()
    drawn = []
    if figures:
        from lite_selfplay.extras.charts import save_figures

        drawn = [*map(str, save_figures(run, out))]
    page = None if figures else out
    with as_written(run):
        first, last, count = None, None, 0
        for last in opened.steps():  # there may be a million
            first, count = first or last, count + 1
        (game, warning), rewards = game_of(opened), printable(opened.rewards())
        title = f"{config.game.label} on {config.model.name}"
        if warning:
            warn(warning)
        chosen = choose_transcripts(game, opened.episodes(), duels, choose) if duels else []
        if page is not None:
            text = transcripts_markdown(game, f"Transcripts of {title}, {counted(count, 'step')}", chosen, choose)
            with write_errors(page, ConfigError):
                page.write_text(text, encoding="utf-8")
        moments, later = opened.evaluations(warn), opened.later_evaluations(ignored)
        about = {
            "run": str(run),
            "game": config.game.name,
            "model": config.model.name,
            "rewards": rewards,
            "steps": count,
            "first_step": first,
            "last_step": last,
            "evaluations": moments,
            "later_evaluations": later,
            "transcripts": [{"kind": one.kind, "problem": one.subject, "completions": one.rows} for one in chosen],
            "adapters": {seat: str(run / ADAPTERS / seat) for seat in config.seats},
            "figures": drawn,
        }
        transcripts = [f"\nwrote {len(chosen)} transcripts to {page}"] if page else _transcripts(game, chosen)
        adapters = f"\nadapters (plain PEFT loads them): {', '.join(about['adapters'].values())}"
        outcome = read_json(run / BUDGET).get("outcome") if os.path.isfile(run / BUDGET) else None
        lines = [*_lines(game, f"{title}: {counted(count, 'step')} in {run}", rewards, about), *transcripts]
        lines += [f"\nfigures: {', '.join(drawn)}"] if drawn else []
        flags.show(as_json, about, [*lines, adapters, *([str(outcome)] if outcome else [])])


def warn(sentence: str) -> None:
    flags.to_stderr(f"warning: {sentence}")


def _lines(game: "type[Game]", title: str, rewards: str, about: Mapping[str, Any]) -> Iterator[str]:
    """The rewards, the first and last step, the evaluations during training, and those of `eval`."""
    first, last, moments, later = (
        about[key] for key in ("first_step", "last_step", "evaluations", "later_evaluations")
    )
    yield title
    if rewards:
        yield f"  rewards: {rewards}"
    for row in [each for each in (first, None if last is first else last) if each]:
        for role, stream in row["streams"].items():
            if stream["completions"]:
                words = ", ".join(stream_words(game, role, stream, verbose=True))
                yield f"  step {row['step']}: {role} (seat {stream['seat']}): {words}"
    if moments:
        tasks = list(moments.values())[-1]["tasks"]
        yield f"\nheld-out problems of {tasks}, pass@1 with 95% intervals:\n{as_text(*comparison(moments))}"
        yield from filter(None, [change(moments)])
    if later:
        yield "\nmeasured with `lite-selfplay eval`, pass@1:"
    yield from (f"  {name}: {headline(result)}" for name, result in later.items())


def _transcripts(game: "type[Game]", chosen: "Sequence[Transcript]") -> Iterator[str]:
    def indented(text: str) -> str:
        return indent(printable(text).strip() or "(nothing)", "    ", lambda line: True)

    for number, transcript in enumerate(chosen, 1):
        title = f"step {transcript.step}, problem {transcript.subject}: {transcript.kind}"
        yield f"\n== transcript {number}, {title}"
        for row in transcript.rows:
            yield f"-- {row['role']} (seat {row['seat']}) was asked:\n{indented(row['prompt'])}"
            yield f"-- its answer, {game.verdict(row)}{earned(row)}:\n{indented(row['text'])}"


_MARKS = {"wrong": "! ", "normal": ""}


def why(
    what: Annotated[
        str,
        typer.Argument(
            help="A run folder, or a metric: a key of metrics.jsonl, such as kl, or the name of a chart.",
            metavar="RUN|KEY",
        ),
    ],
    run: Annotated[Path | None, typer.Argument(help="After a metric: the run whose values to show.")] = None,
    step: Annotated[
        int | None, typer.Option(help="One step, counted from 1.", show_default="the last quarter", min=1)
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Say what is wrong with a run, with evidence and the next command, and list its largest advantages.

    Checks for truncated completions, missing answer format, groups without variance, an exploding KL term, a learning
    rate that is too high, held-out accuracy below that before training, a sampler that does not match the model,
    numbers that are not finite, and the game's own warnings and bounds. All bounds are rules of thumb. Before the
    run's first step it shows what the pre-flight (small trial steps) found.

    For a metric: its meaning, its healthy values, how to change it, and the run's values.

    \b
    Examples:
      lite-selfplay why runs/agon-tiny-20260101-120000
      lite-selfplay why kl runs/agon-tiny-20260101-120000
    """
    if run is None and (os.path.lexists(what) or os.sep in what):
        _why(Path(what), step, as_json)
    elif step is not None:
        raise ConfigError("--step works only with a run folder, not with a metric")
    else:
        _explain(what, run, as_json)


def _why(run: Path, step: int | None, as_json: bool) -> None:
    found, folder = diagnose(run, step), RunFolder.open(run)
    with as_written(run):
        (game, warning), config = game_of(folder), folder.config()
        if warning:
            warn(warning)
        about = {
            "run": str(run),
            "steps": found.steps,
            "findings": [asdict(cause) for cause in found.causes],
            "moved_most": only_finite(found.moved_most),
            "preflight": found.preflight,
        }
        flags.show(as_json, about, _findings(f"{config.game.label} on {config.model.name}", game, found))


def _findings(title: str, game: "type[Game]", found: "Diagnosis") -> Iterator[str]:
    first, last = found.steps or (0, 0)
    steps = f"steps {first} to {last}" if last > first else f"step {first}"
    yield f"{title}, {steps if found.steps else 'before its first step'}:"
    for cause in found.causes:
        yield f"\n{_MARKS.get(cause.level, '? ')}{cause.sentence}"
        yield from (
            f"    {name}: {text}" for name, text in (("evidence", cause.evidence), ("next", cause.next)) if text
        )
    if found.moved_most:
        yield "\nthe completions with the largest advantages:"
    for row in found.moved_most:
        about = f"  step {row['step']}, {row['role']} (seat {row['seat']}), {row.get('problem_id') or 'a problem'}"
        yield f"{about}: {game.verdict(row)}, advantage {row['advantage']:+.2f}"
        yield f"    {flags.short(str(row['text']), 100)}"
    if found.preflight:
        yield "\nbefore the first step:"
    yield from (f"  {line}" for line in found.preflight)


def _explain(figure: str, run: Path | None, as_json: bool) -> None:
    own: dict[str, Any] = {}
    if run is None:
        meaning, lines = find_meaning(figure), list[str]()
    else:
        folder = RunFolder.open(run)
        with as_written(run):
            meaning = find_meaning(figure, game_of(folder)[0])
            found = {name: _summary(each) for name, each in values_of(meaning, folder.steps()).items()}
        own = {"run": str(run), "values": {name or "run": summary for name, summary in found.items()}}
        lines = [] if found else ["this run: no value"]
        for name, summary in found.items():
            shown = {key: value_in_words(summary[key], meaning.unit) for key in ("first", "last_quarter", "last")}
            words = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shown.items())
            lines.append(f"this run{f', {name}' if name else ''}: {words}; {counted(int(summary['steps']), 'step')}")
    facts = {key: getattr(meaning, key) for key in ("key", "part", "meaning", "healthy", "change")}
    told = [
        f"{meaning.key}: {meaning.meaning}",
        f"healthy: {meaning.healthy}",
        *([f"to change: {meaning.change}"] if meaning.change else []),
    ]
    flags.show(as_json, {"name": meaning.name or meaning.key, **facts, **own}, [*told, *lines])


def _summary(values: Sequence[float]) -> dict[str, float | int]:
    """The number of values, the first, the last, and the mean of the last quarter."""
    late = values[-max(1, len(values) // 4) :]
    return {"steps": len(values), "first": values[0], "last": values[-1], "last_quarter": sum(late) / len(late)}

"""`lite-selfplay eval`: how well a run's seats, or a base model, solve problems they have not seen."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lite_selfplay.config import KEYS
from lite_selfplay.errors import ConfigError, RequestError
from lite_selfplay.training.ranks import here
from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.evaluation import Evaluation
    from lite_selfplay.evaluation.comparisons import Arm, Comparison

_EXCERPT = 600
"""Characters of a completion that are shown for reading; --json has all."""

DataDir = flags.option("data_dir", KEYS["tasks.data_dir"])


def evaluate(
    target: Annotated[
        str, typer.Argument(help="A run folder, or a base model by any name that train takes.", metavar="RUN|M")
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks", "-t", help="Benchmarks or tasks by name, or .jsonl files, separated by commas.", metavar="T,..."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="single, cascade, self-refine, self-cascade, moa, vote, swap-seats, critic, search, versus or a "
            "game's own; several separated by commas.",
            metavar="MODE,...",
            show_default="the game's; single for a base model",
        ),
    ] = None,
    seats: Annotated[
        str | None,
        typer.Option(
            help="Who is measured, each against each other: base, A, and A@20 or A@best as in a checkpoint.",
            metavar="NAME,...",
            show_default="the game's",
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="A paper's benchmarks, samples and sampling: pasodoble, cpmobius, ... (see below)."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Problems of each task.", show_default="all of data, 100 of a task made by rule")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Answers to each problem.", show_default="the benchmark's, at least the largest k"),
    ] = None,
    k: Annotated[
        str | None, typer.Option("--k", help="Give pass@k, mean@k and maj@k for these k: 1,4.", metavar="K,...")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(help="Worked examples before each problem, 0 to 5: for base models.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.", show_default="0.6; 1 in versus")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Nucleus sampling; 1 switches it off.", show_default="0.95; 1 in versus")
    ] = None,
    max_completion_tokens: Annotated[
        int | None, typer.Option(help="Cap of a completion.", show_default="the run's; for a base model the task's")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which problems and which samples. The same seed makes pairs.")] = 0,
    precision: Annotated[
        str | None, typer.Option(help="4bit, bf16, fp16 or fp32.", show_default="the run's; 4bit for a base model")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Measure this one as well, and compare problem by problem.", metavar="RUN|M")
    ] = None,
    disagreements: Annotated[
        int | None,
        typer.Option(help="List so many problems on which two modes, seats or runs differ.", min=0, metavar="N"),
    ] = None,
    trust_remote_code: flags.TrustRemoteCode = None,
    unsafe_code: flags.UnsafeCode = None,
    data_dir: DataDir = None,
    as_json: flags.Json = False,
) -> None:
    """Measure a run or a base model on benchmarks: pass@1 with its interval, pass@k, votes, lengths.

    single: each seat answers every problem by itself. cascade: each seat also reads
    the other's answer, its final result withheld, and answers in its turn (A->B: A
    drafts, B answers); one seat reads its own. self-refine, self-cascade: each seat
    reads its own former attempt, in the words of that game, or in the challenger's.
    moa: two independent answers, each refined after reading the other. vote: what
    most of several answers say. swap-seats: every seat drafts for every seat.
    versus: matches against opponents by rule and against each other, sides swapped;
    a run of such a game needs no --tasks, and --limit counts matches.
    critic: seats judge labelled steps (ProcessBench, PRM800K, DeltaBench, or worked
    solutions). search: a solver's steps, each checked by a critic.

    Tasks made by rule give problems that training never saw; problems of a run's
    own training data are left out, and those that only look alike are named. The
    same seed gives every seat, run, mode and moment the same problems and the same
    randomness.

    A call that was stopped goes on where it was when it is given again. The results
    of a run are kept in RUN/eval/, those of a base model are not (--json prints them).

    Examples:

      lite-selfplay eval smollm2-135m --tasks mawps,svamp,gsm8k --limit 40 --mode single,moa,vote --k 1,4

      lite-selfplay eval runs/agon-tiny-20260101-120000 --tasks letters --mode single --samples 4 --json

      lite-selfplay eval runs/agon --tasks gsm8k --seats A@20,B@40,base

      lite-selfplay eval runs/agon --tasks gsm8k --against runs/grpo --disagreements 5

      lite-selfplay eval Qwen3-0.6B --suite agon-transfer --data-dir data
    """
    from lite_selfplay.evaluation.suites import find_suite
    from lite_selfplay.runs.evaluating import Settings, evaluate_all
    from lite_selfplay.runs.folder import CONFIG, RunFolder
    from lite_selfplay.tasks import split_specs
    from lite_selfplay.training.progress import PlainProgress

    chosen = None if suite is None else find_suite(suite)
    matches = mode == "versus"
    if tasks is None and chosen is None and (Path(target) / CONFIG).is_file():
        played = RunFolder.open(Path(target)).config()
        if played.tasks.train is None:  # a game that draws no problems is its own task
            tasks, matches = played.game.name, True
    if (tasks is None) == (chosen is None):
        raise RequestError("an evaluation takes --tasks, or --suite in its place: give one of them")
    asked = list(chosen.samples) if chosen else split_specs(tasks or "")
    settings = Settings(
        limit=limit,
        samples=samples if samples is not None or chosen is None else chosen.samples,
        ks=_numbers("--k", k),
        shots=shots if shots is not None else chosen.shots_for(target) if chosen else 0,
        temperature=temperature
        if temperature is not None
        else chosen.temperature
        if chosen
        else 1.0
        if matches
        else 0.6,
        top_p=top_p if top_p is not None else chosen.top_p if chosen else 1.0 if matches else 0.95,
        max_completion_tokens=max_completion_tokens or (chosen.max_completion_tokens if chosen else None),
        seed=seed,
        seats=None if seats is None else tuple(dict.fromkeys(name.strip() for name in seats.split(","))),
        data_dir=data_dir,
    )
    modes: list[str | None] = (
        [name.strip() for name in mode.split(",")] if mode else [*(chosen.modes if chosen else ())]
    )
    progress = PlainProgress(lambda line: typer.echo(line, err=True))
    found: list[tuple[str, Evaluation]] = []
    for each in dict.fromkeys(filter(None, [target, against])):
        made = evaluate_all(
            each,
            asked,
            modes or [None],
            settings,
            precision=precision,
            trust_remote_code=bool(trust_remote_code),
            unsafe_code=bool(unsafe_code),
            progress=progress,
        )
        found += [(each, evaluation) for evaluation in made]
    if not here().main:
        return
    pairs = _compared(found, against, disagreements, seats)
    if as_json:
        flags.echo_json(_as_json(found, pairs, disagreements or 0, chosen))
        return
    for each in dict.fromkeys(name for name, _ in found):
        _print(each if against else "", [evaluation for name, evaluation in found if name == each], chosen)
    _print_comparisons(pairs, disagreements or 0)


def _numbers(flag: str, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"{flag} takes whole numbers separated by commas, such as 1,4, got {text!r}") from None


def _compared(
    found: "list[tuple[str, Evaluation]]", against: str | None, disagreements: int | None, seats: str | None
) -> "list[tuple[Arm, Arm, Comparison]]":
    from lite_selfplay.evaluation.comparisons import compared, met

    if against is None and disagreements is None and seats is None:
        return []
    pairs = compared(found) if against or seats is None else [pair for each in found for pair in met(*each)]
    if not pairs:
        typer.echo(
            "warning: there is nothing to compare: give two modes, a run of two seats, or another run by --against, "
            "that share problems",
            err=True,
        )
    return pairs


def _as_json(found: Any, pairs: Any, listed: int, suite: Any) -> Any:
    """The object that `eval/*.json` holds, for a single evaluation; else all of them, means and comparisons."""
    from lite_selfplay.evaluation.comparisons import disagreements
    from lite_selfplay.evaluation.overview import means

    results = [(target, evaluation.to_json()) for target, evaluation in found]
    if len(results) == 1 and not pairs:
        return results[0][1]
    targets = dict.fromkeys(target for target, _ in results)
    return {
        "evaluations": [{"target": target, **result} for target, result in results],
        "means": [
            {"target": target, **mean}
            for target in targets
            for mean in [
                *means([result for name, result in results if name == target]),
                *(suite.means([result for name, result in results if name == target]) if suite else []),
            ]
        ],
        "comparisons": [
            {**comparison.to_json(), "disagreements": disagreements(first, second, comparison, listed)}
            for first, second, comparison in pairs
        ],
    }


def _print(title: str, evaluations: "list[Evaluation]", suite: Any) -> None:
    """A row for each benchmark, mode, seat and direction, and what was asked of them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lite_selfplay.evaluation.overview import overview
    from lite_selfplay.training.progress import printable

    results = [evaluation.to_json() for evaluation in evaluations]
    columns, rows = overview(results)
    labels = columns.index("pass@1 [95%]")
    table = Table(box=box.SIMPLE_HEAD, title=Text(printable(title), "bold") if title else None, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < labels else "right", no_wrap=number == labels)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    # Wide enough for every column where stdout is a file or a pipe.
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)
    for line in dict.fromkeys(line for evaluation in evaluations for line in _notes(evaluation, len(evaluations) > 1)):
        console.print(Text(printable(line)))
    for line in suite.lines(results) if suite else ():
        console.print(Text(line))


def _notes(evaluation: "Evaluation", several: bool) -> list[str]:
    from lite_selfplay.evaluation.overview import settings_line
    from lite_selfplay.games.presentation import percent

    best, result = evaluation.scores[evaluation.best], evaluation.to_json()
    lines = [settings_line(result)]
    of = f"{evaluation.tasks}, {evaluation.mode}: " if several else ""
    if evaluation.mean_of_directions is not None and len(evaluation.directions) > 1:
        lines.append(
            f"{of}best direction: {evaluation.best}, {percent(best.pass_at_1)}; "
            f"mean of all: {percent(evaluation.mean_of_directions)}"
        )
    for name, score in {**evaluation.seats, **evaluation.directions}.items():
        if score.prompts_too_long:
            lines.append(f"{of}{name}: {score.prompts_too_long} prompts were too long to be read and count as wrong")
    return lines


def _print_comparisons(pairs: "list[tuple[Arm, Arm, Comparison]]", listed: int) -> None:
    """A sentence for each pair of arms, and the problems on which they differ."""
    from lite_selfplay.evaluation.comparisons import disagreements
    from lite_selfplay.training.progress import printable

    for first, second, comparison in pairs:
        typer.echo(f"\n{printable(comparison.sentence())}")
        if listed:
            shown = min(listed, len(comparison.differ))
            typer.echo(f"they differ on {len(comparison.differ)} problems; {shown} of them:")
        for case in disagreements(first, second, comparison, listed):
            typer.echo(
                printable(f"\n--- {case['id']}: {case.get('problem', '')}\n(reference: {case.get('reference')})")
            )
            for name, side in ((comparison.first, case["first"]), (comparison.second, case["second"])):
                given = ", ".join(answer if answer is not None else "-" for answer in side["answers"])
                typer.echo(printable(f"{name}: {_outcome(side['right'])}: {given}"))
                if len(side["texts"]) == 1:
                    typer.echo(printable(_indented(side["texts"][0])))


def _outcome(right: bool | float) -> str:
    return {True: "right", False: "wrong"}[right] if isinstance(right, bool) else f"{right:.0%} right"


def _indented(text: str) -> str:
    """The end of a completion, where its answer stands."""
    text = text.strip()
    text = text if len(text) <= _EXCERPT else f"[...] {text[-_EXCERPT:]}"
    return "\n".join(f"    {line}" for line in text.splitlines())

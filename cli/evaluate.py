"""`lite-selfplay eval`: how well a run's seats, or a base model, solve problems they have not seen."""

from textwrap import indent
from typing import Annotated, Any

import typer

from lite_selfplay.config.layers import declared_by
from lite_selfplay.errors import RequestError
from lite_selfplay.evaluation import Evaluation
from lite_selfplay.evaluation.comparisons import Comparison, compared, disagreements, met
from lite_selfplay.evaluation.result import as_text, means, overview, settings_line
from lite_selfplay.evaluation.suites import Settings, find_suite
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import percent
from lite_selfplay.runs.evaluating import evaluate_all
from lite_selfplay.tasks import split_specs
from lite_selfplay.training.progress import PlainProgress
from lite_selfplay.training.ranks import here
from lite_selfplay_cli import flags

# Characters shown of a completion; --json has all.
_EXCERPT = 600


@flags.takes({key.path: key for key in declared_by(Settings) if key.path != "trained_on"})
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
            "mode of the game; several separated by commas.",
            metavar="MODE,...",
            show_default="the game's; single for a base model",
        ),
    ] = None,
    *,
    given: dict[str, Any],
    suite: Annotated[
        str | None,
        typer.Option(help="A paper's benchmarks, samples and sampling: pasodoble, cpmobius, ... (see below)."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Also measure this one, and compare problem by problem.", metavar="RUN|M")
    ] = None,
    disagreements: Annotated[
        int | None, typer.Option(help="List N problems on which two modes, seats or runs differ.", min=0, metavar="N")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Measure a run or a base model on benchmarks: pass@1 with its interval, pass@k, votes, lengths.

    single: each seat answers every problem alone. cascade: each seat also answers after reading the other's answer
    without its final result (A->B: A drafts, B answers); a single seat reads its own. self-refine: each seat refines
    its own attempt. self-cascade: it checks its attempt, without trusting it, and answers again. moa: two independent
    answers, each refined after reading the other. vote: majority vote over several answers. swap-seats: every seat
    drafts for every seat. versus: matches against rule-based opponents and between seats, with sides swapped; a run of
    such a game needs no --tasks, and --limit counts matches. critic: seats judge labelled steps (ProcessBench, PRM800K,
    DeltaBench, or worked solutions). search: a solver's steps, each checked by a critic.

    Generated tasks give problems that training never saw. Problems of a run's own training data are skipped, and
    similar ones are listed. The same seed gives every seat, run, mode and checkpoint the same problems and the same
    randomness.

    To continue an interrupted evaluation, repeat the command. The results of a run are kept in RUN/eval/; those of a
    base model are not kept (--json prints them).

    \b
    Examples:
      lite-selfplay eval smollm2-135m --tasks mawps,svamp,gsm8k --limit 40 --mode single,moa,vote --k 1,4
      lite-selfplay eval runs/agon-tiny-20260101-120000 --tasks letters --mode single --samples 4 --json
      lite-selfplay eval runs/agon --tasks gsm8k --seats A@20,B@40,base
      lite-selfplay eval runs/agon --tasks gsm8k --against runs/grpo --disagreements 5
      lite-selfplay eval Qwen3-0.6B --suite agon-transfer --data-dir data
    """
    chosen = None if suite is None else find_suite(suite)
    if tasks is not None and chosen is not None:
        raise RequestError("--tasks and --suite exclude each other: give one of them")
    asked = chosen.samples if chosen else [] if tasks is None else split_specs(tasks)
    settings = Settings(**{**(chosen.settings(target) if chosen else {}), **given})
    names = [name.strip() for name in mode.split(",")] if mode else list(chosen.modes if chosen else ())
    found = [
        (each, evaluation)
        for each in dict.fromkeys(filter(None, [target, against]))
        for evaluation in evaluate_all(each, asked, names or [None], settings, progress=PlainProgress(flags.to_stderr))
    ]
    if not here().main:
        return
    pairs = _compared(found, against, disagreements, "seats" in given)
    if as_json:
        flags.echo_json(_as_json(found, pairs, chosen))
        return
    for each in dict.fromkeys(name for name, _ in found):
        _print(each if against else "", [evaluation for name, evaluation in found if name == each], chosen)
    _print_comparisons(pairs)


def _compared(
    found: "list[tuple[str, Evaluation]]", against: str | None, listed: int | None, seats: bool
) -> "list[tuple[Comparison, list[dict[str, Any]]]]":
    """The comparisons, each with up to `listed` problems on which its two sides differ."""
    if against is None and listed is None and not seats:
        return []
    pairs = compared(found) if against or not seats else [pair for each in found for pair in met(*each)]
    if not pairs and not any(find_mode(evaluation.mode).matches for _, evaluation in found):
        flags.to_stderr(
            "warning: nothing to compare: give two modes, a run with two seats, or --against with a run measured on "
            "the same problems"
        )
    return [(it, disagreements(first, second, it, listed or 0)) for first, second, it in pairs]


def _as_json(found: Any, pairs: Any, suite: Any) -> Any:
    """The contents of `eval/*.json` for a single evaluation, else all evaluations, means and comparisons."""
    of = {target: [each.to_json() for name, each in found if name == target] for target, _ in found}
    if len(found) == 1 and not pairs:
        return of[found[0][0]][0]
    return {
        "evaluations": [{"target": target, **result} for target, results in of.items() for result in results],
        "means": [
            {"target": target, **mean}
            for target, results in of.items()
            for mean in [*means(results), *(suite.means(results) if suite else [])]
        ],
        "comparisons": [{**comparison.to_json(), "disagreements": cases} for comparison, cases in pairs],
    }


def _print(title: str, evaluations: "list[Evaluation]", suite: Any) -> None:
    """Print a row for each benchmark, mode, seat and direction (A->B), then the settings."""
    results = [evaluation.to_json() for evaluation in evaluations]
    table = "\n".join(f"  {line}" for line in as_text(*overview(results)).splitlines())
    notes = dict.fromkeys(line for evaluation in evaluations for line in _notes(evaluation, len(evaluations) > 1))
    flags.echo("\n".join([*filter(None, [title]), table, "", *notes, *(suite.lines(results) if suite else ())]))


def _notes(evaluation: "Evaluation", several: bool) -> list[str]:
    lines = [settings_line(evaluation.to_json())]
    of = f"{evaluation.tasks}, {evaluation.mode}: " if several else ""
    if evaluation.mean_of_directions is not None and len(evaluation.directions) > 1:
        lines.append(
            f"{of}best direction: {evaluation.best}, {percent(evaluation.scores[evaluation.best].pass_at_1)}; "
            f"mean of all: {percent(evaluation.mean_of_directions)}"
        )
    for name, score in {**evaluation.seats, **evaluation.directions}.items():
        if score.prompts_too_long:
            lines.append(f"{of}{name}: {score.prompts_too_long} prompts exceeded the token limit and count as wrong")
    return lines


def _print_comparisons(pairs: "list[tuple[Comparison, list[dict[str, Any]]]]") -> None:
    """Print a sentence for each comparison, and the problems on which its two sides differ."""
    for comparison, cases in pairs:
        flags.echo(f"\n{comparison.sentence()}")
        these = f"; {len(cases)} of them:" if cases else ""
        typer.echo(f"they differ on {len(comparison.differ)} problems{these}")
        for case in cases:
            flags.echo(f"\n--- {case['id']}: {case.get('problem', '')}\n(reference: {case.get('reference')})")
            for name, side in ((comparison.first, case["first"]), (comparison.second, case["second"])):
                right, texts = side["right"], side["texts"]
                outcome = {True: "right", False: "wrong"}[right] if isinstance(right, bool) else f"{right:.0%} right"
                given = ", ".join(answer if answer is not None else "-" for answer in side["answers"])
                flags.echo(f"{name}: {outcome}: {given}")
                if len(texts) == 1:
                    text = texts[0].strip()  # the end of a long one holds the answer
                    flags.echo(indent(text if len(text) <= _EXCERPT else f"[...] {text[-_EXCERPT:]}", "    "))

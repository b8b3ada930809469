"""`lite-selfplay report`: what happened in a run, read from its folder."""

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    duels: Annotated[int, typer.Option(help="How many exchanges to print.", min=0)] = 1,
) -> None:
    """Print a run's first and last steps, and exchanges with what every side saw.

    Exchanges are the latest of each kind in turn: the challenge turned a wrong draft into a right answer, a right draft
    into a wrong one, both were right, both were wrong.
    """
    from lite_selfplay.run import load_run

    folder = load_run(run)
    rows = folder.metrics_rows()
    typer.echo(f"{folder.config.game.name} on {folder.config.model.name}: {len(rows)} steps in {folder.path}")
    for row in rows[:1] + rows[1:][-1:]:
        for role, stream in row["streams"].items():
            if not stream["completions"]:
                continue
            judged = stream["accuracy"] is not None
            accuracy = f"{stream['accuracy']:.0%} right, {stream['well_formed']:.0%} well-formed, " if judged else ""
            typer.echo(
                f"  step {row['step'] + 1}: {role} (seat {stream['seat']}): {accuracy}"
                f"reward {stream['reward_mean']:.2f}, {stream['tokens_mean']:.0f} tokens"
            )
    for number, (kind, exchange) in enumerate(_exchanges(folder.episodes())[:duels], 1):
        _print_exchange(number, kind, exchange)
    typer.echo("\nadapters, which plain PEFT loads: " + ", ".join(str(path) for path in folder.seats.values()))


_KINDS = {
    (False, True): "the challenge was right, the draft wrong",
    (True, False): "the draft was right, the challenge wrong",
    (True, True): "both right",
    (False, False): "both wrong",
}


def _exchanges(episodes: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Exchanges of the run, the latest of each kind in turn: conversions, regressions, both right, both wrong.

    A completion that names a draft is paired with it; a game without drafts gives single completions, latest first.
    """
    drafts = {(row["step"], row["group"], row["sample"]): row for row in episodes if row["role"] == "drafter"}
    kinds: dict[str, list[list[dict[str, Any]]]] = {kind: [] for kind in _KINDS.values()}
    for row in reversed(episodes):
        draft = drafts.get((row["step"], row["group"], row.get("draft")))
        if draft is not None:
            kinds[_KINDS[bool(draft["correct"]), bool(row["correct"])]].append([draft, row])
    turns = zip_longest(*([(kind, pair) for pair in pairs] for kind, pairs in kinds.items()))
    paired = [exchange for turn in turns for exchange in turn if exchange is not None]
    return paired or [("right" if row["correct"] else "wrong", [row]) for row in reversed(episodes)]


def _print_exchange(number: int, kind: str, exchange: list[dict[str, Any]]) -> None:
    first = exchange[0]
    typer.echo(f"\n== exchange {number}, step {first['step'] + 1}, problem {first['problem_id']}: {kind}")
    for row in exchange:
        verdict = "right" if row["correct"] else f"wrong ({row['reason']})"
        typer.echo(f"-- {row['role']} (seat {row['seat']}) was asked:\n{_indent(row['prompt'])}")
        typer.echo(f"-- and said, {verdict}, reward {row['reward']:g}:\n{_indent(row['text'])}")


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines() or ["(nothing)"])

"""`lite-selfplay report`: what happened in a run, read from its folder."""

from pathlib import Path
from typing import Annotated, Any

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    duels: Annotated[int, typer.Option(help="How many exchanges of the last step to print.", min=0)] = 1,
) -> None:
    """Print a run's first and last steps, and exchanges of its last step with what every side saw."""
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
    for number, exchange in enumerate(_exchanges(folder.episodes())[:duels], 1):
        _print_exchange(number, exchange)


def _exchanges(episodes: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The last step's exchanges, those first in which the draft was wrong and the challenge right, then the reverse.

    A completion that names a draft is paired with it; a game without drafts gives single completions.
    """
    last = [row for row in episodes if row["step"] == episodes[-1]["step"]] if episodes else []
    drafts = {(row["group"], row["sample"]): row for row in last if row["role"] == "drafter"}
    pairs = [[drafts[row["group"], row["draft"]], row] for row in last if "draft" in row]
    if not pairs:
        return [[row] for row in sorted(last, key=lambda row: not row["correct"])]
    return sorted(pairs, key=lambda pair: (pair[0]["correct"] == pair[1]["correct"], pair[0]["correct"]))


def _print_exchange(number: int, exchange: list[dict[str, Any]]) -> None:
    typer.echo(f"\n== exchange {number}: problem {exchange[0]['problem_id']}")
    for row in exchange:
        verdict = "right" if row["correct"] else f"wrong ({row['reason']})"
        typer.echo(f"-- {row['role']} (seat {row['seat']}) was asked:\n{_indent(row['prompt'])}")
        typer.echo(f"-- and said, {verdict}, reward {row['reward']:g}:\n{_indent(row['text'])}")


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines() or ["(nothing)"])

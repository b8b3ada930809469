"""`lite-selfplay list`: the games, tasks, models, presets and runs there are."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lite_selfplay.errors import RunFolderError
from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.games import Game


def games(
    names: Annotated[
        list[str] | None, typer.Argument(help="These alone; FILE.py:CLASS is a game of your own.", metavar="[GAME]...")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """List the games, with their roles and switches."""
    from lite_selfplay.config.user_files import short_name
    from lite_selfplay.games import find_game, game_names

    kinds = {name: find_game(name) for name in names or game_names()}
    if as_json:
        flags.echo_json([_game(name, kind) for name, kind in kinds.items()])
        return
    for name, kind in kinds.items():
        typer.echo(f"{short_name(name):<12} {kind.about}")
        switches = ", ".join(kind.Options.model_fields) or "none"
        typer.echo(f"{'':<12} roles: {', '.join(kind.roles)}; switches: {switches}")


def _game(name: str, kind: "type[Game]") -> dict[str, Any]:
    switches = kind.Options().model_dump(mode="json")
    return {"name": name, "about": kind.about, "roles": kind.roles, "switches": switches}


def tasks(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="These alone; FILE.py:FUNCTION is a task of your own.", metavar="[TASK]..."),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """List the tasks known by name; a .jsonl file works as well, and options follow a colon, as in letters:named=10."""
    from lite_selfplay.tasks import task_about, task_names

    _list({name: task_about(name) for name in names or task_names()}, as_json)


def models(as_json: flags.Json = False) -> None:
    """List the base models known by a short name; any hub id, folder or .gguf file works as well."""
    from lite_selfplay.models.sources import known_models

    known = known_models()
    if as_json:
        flags.echo_json([asdict(model) for model in known])
        return
    width = max(len(model.name) for model in known)
    for model in known:
        where = "" if model.needs_network else "  (no model hub needed)"
        typer.echo(f"{model.name:<{width}}  {model.size:>8}  {model.licence:<14} {model.source}{where}")


def presets(as_json: flags.Json = False) -> None:
    """List the presets; `train GAME --preset P --dry-run` shows what one would do."""
    from lite_selfplay.config import preset_about, preset_names

    _list({name: preset_about(name) for name in preset_names()}, as_json)


def runs(
    folder: Annotated[Path, typer.Argument(help="A folder of run folders.")] = Path("runs"),
    as_json: flags.Json = False,
) -> None:
    """List run folders: game, model, step, state, best checkpoint, size, and the command that goes on.

    A glance alone: `train --resume` says what is damaged.
    """
    from lite_selfplay.evaluation.tables import as_text
    from lite_selfplay.runs.state import run_folders, state_of
    from lite_selfplay.training.progress import printable

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
    columns = ["run", "game", "model", "step", "state", "best", "size"]
    rows = [
        [
            run.path.name,
            run.game,
            run.model,
            "" if run.stage == "cold start" else f"{run.step}/{run.steps}",
            run.stage,
            run.best,
            f"{run.size / 1e6:,.1f} MB",
        ]
        for run in found
    ]
    typer.echo(printable(as_text(columns, rows)))
    for state in found:
        if state.resume or state.problem:
            typer.echo(printable(f"{state.path.name}: {state.resume or state.problem}"))


def _list(abouts: Mapping[str, str], as_json: bool) -> None:
    """Names, each with what it is about."""
    if as_json:
        flags.echo_json([{"name": name, "about": about} for name, about in abouts.items()])
        return
    widest = max(map(len, abouts))
    for name, about in abouts.items():
        typer.echo(f"{name:<{widest}} {about}")

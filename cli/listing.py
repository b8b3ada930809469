"""`lite-selfplay list`: the available games, tasks, models, presets and runs."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from inspect import getdoc
from pathlib import Path
from typing import Annotated

import typer

from lite_selfplay.config import LOSSES, load_loss, preset_about, preset_names
from lite_selfplay.config.user_files import short_name
from lite_selfplay.errors import RunFolderError
from lite_selfplay.evaluation.result import as_text
from lite_selfplay.games import find_game, game_names
from lite_selfplay.models.sources import known_models
from lite_selfplay.runs.folder import run_folders, state_of
from lite_selfplay.tasks import task_about, task_names
from lite_selfplay_cli import flags

app = typer.Typer(
    help="List games, tasks, losses, models, presets or runs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def games(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these; FILE.py:CLASS is your own game.", metavar="[GAME]...")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """List the games, with their roles and switches (their own options)."""
    kinds = {name: find_game(name) for name in names or game_names()}
    switches = {name: kind.Options().model_dump(mode="json") for name, kind in kinds.items()}
    flags.show(
        as_json,
        [
            {"name": name, "about": kind.about, "roles": kind.roles, "switches": switches[name]}
            for name, kind in kinds.items()
        ],
        (
            f"{short_name(name):<12} {kind.about}\n"
            f"{'':<12} roles: {', '.join(kind.roles)}; switches: {', '.join(switches[name]) or 'none'}"
            for name, kind in kinds.items()
        ),
    )


@app.command()
def tasks(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these; FILE.py:FUNCTION is your own task.", metavar="[TASK]...")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """List the tasks known by name; a .jsonl file also works. Options follow a colon, as in letters:named=10."""
    named({name: task_about(name) for name in names or task_names()}, as_json)


@app.command()
def losses(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these; FILE.py:FUNCTION is your own loss.", metavar="[LOSS]...")
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """List the losses that roles.*.loss can name."""
    named({name: LOSSES.get(name) or getdoc(load_loss(name)) or "" for name in names or LOSSES}, as_json)


@app.command()
def models(as_json: flags.Json = False) -> None:
    """List the base models known by a short name; any hub id, folder or .gguf file also works."""
    known = known_models()
    width = max(len(model.name) for model in known)
    flags.show(
        as_json,
        [asdict(model) for model in known],
        (
            f"{model.name:<{width}}  {model.size:>8}  {model.licence:<14} {model.source}"
            + ("" if model.needs_network else "  (no model hub needed)")
            for model in known
        ),
    )


@app.command()
def presets(as_json: flags.Json = False) -> None:
    """List the presets; `train GAME --preset P --dry-run` shows what one would do."""
    named({name: preset_about(name) for name in preset_names()}, as_json)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="A folder of run folders.")] = Path("runs"), as_json: flags.Json = False
) -> None:
    """List run folders: game, model, step, state, best checkpoint, size, and the command that resumes.

    This is a quick check: `train --resume` finds damaged files.
    """
    found = []
    for path in run_folders(folder):
        with contextlib.suppress(RunFolderError):  # it was removed meanwhile
            found.append(state_of(path))
    rows = []
    for run in found:
        step = "" if run.stage == "cold start" else f"{run.step}/{run.steps}"
        rows.append([run.path.name, run.game, run.model, step, run.stage, run.best, f"{run.size / 1e6:,.1f} MB"])
    lines = [
        as_text(["run", "game", "model", "step", "state", "best", "size"], rows),
        *(f"{run.path.name}: {run.resume or run.problem}" for run in found if run.resume or run.problem),
    ]
    none = [f"no run folders in {folder}: `lite-selfplay train` makes one"]
    flags.show(as_json, [{**asdict(run), "path": str(run.path)} for run in found], lines if found else none)


def named(abouts: Mapping[str, str], as_json: bool) -> None:
    """Print names, each with its description."""
    widest = max(map(len, abouts))
    listed = [{"name": name, "about": about} for name, about in abouts.items()]
    flags.show(as_json, listed, (f"{name:<{widest}} {about}" for name, about in abouts.items()))

"""`lite-selfplay reproduce`: an experiment of several arms, as a table, a figure and a JSON file."""

from pathlib import Path
from typing import Annotated

import typer

from lite_selfplay.config import FLAGS, parse_assignment
from lite_selfplay.models.silence import quiet
from lite_selfplay.training.progress import PlainProgress
from lite_selfplay_cli import flags, listing
from lite_selfplay_cli.evaluate import DataDir


def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="The name of an experiment, or a .yaml file.", metavar="NAME|FILE", show_default="lists them"
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="full, or a smaller size of the file: small is for two CPU cores.")
    ] = "full",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where it is kept, and gone on with.", show_default="reproduce/NAME-SCALE"),
    ] = None,
    model: flags.option("model", FLAGS["model"]) = None,
    assignments: flags.Assignments = None,
    data_dir: DataDir = None,
    dry_run: flags.DryRun = False,
    as_json: flags.Json = False,
) -> None:
    """Train every arm of an experiment at one budget, measure all on the same problems, and write it down.

    Arms differ in what their file says and in nothing else: the model, the tasks,
    the completions a step, and for each seed the seats they start from are the
    same; --model and --set change them for all. What is complete is not done again:
    after a signal, a kill or an error the same command goes on.

    Written to --out: table.md, figure.png (accuracy against length; it needs
    matplotlib) and results.json, beside the run folders of all arms.

    Examples:

      lite-selfplay reproduce

      lite-selfplay reproduce agon-table3 --scale small --dry-run

      lite-selfplay reproduce agon-table3 --scale tiny --out tables/agon3

      lite-selfplay reproduce agon-table3 --model Qwen3-1.7B --out tables/agon5
    """
    with quiet():  # what it imports speaks up
        from lite_selfplay.extras.reproduce.conduct import conduct, costs
        from lite_selfplay.extras.reproduce.experiment import experiment_names, load_experiment
        from lite_selfplay.extras.reproduce.findings import table, to_json, write_findings

    if experiment is None:
        listing.named({name: load_experiment(name).about for name in experiment_names()}, as_json)
        return
    layers = [{"model": {"name": model}}] if model is not None else []
    chosen = load_experiment(experiment, scale).having(*layers, *map(parse_assignment, assignments or []))
    folder = None if data_dir is None else str(Path(data_dir).resolve())
    place = out or Path("reproduce") / f"{chosen.name}-{scale}"
    if dry_run:
        lines = costs(chosen, folder)
        about = {"name": chosen.name, "scale": scale, "folder": str(place), "costs": lines}
        flags.show(as_json, about, [*lines, f"folder: {place}\ndry run: nothing was started"])
        return
    records = conduct(chosen, place, data_dir=folder, progress=PlainProgress(flags.to_stderr))
    paths = write_findings(chosen, records, place)
    written = f"written: {', '.join(map(str, paths))}"
    flags.show(as_json, to_json(chosen, records), [table(chosen, records), written])

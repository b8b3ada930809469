"""The commands of extras: `lite-selfplay reproduce`, `view`, `export` and `doctor`."""

import contextlib
import webbrowser
from functools import reduce
from pathlib import Path
from typing import Annotated

import typer

from lite_selfplay.config import FLAGS, KEYS, merge, parse_assignment
from lite_selfplay.errors import ConfigError
from lite_selfplay.models.silence import quiet
from lite_selfplay.training.progress import PlainProgress
from lite_selfplay_cli import flags, listing


def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="The name of an experiment, or a .yaml file.", metavar="NAME|FILE", show_default="lists them"
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="full, or a smaller size from the file; small is for two CPU cores.")
    ] = "full",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Its folder, also to resume from.", show_default="reproduce/NAME-SCALE"),
    ] = None,
    model: flags.option("model", FLAGS["model"]) = None,
    assignments: flags.Assignments = None,
    data_dir: flags.option("data_dir", KEYS["tasks.data_dir"]) = None,
    dry_run: flags.DryRun = False,
    as_json: flags.Json = False,
) -> None:
    """Train every arm of an experiment at the same budget, measure all on the same problems, and write a report.

    Arms differ only in what the file says: the model, the tasks, the completions per step and, for each seed, the
    initial seats are the same; --model and --set change them for all. After a signal, a kill or an error, repeat the
    command to continue: completed parts are not repeated.

    Written to --out: table.md, figure.png (accuracy against length; it needs matplotlib) and results.json, beside the
    run folders of all arms.

    \b
    Examples:
      lite-selfplay reproduce
      lite-selfplay reproduce agon-table3 --scale small --dry-run
      lite-selfplay reproduce agon-table3 --scale tiny --out tables/agon3
      lite-selfplay reproduce agon-table3 --model Qwen3-1.7B --out tables/agon5
    """
    with quiet():  # its imports print warnings
        from lite_selfplay.extras.reproduce.conduct import conduct, costs
        from lite_selfplay.extras.reproduce.experiment import experiment_names, load_experiment
        from lite_selfplay.extras.reproduce.findings import table, to_json, write_findings

    if experiment is None:
        listing.named({name: load_experiment(name).about for name in experiment_names()}, as_json)
        return
    layers = [{"model": {"name": model}}] if model is not None else []
    layers += map(parse_assignment, assignments or [])
    chosen = load_experiment(experiment, scale, reduce(merge, layers, {})).having(*layers)
    folder = None if data_dir is None else str(Path(data_dir).resolve())
    path = out or Path("reproduce") / f"{chosen.name}-{scale}"
    if dry_run:
        lines = costs(chosen, folder)
        about = {"name": chosen.name, "scale": scale, "folder": str(path), "costs": lines}
        flags.show(as_json, about, [*lines, f"folder: {path}\ndry run: nothing was started"])
        return
    records = conduct(chosen, path, data_dir=folder, progress=PlainProgress(flags.to_stderr))
    written = ", ".join(map(str, write_findings(chosen, records, path)))
    flags.show(as_json, to_json(chosen, records), [table(chosen, records), f"written: {written}"])


def view(
    runs: Annotated[
        list[Path],
        typer.Argument(help="A run folder; a second one is drawn over it as dashed lines.", metavar="RUN..."),
    ],
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write DIR/index.html, which opens without a server or network, and stop.", metavar="DIR"),
    ] = None,
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a run in the browser: its curves, and the episodes of any step, with filters and search.

    Prints a local address that ends with a token, and serves it until Ctrl-C. The page follows a run in progress and
    never writes. docs/inspect.md says what it shows.

    \b
    Examples:
      lite-selfplay view runs/agon-smollm2-135m-20260101-120000
      lite-selfplay view runs/first runs/second --bundle shared
    """
    from lite_selfplay.extras.view.answers import ViewedRun
    from lite_selfplay.extras.view.page import RunServer, write_bundle

    chosen = list(dict.fromkeys(runs))
    if len(chosen) > 2:
        raise ConfigError(f"view shows one or two runs, not {len(chosen)}")
    found = [ViewedRun(path) for path in chosen]
    for run in found:
        run.overview()  # raises if the run is damaged
        if run.without_game:
            flags.to_stderr(f"warning: {run.without_game}")
    if bundle is not None:
        typer.echo(f"written: {write_bundle(found, bundle)}")
        return
    with RunServer(found, port) as server:
        typer.echo(f"{server.url}\nCtrl-C ends it.")
        if open_browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    seat: Annotated[
        str | None,
        typer.Argument(
            help="Which seat, or a checkpoint's A@20 or A@best; a run with one seat needs none.", metavar="[SEAT]"
        ),
    ] = None,
    to: Annotated[str, typer.Option("--to", help="peft, merged or gguf.", metavar="FORM")] = "peft",
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; must not exist.", show_default="exports/RUN-SEAT-FORM")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Have another tool answer 20 prompts from the files, and compare."),
    ] = True,
    trust_remote_code: flags.TrustRemoteCode = None,
    as_json: flags.Json = False,
) -> None:
    """Write a seat (a named LoRA adapter) as a folder that other tools load, and verify that they run the same model.

    peft: an adapter for plain PEFT and vLLM. merged: a full bf16 model for transformers and vLLM. gguf: a float16 file
    for llama.cpp, with a Modelfile for Ollama. Each comes with the chat template, the role's settings and a model card.
    The commands that serve and upload it are printed, ready to paste.

    PEFT, transformers or llama.cpp (if the package xllamacpp is installed) reads the files in a fresh process and
    scores the seat's answers to 20 prompts; prompts' tokens and answers' log-probabilities must match the seat's. If
    they differ, the exit code is 1 and verification.json says how. docs/export.md has more.

    \b
    Examples:
      lite-selfplay export runs/agon A --to merged
      lite-selfplay export runs/agon B@20 --to gguf --out my-seat
    """
    from lite_selfplay.extras.export.exporting import export as make

    progress = PlainProgress(lambda line: typer.echo(line, err=as_json or not line.startswith("written: ")))
    done = make(
        run,
        seat,
        to=to,  # type: ignore[arg-type]  # checked there
        out=out,
        verify=verify,
        trust_remote_code=bool(trust_remote_code),
        progress=progress,
    )
    found = done.verification.to_json() if done.verification else None
    about = {"folder": str(done.path), "seat": done.seat, "to": to, "verification": found, "commands": done.commands}
    flags.show(as_json, about, ["", *done.commands])


def doctor(as_json: flags.Json = False) -> None:
    """Describe this machine and what would run on it: GPU, backend, precision, sandbox, free space.

    Exit code 1 if something must be fixed first. `pip check` tells whether package versions fit together;
    `lite-selfplay train --resume RUN` names the damaged files of a run before it changes anything.
    """
    from lite_selfplay.extras.doctor import machine

    findings = machine()
    healthy = all(each["fine"] for each in findings)
    width = max(len(each["part"]) for each in findings)
    flags.show(
        as_json,
        {"findings": findings, "healthy": healthy},
        (f"{each['part']:<{width}}  {'' if each['fine'] else 'PROBLEM: '}{each['text']}" for each in findings),
    )
    raise typer.Exit(0 if healthy else 1)

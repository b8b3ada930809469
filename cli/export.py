"""`lite-selfplay export`: a seat as files for other tools, verified by them."""

from pathlib import Path
from typing import Annotated

import typer

from lite_selfplay.training.progress import PlainProgress
from lite_selfplay_cli import flags


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    seat: Annotated[
        str | None,
        typer.Argument(
            help="Which seat, or A@20, A@best as in a checkpoint; a run of one needs none.", metavar="[SEAT]"
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
    """Write a seat as a folder that other tools load, and verify that it is the same model there.

    peft: an adapter for plain PEFT and vLLM. merged: a model of its own in bf16, for transformers and vLLM. gguf: a
    file in float16 for llama.cpp, with a Modelfile for Ollama. Each comes with the chat template, the role's settings
    and a card; what serves it or uploads it is printed, ready to paste.

    PEFT, transformers or llama.cpp (where the package xllamacpp is installed) reads the files in a fresh process and
    answers 20 prompts; first tokens and log-probabilities are compared with the seat's own. A difference ends with exit
    code 1, and verification.json says what differs. docs/export.md has more.

    Examples:

      lite-selfplay export runs/agon A --to merged

      lite-selfplay export runs/agon B@20 --to gguf --out my-seat
    """
    from lite_selfplay.extras.export.exporting import export as make

    progress = PlainProgress(lambda line: typer.echo(line, err=as_json or not line.startswith("written: ")))
    done = make(
        run,
        seat,
        to=to,  # type: ignore[arg-type]  # it is looked at there
        out=out,
        verify=verify,
        trust_remote_code=bool(trust_remote_code),
        progress=progress,
    )
    found = done.verification.to_json() if done.verification else None
    about = {"folder": str(done.path), "seat": done.seat, "to": to, "verification": found, "commands": done.commands}
    flags.show(as_json, about, ["", *done.commands])

"""`lite-selfplay export` and `push`: a seat as files for other tools, verified by them, and on a hub."""

from pathlib import Path
from typing import Annotated

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay_cli import flags

Run = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Have another tool answer 20 prompts from the files, and compare.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="What weights are held in: bf16 or fp16, for GGUF q8_0 as well.",
        show_default="bf16 for merged, fp16 for gguf and ollama",
    ),
]


def export(
    run: Run,
    seat: Annotated[str | None, typer.Argument(help="Which seat; a run of one needs none.", metavar="[SEAT]")] = None,
    to: Annotated[str, typer.Option("--to", help="peft, merged, gguf or ollama.", metavar="FORM")] = "peft",
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; must not exist.", show_default="exports/RUN-SEAT-FORM")
    ] = None,
    dtype: Dtype = None,
    verify: Verify = True,
    trust_remote_code: flags.TrustRemoteCode = None,
    as_json: flags.Json = False,
) -> None:
    """Write a seat as a folder that other tools load, and verify that it is the same model there.

    peft: an adapter for plain PEFT and vLLM. merged: a model of its own in 16 bits,
    for transformers and vLLM. gguf: a file for llama.cpp. ollama: that file with a
    Modelfile. Each comes with the chat template, the role's settings and a card.

    Then PEFT, transformers or llama.cpp (where the package xllamacpp is installed)
    reads the files in a fresh process and answers 20 prompts; first tokens and
    log-probabilities are compared with the seat's own. A difference ends with exit
    code 1, and verification.json says what differs. docs/export.md has more.

    Examples:

      lite-selfplay export runs/agon A --to merged

      lite-selfplay export runs/agon B --to ollama --dtype q8_0 --out my-seat
    """
    from lite_selfplay.runs.export.card import FORMS
    from lite_selfplay.runs.export.exporting import export as make
    from lite_selfplay.training.progress import PlainProgress

    form = next((each for each in FORMS if each == to), None)
    if form is None:
        raise ConfigError(f"--to is {', '.join(FORMS)}, not {to!r}")
    progress = PlainProgress(lambda line: typer.echo(line, err=as_json or not line.startswith("written: ")))
    done = make(
        run,
        seat,
        to=form,
        out=out,
        dtype=dtype,
        verify=verify,
        trust_remote_code=bool(trust_remote_code),
        progress=progress,
    )
    if as_json:
        found = done.verification.to_json() if done.verification else None
        names = [str(path.relative_to(done.path)) for path in done.files]
        about = {"folder": str(done.path), "seat": done.seat, "to": done.form, "dtype": done.dtype}
        flags.echo_json({**about, "files": names, "verification": found})
        return
    for path in done.files:
        typer.echo(f"  {path.relative_to(done.path)} ({size(path)})")
    if done.verification is not None:
        typer.echo(done.verification.sentence())


def size(path: Path) -> str:
    """A file's size in words: `12 KB`."""
    count = path.stat().st_size
    return next((f"{count / unit:.3g} {name}" for unit, name in _UNITS if count >= unit), f"{count} bytes")


_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"))


def push(
    run: Run,
    names: Annotated[
        list[str], typer.Argument(help="The seat, which a run of one needs not, and OWNER/NAME.", metavar="[SEAT] NAME")
    ],
    to: Annotated[str, typer.Option("--to", help="peft, merged, gguf or ollama.", metavar="FORM")] = "peft",
    dtype: Dtype = None,
    public: Annotated[bool, typer.Option("--public", help="Everybody may read it; private otherwise.")] = False,
    update: Annotated[bool, typer.Option("--update", help="A new commit where NAME exists already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files, show the card, send nothing.")] = False,
    verify: Verify = True,
    trust_remote_code: flags.TrustRemoteCode = None,
    as_json: flags.Json = False,
) -> None:
    """Push a seat to the Hugging Face hub, with its model card; to a private repository unless --public.

    It is exported and verified as by `export` first, and nothing is sent where that
    fails. Without a token (`hf auth login`, or HF_TOKEN) it is a dry run, which lists
    the files and shows the card. HF_ENDPOINT names another hub.

    Examples:

      lite-selfplay push runs/agon A my-name/agon-a --dry-run
    """
    from lite_selfplay.runs.export.card import FORMS
    from lite_selfplay.runs.export.hub import push as send
    from lite_selfplay.training.progress import PlainProgress, printable

    form = next((each for each in FORMS if each == to), None)
    if form is None:
        raise ConfigError(f"--to is {', '.join(FORMS)}, not {to!r}")
    if len(names) > 2:
        raise ConfigError(
            f"push takes a run, a seat and a name: {' '.join(names)} are {len(names)} words after the run"
        )
    done = send(
        run,
        names[-1],
        names[0] if len(names) == 2 else None,
        to=form,
        dtype=dtype,
        private=not public,
        update=update,
        dry_run=dry_run,
        verify=verify,
        trust_remote_code=bool(trust_remote_code),
        progress=PlainProgress(lambda line: typer.echo(line, err=True)),
    )
    if as_json:
        flags.echo_json(done.to_json())
        return
    for name, count in done.files.items():
        typer.echo(f"  {name} ({count:,} bytes)")
    if done.url is None:
        typer.echo(f"\n{printable(done.card)}\ndry run: nothing was sent to {done.repository}. {done.why}")
        return
    typer.echo(f"pushed: {done.url} ({'private' if done.private else 'public'})")

"""`lite-selfplay serve`: a run's seats behind OpenAI's chat completions, on this machine."""

import contextlib
import importlib.util
import secrets
from typing import Annotated

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay_cli import flags, talk

KEY_VARIABLE = "LITE_SELFPLAY_KEY"


def serve(
    run: talk.Run,
    checkpoint: talk.Checkpoint = "last",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    key: Annotated[
        str | None,
        typer.Option(
            envvar=KEY_VARIABLE, help="What clients have to send; others on this machine may see flags.", metavar="KEY"
        ),
    ] = None,
    max_completion_tokens: talk.MaxCompletionTokens = None,
    queue: Annotated[int, typer.Option(help="Answers that may wait; others are refused with 429.", min=1)] = 64,
    precision: talk.Precision = None,
    trust_remote_code: flags.TrustRemoteCode = None,
    unsafe_code: flags.UnsafeCode = None,
) -> None:
    """Answer OpenAI's chat completions as base, A, B or A->B (B answers after reading A's recap), until Ctrl-C.

    Listens on 127.0.0.1 alone, for whoever sends the key: that of --key or LITE_SELFPLAY_KEY, else one that is made up
    and printed. Requests that wait for one speaker share a generation. Messages reach a seat as they are; a
    cascade is asked one problem, in the words of the game. docs/talk.md lists the fields.

    Needs: pip install "lite-selfplay[serve]"

    Examples:

      lite-selfplay serve runs/agon-smollm2-135m-20260101-120000

      LITE_SELFPLAY_KEY=secret lite-selfplay serve runs/agon --checkpoint best --port 0
    """
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f'serve needs {" and ".join(missing)}: pip install "lite-selfplay[serve]"')
    from lite_selfplay.runs.talk.desk import Desk
    from lite_selfplay.runs.talk.speakers import speakers_of

    if key == "":
        raise ConfigError(f"the key is empty: give --key or {KEY_VARIABLE} a value, or neither")
    given = key or secrets.token_urlsafe(24)
    with speakers_of(
        run,
        checkpoint=checkpoint,
        precision=precision,
        max_tokens=max_completion_tokens,
        trust_remote_code=bool(trust_remote_code),
        unsafe_code=bool(unsafe_code),
        progress=talk.to_stderr(),
    ) as speakers:
        from lite_selfplay.runs.talk.server import Server

        desk = Desk(speakers, queue)
        server = Server(desk, given, port)
        typer.echo(f"{server.url}\nkey: {given if key is None else 'as given'}\nmodels: {', '.join(speakers.names)}")
        typer.echo("Ctrl-C ends it.")
        with desk, contextlib.suppress(KeyboardInterrupt):
            server.run()
    typer.echo("closed", err=True)

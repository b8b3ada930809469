"""`lite-selfplay view`: a run in the browser, while it goes on or afterwards; or as one file to take away."""

import contextlib
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from lite_selfplay.errors import ConfigError
from lite_selfplay_cli import flags

MOST_RUNS = 2


def view(
    runs: Annotated[
        list[Path], typer.Argument(help="A run folder; a second one is drawn over it, in dashes.", metavar="RUN...")
    ],
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write DIR/index.html, which opens without a server or network, and stop.", metavar="DIR"),
    ] = None,
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a run in the browser: its curves, and the episodes of any step, with filters and search.

    Prints an address of this machine alone, which ends with a token, and serves it until Ctrl-C. The page follows a run
    that goes on, and writes nothing. docs/inspect.md says what it shows.

    Examples:

      lite-selfplay view runs/agon-smollm2-135m-20260101-120000

      lite-selfplay view runs/first runs/second --bundle shared
    """
    from lite_selfplay.extras.view.answers import ViewedRun, require_readable
    from lite_selfplay.extras.view.page import Server, write_bundle

    chosen = list(dict.fromkeys(runs))
    if len(chosen) > MOST_RUNS:
        raise ConfigError(f"view shows one run, or two over each other, not {len(chosen)}")
    found = [ViewedRun(path) for path in chosen]
    for run in found:
        require_readable(run)
        if run.without_game:
            flags.to_stderr(f"warning: {run.without_game}")
    if bundle is not None:
        typer.echo(f"written: {write_bundle(found, bundle)}")
        return
    with Server(found, port) as server:
        typer.echo(f"{server.url}\nCtrl-C ends it.")
        if open_browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()

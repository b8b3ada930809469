"""The `lite-selfplay` command: its sub-commands, and how errors become exit codes."""

import atexit
import contextlib
import functools
import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from lite_selfplay.errors import GameError, Interrupted, LiteSelfPlayError, RequestError
from lite_selfplay.training.interrupts import HANGUP, NOTHING_SAVED, Interrupts
from lite_selfplay.training.ranks import find_launch, in_a_group, joined

# With torch loaded, the garbage collection at exit takes longer than saving an interrupted run.
atexit.register(gc.freeze)


def _command(command: Callable[..., None], processes: Literal["many", "one", "any"] = "any") -> Callable[..., None]:
    """Wrap a command: `sys.exit` inside it is an error, since only a user's own code calls it there. `processes`: under
    torchrun, `many` share the work, `one` refuses to run, and `any` run independently."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        launch = find_launch() if processes == "one" else None
        if launch is not None and launch.world > 1:
            raise RequestError(
                f"`{command.__name__}` runs in one process, but {launch.world} were started: use torchrun only for "
                "train, cold-start and eval"
            )
        try:
            with joined() if processes == "many" else contextlib.nullcontext():
                command(*arguments, **options)
        except SystemExit as left:
            raise GameError(f"your own code called sys.exit({'' if left.code is None else left.code})") from left

    return run


# Each command's function, and how `_command` treats several processes.
_COMMANDS: dict[str, tuple[str, Literal["many", "one", "any"]]] = {
    "train": ("train.train", "many"),
    "cold-start": ("train.cold_start", "many"),
    "eval": ("evaluate.evaluate", "many"),
    "plan": ("plan.plan", "any"),
    "report": ("report.report", "any"),
    "why": ("report.why", "any"),
    "view": ("extras.view", "any"),
    "chat": ("chat.chat", "one"),
    "export": ("extras.export", "one"),
    "reproduce": ("extras.reproduce", "one"),
    "doctor": ("extras.doctor", "any"),
    "list": ("listing.app", "any"),
    "config": ("config.app", "any"),
}


class _Commands(TyperGroup):
    """The commands, each imported when it is called or its help is shown."""

    def __init__(self, **options: Any):
        super().__init__(**{**options, "commands": dict.fromkeys(_COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            path, processes = _COMMANDS[cmd_name]
            module, _, name = path.partition(".")
            found = getattr(import_module(f"lite_selfplay_cli.{module}"), name)
            if not isinstance(found, typer.Typer):
                command, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
                found.command(cmd_name)(command)
            for each in found.registered_commands:
                each.callback = _command(each.callback, processes)
            self.commands[cmd_name] = typer.main.get_command(found)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="lite-selfplay",
    cls=_Commands,
    help="Self-play reinforcement learning for language models on one GPU: every role a LoRA adapter over one base.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would read [default: ...] as markup
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"lite-selfplay {version_of('lite-selfplay')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that come before the command."""


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 the run failed, 2 the request was wrong, 130 interrupted after saving."""
    debug = "--debug" in sys.argv
    number = os.environ.get("RANK", "0")
    who = "" if number == "0" else f" (process {number})"
    if debug:
        sys.argv.remove("--debug")
    interrupts = Interrupts(patient="RANK" in os.environ)
    try:
        with interrupts:
            app()
    except LiteSelfPlayError as error:
        if debug:
            raise
        if not error.said_elsewhere:
            what = "" if isinstance(error, Interrupted) else f"error{who}: "
            typer.echo(f"{what}{_readable(error)}", err=True)
        _leave(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as left:
        if isinstance(left, SystemExit) and left.code != 130:  # typer turns KeyboardInterrupt into SystemExit(130)
            raise
        typer.echo("stopped" if interrupts.has_worked else NOTHING_SAVED, err=True)
        _leave(130)
    except BaseException as error:  # a user's own code may raise anything
        if debug:
            raise
        typer.echo(f"error{who}: {type(error).__name__}: {_readable(error)} (--debug shows where)", err=True)
        _leave(1)
    finally:
        if HANGUP is not None:
            signal.signal(HANGUP, signal.SIG_IGN)  # a closed terminal sends a second one


def _leave(code: int) -> NoReturn:
    """Exit with a code. In a process group, skip the interpreter's shutdown: torch closes its connections there and may
    abort if the other processes are gone. Everything is saved and printed by then."""
    if in_a_group():
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _readable(error: BaseException) -> str:
    """An error's message, with the middle of very long words cut out."""
    return re.sub(r"\S{500,}", lambda word: f"{word[0][:200]}...{word[0][-100:]}", str(error))

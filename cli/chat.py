"""`lite-selfplay chat`: a question, and every seat's answer beside the base's; follow-ups and duels."""

import contextlib
import importlib
import io
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from lite_selfplay.errors import ConfigError, Interrupted, LiteSelfPlayError, UnknownNameError
from lite_selfplay.training.progress import PlainProgress
from lite_selfplay_cli import flags
from lite_selfplay_cli.shown import Lines, Screen

if TYPE_CHECKING:
    from lite_selfplay.extras.talk import Conversation

HELP = """a message            every speaker answers it, as a problem of the kind it was trained on
/follow TEXT         asks on: each speaker remembers the last question and its own answer
/duel [A->B] [TEXT]  A drafts, B answers after reading what the game shows it; without TEXT on the last problem
/seat [NAME ...]     who answers: base, a seat, a cascade such as A->B; without a name lists them
/temperature [X]     0 is greedy
/help, /quit         Ctrl-C stops an answer, Ctrl-D leaves"""

LONGEST_LINE = 2_000_000
"""Characters of a line of input that are read; more than may be asked, so that it is refused and not cut."""


def chat(
    run: Annotated[str, typer.Argument(help="A run folder, or a base model by any name that train takes.")],
    seat: Annotated[
        str | None,
        typer.Option(
            help="Who answers, separated by commas: base, A, A->B, and A@20 or A@best as in a checkpoint.",
            metavar="NAME,...",
            show_default="base and every seat",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0, max=100)] = 0.0,
    max_completion_tokens: Annotated[
        int | None, typer.Option(help="Cap of an answer.", min=1, max=1_000_000, show_default="the run's, else 512")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Messages as they are, without the words of training.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which samples, at a temperature above 0.")] = 0,
    precision: Annotated[
        str | None, typer.Option(help="4bit, bf16, fp16 or fp32.", show_default="the run's; 4bit for a base model")
    ] = None,
    trust_remote_code: flags.TrustRemoteCode = None,
    unsafe_code: flags.UnsafeCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line a message on stdout.")] = False,
) -> None:
    """Speak with a run: base and every seat answer side by side.

    Each message stands by itself, as a problem in the words of training; /follow asks on. /duel lets B answer after
    reading what the game shows it of A's draft. /help lists all commands; they work in a pipe, too, a line each, where
    the exit code is 2 if one was refused.

    Examples:

      lite-selfplay chat runs/agon-smollm2-135m-20260101-120000

      lite-selfplay chat runs/agon --seat base,A@20,A@best

      echo "What is 7+8+9?" | lite-selfplay chat runs/agon --json
    """
    from lite_selfplay.extras.talk import ARROW, Conversation, speakers_of

    names = [name.strip() for name in seat.split(",")] if seat is not None else []
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are no text are shown as such, and end nothing
    with speakers_of(
        run,
        past=[part.strip() for name in names for part in name.split(ARROW)],
        precision=precision,
        max_tokens=max_completion_tokens,
        trust_remote_code=bool(trust_remote_code),
        unsafe_code=bool(unsafe_code),
        progress=PlainProgress(flags.to_stderr, math.inf if at_terminal else 10),
    ) as speakers:
        shown = Screen() if at_terminal else Lines(as_json)
        talked = Conversation(speakers, speakers.alone, temperature, plain=plain, seed=seed, waits=shown.waits)
        talked.choose(names or speakers.alone)
        if at_terminal:
            with contextlib.suppress(ImportError):  # not on Windows
                importlib.import_module("readline")  # from here on lines can be edited, and called back
            shown.say(f"{', '.join(talked.names)} answer. /help lists the commands, Ctrl-D leaves.")
        if not _Chat(talked, shown).go_on(_typed if at_terminal else _piped, at_terminal) and not at_terminal:
            raise typer.Exit(2)


def _typed() -> str | None:
    """The next line at a terminal; None at the end."""
    try:
        return input("> ")
    except EOFError:
        return None


def _piped() -> str | None:
    """The next line of a pipe; None at the end. Of one that is endless, what fits."""
    line = rest = sys.stdin.readline(LONGEST_LINE)
    while len(rest) == LONGEST_LINE and not rest.endswith("\n"):
        rest = sys.stdin.readline(LONGEST_LINE)
    return line or None


class _Chat:
    """Lines of a user's, each a message or a command."""

    def __init__(self, talked: "Conversation", shown: Screen | Lines):
        self._talked, self._shown = talked, shown
        self._problem = ""

    def go_on(self, read: Callable[[], str | None], at_terminal: bool) -> bool:
        """Read and answer until the end. Whether nothing was refused."""
        well = True
        while (line := read()) is not None and line.strip() != "/quit":
            try:
                self._line(line.strip())
            except LiteSelfPlayError as error:
                if isinstance(error, Interrupted) and not (at_terminal and "SIGINT" in str(error)):
                    raise
                well = False
                self._shown.refuse(str(error))
        return well

    def _line(self, line: str) -> None:
        commands = {
            "/follow": lambda text: self._shown.entry(self._talked.follow(text)),
            "/duel": self._duel,
            "/seat": self._seat,
            "/temperature": self._temperature,
            "/help": lambda _: self._shown.say(HELP),
        }
        name, _, rest = line.partition(" ")
        if name in commands:
            commands[name](rest.strip())
        elif line.startswith("/"):
            raise UnknownNameError("command", name[:60], [*commands, "/quit"])
        elif line:
            self._problem = line
            self._shown.entry(self._talked.ask(line))

    def _duel(self, rest: str) -> None:
        first, _, text = rest.partition(" ")
        name = first if "->" in first and len(first) < 60 else None
        self._problem = (text if name else rest).strip() or self._problem
        self._shown.entry(self._talked.duel(self._problem, name))

    def _seat(self, names: str) -> None:
        if names:
            self._talked.choose(names.replace(",", " ").split())
        speakers = self._talked.speakers
        self._shown.say(
            f"{', '.join(self._talked.names)} answer, of {', '.join([*speakers.alone, *speakers.cascades])}"
        )

    def _temperature(self, text: str) -> None:
        try:
            value = float(text or self._talked.temperature)
        except ValueError:
            value = float("nan")
        if not 0 <= value <= 100:
            raise ConfigError(f"a temperature is from 0 to 100, not {text[:60]!r}")
        self._talked.temperature = value
        self._shown.say(f"temperature {value:g}")

"""`lite-selfplay chat`: the base and every seat answer side by side; follow-ups and duels."""

import contextlib
import importlib
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from lite_selfplay.errors import Interrupted, LiteSelfPlayError, UnknownNameError
from lite_selfplay.extras.talk import ARROW, Entry, Talk, speakers_of
from lite_selfplay.training.progress import PlainProgress, printable
from lite_selfplay_cli import flags

HELP = """a message            each answers it, prompted as in training
/follow TEXT         a follow-up question: each remembers the last question and its own answer
/duel [A->B] [TEXT]  A drafts, B answers after reading what the game shows it; without TEXT, the last problem again
/seat [NAME ...]     who answers: base, a seat, a cascade such as A->B; without a name lists them
/help, /quit         Ctrl-C stops an answer, Ctrl-D leaves"""


def chat(
    run: Annotated[str, typer.Argument(help="A run folder, or a base model by any name that train takes.")],
    seat: Annotated[
        str | None,
        typer.Option(
            help="Who answers, separated by commas: base, A, A->B, or a checkpoint's A@20 or A@best.",
            metavar="NAME,...",
            show_default="base and every seat",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0, max=100)] = 0.0,
    max_completion_tokens: Annotated[
        int | None, typer.Option(help="Cap of an answer.", min=1, max=1_000_000, show_default="the run's, else 512")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Send messages unchanged, without the prompt of training.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Sampling seed, for a temperature above 0.")] = 0,
    precision: Annotated[
        str | None, typer.Option(help="4bit, bf16, fp16 or fp32.", show_default="the run's; 4bit for a base model")
    ] = None,
    trust_remote_code: flags.TrustRemoteCode = None,
    unsafe_code: flags.UnsafeCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per message on stdout.")] = False,
) -> None:
    """Chat with a run: the base and every seat (a named LoRA adapter) answer side by side.

    Each message is a new problem, prompted as in training; /follow asks a follow-up. /duel lets B answer after reading
    what the game shows it of A's draft. /help lists all commands. In a pipe, each line is a message or a command, and
    the exit code is 2 if one was refused.

    \b
    Examples:
      lite-selfplay chat runs/agon-smollm2-135m-20260101-120000
      lite-selfplay chat runs/agon --seat base,A@20,A@best
      echo "What is 7+8+9?" | lite-selfplay chat runs/agon --json
    """
    names = [name.strip() for name in seat.split(",")] if seat is not None else []
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # invalid bytes must not end the chat
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
        talked = Talk(speakers, speakers.alone, temperature, plain=plain, seed=seed, waits=shown.waits)
        talked.choose(names or speakers.alone)
        if at_terminal:
            with contextlib.suppress(ImportError):  # not on Windows
                importlib.import_module("readline")  # gives `input` line editing and history
            shown.say(f"{', '.join(talked.names)} answer. /help lists the commands, Ctrl-D leaves.")
        if not _Chat(talked, shown).run(_typed() if at_terminal else sys.stdin, at_terminal) and not at_terminal:
            raise typer.Exit(2)


def _typed() -> Iterator[str]:
    """The lines typed at a terminal, until Ctrl-D."""
    with contextlib.suppress(EOFError):
        while True:
            yield input("> ")


class _Chat:
    """Answers a user's lines, each a message or a command."""

    def __init__(self, talked: Talk, shown: "Screen | Lines"):
        self._talked, self._shown = talked, shown
        self._problem = ""

    def run(self, lines: Iterable[str], at_terminal: bool) -> bool:
        """Answer the lines until the end or `/quit`. Returns whether every line was accepted."""
        well = True
        for line in lines:
            if line.strip() == "/quit":
                break
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
            f"{', '.join(self._talked.names)} answer; available: {', '.join([*speakers.alone, *speakers.cascades])}"
        )


NARROWEST = 30  # the narrowest panel, in terminal columns; panels that do not fit side by side are stacked
LONGEST = 20_000  # the most characters of a text that a terminal shows; a pipe gets all


class Lines:
    """Output for a file or a pipe: text, or with `as_json` one ASCII JSON object per line."""

    def __init__(self, as_json: bool):
        self._as_json = as_json

    def entry(self, entry: Entry) -> None:
        typer.echo(json.dumps(entry, allow_nan=False) if self._as_json else as_text(entry))

    def say(self, sentence: str) -> None:
        typer.echo(printable(sentence), err=True)

    def refuse(self, sentence: str) -> None:
        if self._as_json:
            typer.echo(json.dumps({"error": sentence}))
        else:
            self.say(f"error: {sentence}")

    def waits(self, name: str) -> None:
        """Do nothing: only a terminal shows who is answering."""


class Screen:
    """Output on a terminal: answers side by side."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False)
        self._status = self._console.status("")

    def entry(self, entry: Entry) -> None:
        self._status.stop()
        self._console.print(drawn(entry, self._console.width))

    def say(self, sentence: str) -> None:
        self._console.print(printable(sentence), style="dim")

    def refuse(self, sentence: str) -> None:
        self._status.stop()
        self._console.print(printable(sentence), style="red")

    def waits(self, name: str) -> None:
        """Show who is answering, until the answer or the refusal."""
        self._status.update(f"{name} is answering")
        self._status.start()


def as_text(entry: Entry) -> str:
    """A question and its answers as lines of text."""
    kind = next(key for key in ("message", "follow", "duel") if key in entry)
    asked = entry[kind] if kind == "message" else f"/{kind} {entry[kind]}"
    return printable("\n".join([f"> {asked}", *(f"{title}: {text}" for title, text, _ in _parts(entry))]))


def drawn(entry: Entry, width: int) -> Columns:
    """A question's answers as panels, as many side by side as fit into `width` columns."""
    cells = []
    for title, text, facts in _parts(entry):
        more = f"\u2026 ({len(text) - LONGEST:,} more characters)" if len(text) > LONGEST else ""
        body = Text(printable(text[:LONGEST]).strip("\n") + more or "(nothing)", overflow="fold")
        below = Text(printable(facts), "dim") if facts else None
        cells.append(
            Panel(body, title=Text(printable(title)), subtitle=below, title_align="left", subtitle_align="left")
        )
    return Columns(cells, padding=0, width=width // max(1, min(len(cells), width // NARROWEST)))


def _parts(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """(title, text, facts) of each answer; for a cascade A->B also A's draft and what B saw of it."""
    for name, answer in entry["answers"].items():
        *drafts, last = answer.get("stages", [answer])
        for draft in drafts:
            yield f"{draft['seat']} drafts", draft["text"], _read(draft)
            yield f"shown to {last['seat']}", last["saw"] or "(nothing)", ""
        cut = {"length": ", cut off", "loop": ", stopped because it repeated itself"}.get(answer["finish"], "")
        title = f"{last['seat']} answers" if drafts else name
        yield title, answer["text"], f"{_read(answer)}, {answer['tokens']} tokens{cut}"


def _read(answer: Entry) -> str:
    return "no answer" if answer["answer"] is None else f"answer {answer['answer'][:40]}"

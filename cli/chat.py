"""`lite-selfplay chat`: a question, and every seat's answer beside the base's; duels, and a seat for oneself."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lite_selfplay.errors import ConfigError, LiteSelfPlayError, RequestError, UnknownNameError
from lite_selfplay_cli import flags, talk
from lite_selfplay_cli.shown import JsonLines, Lines, Screen, Shown

if TYPE_CHECKING:
    from lite_selfplay.runs.talk.conversation import Conversation
    from lite_selfplay.runs.talk.play import Called

HELP = """a message            every speaker answers it, as a problem of the kind it was trained on
/follow TEXT         asks on: each speaker remembers the last question and its own answer
/duel [A->B] [TEXT]  A drafts, B answers after reading what the game shows it; without TEXT on the last problem
/play [ROLE|SEAT]    you take a role in the run's game, and are scored by its rules
/seat [NAME ...]     who answers: base, a seat, a cascade such as A->B; without a name lists them
/temperature [X]     0 is greedy
/tokens [N]          the cap of an answer
/plain [on|off]      whether messages reach the seats as they are, without the words of training
/save FILE           writes the conversation: .jsonl, .svg (as on the screen), or text
/help, /quit         Ctrl-C stops an answer, Ctrl-D leaves"""

COMMANDS = ("follow", "duel", "play", "seat", "temperature", "tokens", "plain", "save", "help", "quit")
PIPE_WIDTH = 110
"""Columns of a saved screen."""


def chat(
    run: talk.Run,
    seat: Annotated[
        str | None,
        typer.Option(help="Who answers, separated by commas.", metavar="NAME,...", show_default="base and every seat"),
    ] = None,
    checkpoint: talk.Checkpoint = "last",
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0, max=100)] = 0.0,
    max_completion_tokens: talk.MaxCompletionTokens = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Messages as they are, without the words of training.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which samples, at a temperature above 0.")] = 0,
    precision: talk.Precision = None,
    trust_remote_code: flags.TrustRemoteCode = None,
    unsafe_code: flags.UnsafeCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line a message on stdout.")] = False,
) -> None:
    """Speak with a run: base and every seat answer side by side, as they are sampled.

    Each message stands by itself, as a problem in the words of training; /follow asks on. /duel lets B answer after
    reading what the game shows it of A's draft. /play puts you into a seat. /help lists all commands; they work
    in a pipe, too, a line each, where the exit code is 2 if one was refused.

    Examples:

      lite-selfplay chat runs/agon-smollm2-135m-20260101-120000

      echo "What is 7+8+9?" | lite-selfplay chat runs/agon --json
    """
    from lite_selfplay.runs.talk.conversation import Conversation
    from lite_selfplay.runs.talk.speakers import speakers_of

    names = [name.strip() for name in seat.split(",")] if seat is not None else []
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are no text are shown as such, and end nothing
    with speakers_of(
        run,
        checkpoint=checkpoint,
        precision=precision,
        max_tokens=max_completion_tokens,
        trust_remote_code=bool(trust_remote_code),
        unsafe_code=bool(unsafe_code),
        progress=talk.to_stderr(),
    ) as speakers:
        talked = Conversation(speakers, speakers.alone, temperature, plain=plain, seed=seed)
        if names:
            talked.choose(names)
        shown = JsonLines() if as_json else Screen() if _is_terminal() else Lines()
        if not _Chat(talked, shown).go_on() and not shown.asks:
            raise typer.Exit(2)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


class _Chat:
    """Lines of a user's, each a message or a command."""

    def __init__(self, talked: "Conversation", shown: Shown):
        self._talked, self._shown = talked, shown
        self._problem = ""

    def go_on(self) -> bool:
        """Read and answer until the end. Whether nothing was refused."""
        well = True
        self._shown.greet(self._talked)
        while (line := self._shown.read("> ")) is not None:
            try:
                if line.strip() and not self._line(line.strip()):
                    break
            except LiteSelfPlayError as error:
                well = False
                self._shown.refuse(str(error))
            except KeyboardInterrupt:
                if not self._shown.asks or self._shown.ended:
                    raise
                self._shown.refuse("stopped")
        return well and not any(map(_failed, self._talked.entries))

    def _line(self, line: str) -> bool:
        """Do what a line says; False for leaving."""
        if not line.startswith("/"):
            self._problem = line
            self._shown.entry(self._talked.ask(line, self._shown.answering))
            return True
        name, _, rest = line[1:].partition(" ")
        if name not in COMMANDS:
            raise UnknownNameError("command", f"/{name}"[:60], [f"/{each}" for each in COMMANDS])
        if name == "quit":
            return False
        getattr(self, f"_{name}")(rest.strip())
        return True

    def _follow(self, text: str) -> None:
        self._shown.entry(self._talked.follow(text, self._shown.answering))

    def _duel(self, rest: str) -> None:
        first, _, text = rest.partition(" ")
        pair = first if "->" in first and len(first) < 60 else None
        text = (text if pair else rest).strip() or self._problem
        if not text:
            raise RequestError("a duel needs a problem: /duel TEXT")
        if pair is not None and len(self._talked.speakers.seats_of(pair)) != 2:
            raise RequestError(f"a duel is of two seats, such as A->B, not {pair}")
        self._problem = text
        self._shown.entry(self._talked.duel(text, pair, self._shown.answering))

    def _play(self, name: str) -> None:
        def answer(called: "Called") -> str:
            text = self._shown.called(called)
            if text is None:
                raise RequestError("there was no answer: the game is off")
            return text

        self._shown.entry(self._talked.play(name or None, answer, self._shown.say))

    def _seat(self, names: str) -> None:
        if names:
            self._talked.choose(names.replace(",", " ").split())
        there = ", ".join(self._talked.speakers.names)
        self._shown.say(f"{', '.join(self._talked.names)} answer, of {there}")

    def _temperature(self, text: str) -> None:
        if text:
            self._talked.temperature = _number(text, "a temperature", 0, 100)
        self._shown.say(f"temperature {self._talked.temperature:g}")

    def _tokens(self, text: str) -> None:
        most = self._talked.speakers.context - 1
        if text:
            self._talked.max_tokens = int(_number(text, "a number of tokens", 1, most))
        self._shown.say(f"at most {self._talked.max_tokens or self._talked.speakers.most_tokens} tokens")

    def _plain(self, text: str) -> None:
        if text not in ("", "on", "off"):
            raise ConfigError(f"/plain is on or off, not {text[:60]!r}")
        self._talked.plain = text == "on" if text else self._talked.plain
        self._shown.say("messages as they are" if self._talked.plain else "messages in the words of training")

    def _save(self, name: str) -> None:
        if not name:
            raise RequestError("/save takes a file")
        talk.save(Path(name).expanduser(), self._talked.entries, PIPE_WIDTH)
        self._shown.say(f"written: {name}")

    def _help(self, _: str) -> None:
        self._shown.say(HELP)


def _failed(entry: Any) -> bool:
    from lite_selfplay.runs.talk.conversation import failures

    return bool(failures(entry))


def _number(text: str, what: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ConfigError(f"{what} is from {least:g} to {most:g}, not {text[:60]!r}")
    return value

"""Where a chat is shown, and read from: an object a line, plain text, or the columns of a terminal."""

import contextlib
import importlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import typer

from lite_selfplay.training.interrupts import stopping_signals
from lite_selfplay_cli import talk

if TYPE_CHECKING:
    from lite_selfplay.runs.talk.conversation import Conversation, Entry
    from lite_selfplay.runs.talk.play import Called
    from lite_selfplay.runs.talk.reply import Reply


class Shown:
    """Where a conversation is shown. `asks`: somebody sits there; `ended`: and is sent away, by more than a Ctrl-C."""

    asks = ended = False

    def greet(self, talked: "Conversation") -> None:
        """Say who is there."""

    def read(self, mark: str) -> str | None:
        """The user's next line; None at the end."""
        return talk.read_line(sys.stdin)

    def answering(self, replies: "Sequence[Reply]", answer: Callable[[], None]) -> None:
        answer()

    def entry(self, entry: "Entry") -> None: ...

    def say(self, sentence: str) -> None: ...

    def refuse(self, sentence: str) -> None: ...

    def called(self, called: "Called") -> str | None:
        """A person's answer in a game: here the next line."""
        return self.read("")


class JsonLines(Shown):
    """An object a line, in ASCII alone."""

    def entry(self, entry: "Entry") -> None:
        typer.echo(json.dumps(entry, allow_nan=False))

    def refuse(self, sentence: str) -> None:
        typer.echo(json.dumps({"error": sentence}))


class Lines(Shown):
    """Plain text, as into a file."""

    def entry(self, entry: "Entry") -> None:
        talk.echo_lines(entry)

    def say(self, sentence: str) -> None:
        from lite_selfplay.training.progress import printable

        typer.echo(printable(sentence), err=True)

    def refuse(self, sentence: str) -> None:
        self.say(f"error: {sentence}")


class Screen(Shown):
    """A terminal: columns that grow, then stay."""

    asks = True

    def __init__(self) -> None:
        from rich.console import Console

        with contextlib.suppress(ImportError):  # not on Windows
            importlib.import_module("readline")  # from here on lines can be edited, and called back
        self.console: Console = Console(highlight=False)
        for number in stopping_signals()[1:]:
            signal.signal(number, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.ended = True
        raise KeyboardInterrupt

    def greet(self, talked: "Conversation") -> None:
        speakers = talked.speakers
        self.say(f"{speakers.target.name}, seats as of {speakers.checkpoint}: {', '.join(speakers.names)}")
        self.say(f"{', '.join(talked.names)} answer. /help lists the commands, Ctrl-D leaves.")

    def read(self, mark: str) -> str | None:
        while True:
            try:
                return input(mark)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self.ended:
                    raise
                self.console.print("\nCtrl-D or /quit leaves")

    def answering(self, replies: "Sequence[Reply]", answer: Callable[[], None]) -> None:
        from lite_selfplay_cli.columns import shown_live

        duel = len(replies) == 1 and len(replies[0].seats) > 1
        with _stoppable(replies), shown_live(self.console, replies, duel=duel):
            answer()

    def entry(self, entry: "Entry") -> None:
        from lite_selfplay_cli.columns import drawn

        self.console.print(drawn(entry, self.console.width))

    def say(self, sentence: str) -> None:
        from lite_selfplay_cli.columns import plain

        self.console.print(plain(sentence, "dim"))

    def refuse(self, sentence: str) -> None:
        from lite_selfplay_cli.columns import plain

        self.console.print(plain(sentence, "red"))

    def called(self, called: "Called") -> str | None:
        from rich.panel import Panel

        from lite_selfplay_cli.columns import plain

        title = plain(f"you are {called.role}, in the place of {called.seat}")
        self.console.print(Panel(plain(called.prompt), title=title, title_align="left"))
        self.say("your answer; an empty line ends it")
        lines: list[str] = []
        while (line := self.read("| ")) is not None and (line or not lines):
            lines.append(line)
        return "\n".join(lines).strip() or None


@contextlib.contextmanager
def _stoppable(replies: "Sequence[Reply]") -> Iterator[None]:
    """For the length of a context Ctrl-C stops these replies at their next token; a second one leaves."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        for reply in replies:
            reply.cancel()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""Who is told what a run is doing: a terminal, a notebook, or nobody.

A run speaks to one `Listener`. `Lines` turns everything into lines of text for any function that takes one, such as
`print`; the command line has a display of its own.
"""

import re
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Listener:
    """Told about a run as it happens. Every method does nothing until it is overridden."""

    def say(self, sentence: str) -> None:
        """Something worth a line."""

    def warn(self, sentence: str) -> None:
        """Something that may go wrong silently."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A stretch of work begins, in `total` parts where that is known: `training`, `cold start of A`."""

    def advance(self, done: int, note: str = "") -> None:
        """`done` parts of the phase are finished; `note` says how it stands, such as a loss."""

    def activity(self, text: str) -> None:
        """What is being done inside the phase right now: `A drafts`."""

    def tick(self) -> None:
        """Called often during long work: between tokens and between microbatches."""

    def step(self, metrics: Mapping[str, Any], exchange: Sequence[Mapping[str, Any]], line: str) -> None:
        """A training step is complete: its line of `metrics.jsonl`, one exchange out of it (rows of `episodes.jsonl`,
        an Agon draft and its challenge), and the step as one line of text."""

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        """An evaluation is complete: its name (`after cold start`), what its file in `eval/` holds, and one line."""

    def finished(self, summary: Sequence[str]) -> None:
        """The run is over: what improved, where it lies, what to try next."""


class Lines(Listener):
    """Everything as lines. During long work a line at least every `every_s` seconds says what is being done.

    Warnings go to `warn` where that is given, to `write` elsewhere.
    """

    def __init__(self, write: Callable[[str], None], every_s: float = 10.0, warn: Callable[[str], None] | None = None):
        self._write, self._every_s, self._write_warning = write, every_s, warn or write
        self._last = time.monotonic()
        self._phase, self._done = "", 0
        self._total: int | None = None
        self._activity, self._note = "", ""
        self._since = self._last

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        self._write(text)

    def say(self, sentence: str) -> None:
        self._line(sentence)

    def warn(self, sentence: str) -> None:
        self._last = time.monotonic()
        self._write_warning(f"warning: {sentence}")

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase, self._total, self._done, self._activity, self._note = name, total, 0, "", ""
        self._since = time.monotonic()
        self._line(name)

    def advance(self, done: int, note: str = "") -> None:
        self._done, self._note = done, note

    def activity(self, text: str) -> None:
        self._activity, self._since = text, time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._last >= self._every_s:
            part = f" {min(self._done + 1, self._total)} of {self._total}" if self._total else ""
            doing = self._activity or "at work"
            parts = [f"{self._phase}{part}", f"{doing} for {clock(now - self._since)}", self._note]
            self._line("  ... " + "; ".join(filter(None, parts)))

    def step(self, metrics: Mapping[str, Any], exchange: Sequence[Mapping[str, Any]], line: str) -> None:
        self._done = metrics["step"] + 1
        self._line(line)

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        self._line(f"{name}: {line}")

    def finished(self, summary: Sequence[str]) -> None:
        for sentence in summary:
            self._line(sentence)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str) -> str:
    """Text that cannot drive a terminal: without escape sequences, control, format and surrogate characters.

    Line ends of every kind become `\\n`, tabs become blanks.
    """
    text = _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)).expandtabs(4)
    return "".join(c for c in text if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def as_listener(listener: Listener | Callable[[str], None] | None) -> Listener:
    """A listener as it is, a function of lines as `Lines`, None as one that ignores everything."""
    if listener is None:
        return Listener()
    return listener if isinstance(listener, Listener) else Lines(listener)

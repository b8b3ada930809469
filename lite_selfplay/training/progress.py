"""How a run's progress is shown: on a terminal, in a notebook, or nowhere.

A run reports to one `Progress`. `PlainProgress` writes lines of text with any function that takes one, such as `print`;
the command line has a display of its own.
"""

import contextlib
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lite_selfplay.errors import LiteSelfPlayError

_ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Progress:
    """What a run reports to as it goes on. Every method does nothing until it is overridden.

    `verbose`: the line of a step holds every figure, not only those of people's concern.
    """

    verbose = False

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

    def tokens(self, done: int, most: int | None) -> None:
        """How far the activity is, called between tokens: its longest completion has `done` of at most `most` tokens.

        None where completions wait for others to end: then `done` counts how often each of those running got a token.
        """

    def tick(self) -> None:
        """Called often during long work: between tokens and between microbatches."""

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        """A training step is complete: its line of `metrics.jsonl`, and the step as one line of text."""

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        """An evaluation is complete: its name (`after cold start`), what its file in `eval/` holds, and one line."""

    def finished(self, report: Sequence[str]) -> None:
        """The run is over: what improved, where it lies, what to try next, a line each."""


class Several(Progress):
    """Passes on what it is told to several others, in their order."""

    def __init__(self, *others: Progress):
        self.verbose = any(each.verbose for each in others)
        for name in (name for name, told in vars(Progress).items() if callable(told)):
            setattr(self, name, partial(_tell, others, name))


def _tell(others: Sequence[Progress], name: str, *arguments: Any, **named: Any) -> None:
    for each in others:
        getattr(each, name)(*arguments, **named)


class OutOfTime(LiteSelfPlayError):
    """Ends work that may take only so long: see `Poll.within`."""


class Poll:
    """What long work calls often: a backend once a token, a trainer once a microbatch.

    Each call passes on a tick, and the tokens while `counting`; then it calls `stop`, which may raise.
    """

    def __init__(self, progress: Progress, stop: Callable[[], None] = lambda: None):
        self._progress, self._stop = progress, stop
        self._counting, self._done = False, 0
        self._most: int | None = None
        self._until: float | None = None

    def __call__(self) -> None:
        if self._counting:
            self._progress.tokens(self._done if self._most is None else min(self._done, self._most), self._most)
            self._done += 1
        self._progress.tick()
        self._stop()
        if self._until is not None and time.monotonic() >= self._until:
            raise OutOfTime

    @contextlib.contextmanager
    def _changed(self, **values: Any) -> Iterator[None]:
        before = dict(vars(self))
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update({name: before[name] for name in values})

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """For the length of a context calls raise OutOfTime once so many seconds are over."""
        return self._changed(_until=time.monotonic() + seconds)

    def unstopped(self) -> AbstractContextManager[None]:
        """For the length of a context calls raise nothing: for what is short and must not be left half done."""
        return self._changed(_stop=lambda: None, _until=None)

    def counting(self, most: int | None) -> AbstractContextManager[None]:
        """For the length of a context every call is a token, of at most so many (None: see `Progress.tokens`)."""
        return self._changed(_counting=True, _done=0, _most=most)


class PlainProgress(Progress):
    """Everything as lines. During long work a line at least every `every_s` seconds says what is being done.

    Warnings go to `warn` where that is given, to `write` elsewhere.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        every_s: float = 30.0,
        warn: Callable[[str], None] | None = None,
        verbose: bool = False,
    ):
        self._write, self._every_s, self._write_warning, self.verbose = write, every_s, warn or write, verbose
        self._phase, self._activity, self._tokens, self._note = "", "", "", ""
        self._total: int | None = None
        self._last = self._since = time.monotonic()
        self._first = self._latest = (self._last, 0)  # when how many parts of the phase were done

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        self._write(text)

    def say(self, sentence: str) -> None:
        self._line(sentence)

    def warn(self, sentence: str) -> None:
        self._last = time.monotonic()
        self._write_warning(f"warning: {sentence}")

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase, self._total, self._note = name, total, ""
        self._first = self._latest = (time.monotonic(), 0)
        self.activity("")
        self._line(name)

    def advance(self, done: int, note: str = "") -> None:
        self._latest, self._note = (time.monotonic(), done), note
        if not self._first[1]:  # what a resume has done before it tells nothing of the pace
            self._first = self._latest

    def activity(self, text: str) -> None:
        self._activity, self._tokens, self._since = text, "", time.monotonic()

    def tokens(self, done: int, most: int | None) -> None:
        self._tokens = how_far(done, most)

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._last >= self._every_s:
            part = f", {self._latest[1]} of {self._total} done{self._left(now)}" if self._total else ""
            doing = f"{self._activity or 'at work'} for {clock(now - self._since)}"
            parts = [f"{self._phase}{part}", ", ".join(filter(None, [doing, self._tokens])), self._note]
            self._line("  ... " + "; ".join(filter(None, parts)))

    def _left(self, now: float) -> str:
        """The time left in words, from the parts that were done since the first one; nothing where that tells none."""
        (began, first), (last, done) = self._first, self._latest
        if self._total is None or not first < done < self._total:
            return ""
        seconds = (last - began) / (done - first) * (self._total - done) - (now - last)
        return f", about {clock(max(0.0, seconds))} left"

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        self._line(line)

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        self._line(f"{name}: {line}")

    def finished(self, report: Sequence[str]) -> None:
        for sentence in report:
            self._line(sentence)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def how_far(done: int, most: int | None) -> str:
    """The arguments of `Progress.tokens` in words."""
    return f"up to {done:,} of {most:,} tokens" if most is not None else f"{done:,} token steps"


def printable(text: str) -> str:
    """Text that cannot drive a terminal: without escape sequences, control, format and surrogate characters.

    Line ends of every kind become `\\n`, tabs become blanks.
    """
    text = _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)).expandtabs(4)
    return "".join(c for c in text if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def as_progress(progress: Progress | Callable[[str], None] | None) -> Progress:
    """A `Progress` as it is, a function of lines as `PlainProgress`, None as one that ignores everything."""
    if progress is None:
        return Progress()
    return progress if isinstance(progress, Progress) else PlainProgress(progress)

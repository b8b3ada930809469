"""How a run's progress is shown: on a terminal, in a notebook, or nowhere.

A run reports to one `Progress`. `PlainProgress` writes lines of text with any function that takes one, such as `print`;
the command line has a display of its own. Inside the library, a `Monitor` carries it to all work of the run.
"""

import contextlib
import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.training.ranks import ALONE, Ranks

_ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class Progress:
    """Receives reports of a run's progress. Every method does nothing unless overridden.

    `verbose`: a step's line has every figure, not only the most important ones.
    """

    verbose = False

    def say(self, sentence: str) -> None:
        """Something worth a line."""

    def warn(self, sentence: str) -> None:
        """Something that may go wrong without an error."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase of work begins, in `total` parts if that is known: `training`, `cold start of A`."""

    def advance(self, done: int, note: str = "") -> None:
        """`done` parts of the phase are finished; `note` is a short status, such as a loss."""

    def activity(self, text: str) -> None:
        """The current activity within the phase: `A learns as drafter`."""

    def tokens(self, done: int, most: int | None) -> None:
        """Called between tokens: the activity's longest completion has `done` of at most `most` tokens.

        `most` is None if completions wait for others to end; then `done` counts the token steps.
        """

    def tick(self) -> None:
        """Called often during long work: between tokens and between microbatches."""

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        """A training step is complete: its row of `metrics.jsonl`, and a line of text."""

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        """An evaluation is complete: its name (`after cold start`), the contents of its file in `eval/`, and a line."""

    def finished(self, report: Sequence[str]) -> None:
        """The run is over: its improvements, its folder and what to try next, a line each."""


ProgressLike = Progress | Callable[[str], None] | None


class Several(Progress):
    """Forwards every call to several others, in order."""

    def __init__(self, *others: Progress):
        self.verbose = any(each.verbose for each in others)
        for name in (name for name, method in vars(Progress).items() if callable(method)):
            setattr(self, name, partial(_call_all, others, name))


def _call_all(others: Sequence[Progress], name: str, *arguments: Any, **named: Any) -> None:
    for each in others:
        getattr(each, name)(*arguments, **named)


class OutOfTime(LiteSelfPlayError):
    """Ends work with a time limit: see `Monitor.within`."""


class Monitor:
    """Follows a run or an evaluation: its work reports to `progress`, is ended by `stop`, which may raise, and is split
    over `ranks`.

    `progress` may also be a function of lines, or None. Of several processes, only the main one reports.
    """

    def __init__(self, progress: ProgressLike = None, ranks: Ranks = ALONE, stop: Callable[[], None] = lambda: None):
        self.progress, self.ranks, self.stop = as_progress(progress if ranks.main else None), ranks, stop
        self._counting, self._done, self._until = False, 0, math.inf
        self._most: int | None = None

    def poll(self) -> None:
        """Called often by long work: by a backend once a token, by a trainer once a microbatch. May raise to stop."""
        if self._counting:
            self.progress.tokens(self._done if self._most is None else min(self._done, self._most), self._most)
            self._done += 1
        self.progress.tick()
        self.stop()
        if time.monotonic() >= self._until:
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
        """A context in which `poll` raises OutOfTime once so many seconds are over."""
        return self._changed(_until=time.monotonic() + seconds)

    def unstopped(self) -> AbstractContextManager[None]:
        """A context in which `poll` does not raise: for short work that must not stop half done."""
        return self._changed(stop=lambda: None, _until=math.inf)

    def counting(self, most: int | None) -> AbstractContextManager[None]:
        """A context in which every `poll` is a token, of at most `most` (None: see `Progress.tokens`)."""
        return self._changed(_counting=True, _done=0, _most=most)


class PlainProgress(Progress):
    """Writes everything as lines; during long work at least every `every_s` seconds, with the current activity.

    Warnings go to `warn` if it is given, else to `write`.
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
        self._first = self._latest = (self._last, 0)  # a time, and the parts of the phase done by then

    def say(self, sentence: str) -> None:
        self._last = time.monotonic()
        self._write(sentence)

    def warn(self, sentence: str) -> None:
        self._last = time.monotonic()
        self._write_warning(f"warning: {sentence}")

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase, self._total, self._note = name, total, ""
        self._first = self._latest = (time.monotonic(), 0)
        self.activity("")
        self.say(name)

    def advance(self, done: int, note: str = "") -> None:
        self._latest, self._note = (time.monotonic(), done), note
        if not self._first[1]:  # parts done before a resume say nothing about the pace
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
            self.say("  ... " + "; ".join(filter(None, parts)))

    def _left(self, now: float) -> str:
        """The time left in words, from the pace since the first part; empty if it is not known."""
        (began, first), (last, done) = self._first, self._latest
        if self._total is None or not first < done < self._total:
            return ""
        seconds = (last - began) / (done - first) * (self._total - done) - (now - last)
        return f", about {clock(max(0.0, seconds))} left"

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        self.say(line)

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        self.say(f"{name}: {line}")

    def finished(self, report: Sequence[str]) -> None:
        for sentence in report:
            self.say(sentence)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def how_far(done: int, most: int | None) -> str:
    """The arguments of `Progress.tokens` in words."""
    return f"up to {done:,} of {most:,} tokens" if most is not None else f"{done:,} token steps"


def printable(text: str) -> str:
    """Text that cannot control a terminal: without escape sequences, control, format and surrogate characters.

    Line ends of every kind become `\\n`, tabs become spaces.
    """
    text = _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)).expandtabs(4)
    return "".join(c for c in text if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def as_progress(progress: ProgressLike) -> Progress:
    """A `Progress` unchanged, a function of lines as a `PlainProgress`, None as one that ignores everything."""
    if progress is None:
        return Progress()
    return progress if isinstance(progress, Progress) else PlainProgress(progress)

"""A question to a speaker, and its reply as it grows token by token."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lite_selfplay.data import Completion, Sampling, Turn
from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.tasks.base import derived_seed

Finish = Literal["stop", "length", "cancelled"]

_HALF, _MOST_HALVES = "\ufffd", 3
"""What a tokenizer gives for each of the first bytes, at most three, of a character that is not whole yet."""
_WINDOW, _OVERLAP = 24, 8
"""Tokens that are decoded anew for each further one, and how many of them stay when that is shortened: some
tokenizers write the beginning of a text in another way."""


@dataclass(frozen=True)
class Question:
    """What is asked of a speaker: `base`, a seat, a snapshot, or a cascade such as `A->B`.

    `asked` is a prompt as it stands, or a conversation; of a cascade it is the problem. `kind` is that of the problem's
    checker. `sampling` holds for each stage; its `stop` strings end the last one, and are left out of the text.
    """

    speaker: str
    asked: str | tuple[Turn, ...]
    sampling: Sampling
    seed: int = 0
    kind: str = "math"


@dataclass(frozen=True)
class Stage:
    """A seat's completion on the way to a reply. `saw`: what it was shown of the answer before; None at the first."""

    seat: str
    completion: Completion
    saw: str | None = None


class Spelling:
    """Tokens as text, in pieces that never have to be taken back.

    Held back are the bytes of a character that is not whole yet, and what may turn out to be a stop string's beginning.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()):
        self._decode, self._stops = decode, [stop for stop in stops if stop]
        self.ids: list[int] = []
        self.text, self.stopped = "", False
        self._held = ""
        self._from = self._given = 0  # decoded anew from this token; characters given out from there

    def add(self, token: int) -> str:
        """The text that a token makes certain; empty where there is none yet."""
        self.ids.append(token)
        found = self._decode(self.ids[self._from :])
        certain = len(found)
        while certain and len(found) - certain < _MOST_HALVES and found[certain - 1] == _HALF:
            certain -= 1
        piece, self._given = found[self._given : certain], max(self._given, certain)
        if certain == len(found) and len(self.ids) - self._from > _WINDOW:
            self._from = len(self.ids) - _OVERLAP
            self._given = len(self._decode(self.ids[self._from :]))
        return self._show(piece)

    def end(self) -> str:
        """What was held back, once nothing follows."""
        if self.stopped:
            return ""
        whole, known = self._decode(self.ids), self.text + self._held
        shown = self._show(whole[len(known) :] if whole.startswith(known) else "")
        if not self.stopped:
            shown, self.text, self._held = shown + self._held, self.text + self._held, ""
        return shown

    def _show(self, piece: str) -> str:
        text = self._held + piece
        found = min((place for stop in self._stops if (place := text.find(stop)) >= 0), default=None)
        self.stopped = found is not None
        shown = text[: len(text) - _beginning(text, self._stops) if found is None else found]
        self._held = "" if self.stopped else text[len(shown) :]
        self.text += shown
        return shown


def _beginning(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of a text with which a stop string begins."""
    longest = min(len(text), max(map(len, stops), default=1) - 1)
    return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)


class Reply:
    """A question and what it has brought so far; one thread answers, any other may `cancel`.

    `hear(reply, piece)` is called by the answering thread with each piece of text of the seat that is `speaking`, and
    `done(reply)` once, when `finish` or `error` is set. `saw` is what that seat was shown of the answer before,
    `seconds` how long the answer took.
    """

    def __init__(
        self,
        question: Question,
        seats: Sequence[str],
        hear: Callable[["Reply", str], None] = lambda reply, piece: None,
        done: Callable[["Reply"], None] = lambda reply: None,
    ):
        self.question, self.seats = question, tuple(seats)
        self.stages: list[Stage] = []
        self.saw: str | None = None
        self.finish: Finish | None = None
        self.error: LiteSelfPlayError | None = None
        self.seconds = 0.0
        self._hear, self._done = hear, done
        self._cancelled = threading.Event()
        self._spelling: Spelling | None = None
        self._began: float | None = None

    @property
    def speaking(self) -> str:
        """The seat whose turn it is."""
        return self.seats[min(len(self.stages), len(self.seats) - 1)]

    @property
    def text(self) -> str:
        """What the last seat has said so far."""
        return "" if self._spelling is None else self._spelling.text

    @property
    def is_last(self) -> bool:
        """Whether the seat that speaks is the last one."""
        return len(self.stages) == len(self.seats) - 1

    @property
    def key(self) -> tuple[str, float, float]:
        """Replies of one key may share a generation."""
        return (self.speaking, self.question.sampling.temperature, self.question.sampling.top_p)

    @property
    def seed(self) -> int:
        """What decides the completion of this stage."""
        return derived_seed(self.question.seed, "talk", len(self.stages))

    @property
    def is_over(self) -> bool:
        return self.finish is not None or self.error is not None

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def prompt_tokens(self) -> int:
        """Tokens that were read, those of all stages together."""
        return sum(len(stage.completion.prompt_ids) for stage in self.stages)

    @property
    def completion_tokens(self) -> int:
        """Tokens that were said, those of all stages together."""
        return sum(len(stage.completion.token_ids) for stage in self.stages)

    def cancel(self) -> None:
        """Nobody wants it any more: it ends at the next token."""
        self._cancelled.set()

    # Called by whoever answers

    def begin(self, decode: Callable[[Sequence[int]], str], saw: str | None) -> None:
        """A stage begins. `saw`: see `Stage`."""
        self._spelling = Spelling(decode, self.question.sampling.stop if self.is_last else ())
        self.saw = saw
        self._began = self._began or time.monotonic()

    def heard(self, number: int, token: int) -> bool:
        """Take token `number` of the stage; False where no other is wanted."""
        spelling, most = self._spelling, self.question.sampling.max_tokens
        assert spelling is not None
        if number == len(spelling.ids) + 1 and not spelling.stopped and number <= most:
            self._tell(spelling.add(token))
        return not (spelling.stopped or self.is_cancelled) and number < most

    def ended(self, completion: Completion) -> None:
        """The stage is over. A backend that told nothing while it sampled is caught up with here."""
        spelling, most = self._spelling, self.question.sampling.max_tokens
        assert spelling is not None
        for number, token in enumerate(completion.token_ids, 1):
            if not self.heard(number, token):
                break
        self._tell(spelling.end())
        ids = completion.token_ids[: len(spelling.ids)]
        by_itself = completion.stop in ("eos", "string") and len(completion.token_ids) <= most
        # As the whole completion is spelled, where nothing was cut off it.
        text = spelling.text if spelling.stopped or len(ids) < len(completion.token_ids) else completion.text
        spelling.text = text
        kept = replace(completion, text=text, token_ids=ids, logprobs=completion.logprobs[: len(ids)])
        last = self.is_last
        self.stages.append(Stage(self.speaking, kept, self.saw))
        if self.is_cancelled:
            self.close("cancelled")
        elif last:
            self.close("stop" if spelling.stopped or by_itself else "length")

    def close(self, finish: Finish) -> None:
        self.finish = finish
        self.seconds = 0.0 if self._began is None else time.monotonic() - self._began
        self._done(self)

    def fail(self, error: LiteSelfPlayError) -> None:
        self.error = error
        self._done(self)

    def _tell(self, piece: str) -> None:
        if piece:
            self._hear(self, piece)

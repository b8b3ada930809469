"""A conversation with a run's speakers: messages, follow-ups and duels, each an entry that can be written as JSON."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lite_selfplay.data import Sampling, Turn
from lite_selfplay.errors import RequestError
from lite_selfplay.extras.talk.speakers import ARROW, Speakers

Entry = Mapping[str, Any]
"""What was asked under `message`, `follow` or `duel`, and by speaker under `answers`: `text`, the `answer` read out of
it, `finish` (the stop reason), `tokens`, `seconds`, and of a cascade its `stages`, each with what it `saw`."""

MOST_CHARACTERS = 1_000_000


@dataclass
class Conversation:
    """Who answers, how, and what was said last.

    `names` are the speakers that answer a message. `plain`: messages reach them as they are; else each is a problem,
    asked in the words in which the seats were trained. `waits(name)` is called before each of them speaks.
    """

    speakers: Speakers
    names: Sequence[str]
    temperature: float = 0.0
    plain: bool = False
    seed: int = 0
    waits: Callable[[str], None] = lambda name: None
    _said: dict[str, tuple[Turn, ...]] = field(default_factory=dict)
    _asked: int = 0

    def choose(self, names: Sequence[str]) -> None:
        """Let these answer. Raises UnknownNameError or RequestError, with nothing changed."""
        for name in names:
            self.speakers.seats_of(name)
        self.names = tuple(dict.fromkeys(names))

    def ask(self, text: str) -> Entry:
        """Everybody's answer to a message. Raises RequestError for one that cannot be asked, Interrupted."""
        asks = {name: text if self.plain or ARROW in name else self.speakers.prompt(text) for name in self.names}
        answers = self._answered("message", text, asks)
        self._said = {
            name: (Turn("user", asks[name]), Turn("assistant", answer["text"]))
            for name, answer in answers["answers"].items()
            if ARROW not in name
        }
        return answers

    def follow(self, text: str) -> Entry:
        """Everybody's answer to a further message, after their own last answers. Raises as `ask`."""
        if not self._said:
            raise RequestError("there is nothing to follow up yet, and cascades answer one problem at a time")
        turns = {name: (*said, Turn("user", text)) for name, said in self._said.items()}
        answers = self._answered("follow", text, turns)
        for name, answer in answers["answers"].items():
            self._said[name] = (*turns[name], Turn("assistant", answer["text"]))
        return answers

    def duel(self, text: str, name: str | None = None) -> Entry:
        """One seat drafts, another answers after reading what the game shows it of the draft. Raises as `ask`."""
        if name is None and not self.speakers.cascades:
            raise RequestError(f"nobody reads another's answer in the game of {self.speakers.target.name}: no duel")
        name = name or self.speakers.cascades[0]
        if len(self.speakers.seats_of(name)) != 2:
            raise RequestError(f"a duel is of two seats, such as A->B, not {name}")
        return self._answered("duel", text, {name: text})

    def _answered(self, kind: str, text: str, asks: Mapping[str, str | tuple[Turn, ...]]) -> Entry:
        if not text.strip():
            raise RequestError("there is nothing to ask")
        if len(text) > MOST_CHARACTERS:
            raise RequestError(f"the message has {len(text):,} characters, of at most {MOST_CHARACTERS:,}")
        seed, self._asked = self.seed + self._asked, self._asked + 1
        answers = {name: self._answer(name, prompt, seed) for name, prompt in asks.items()}
        return {kind: text, "answers": answers, "temperature": self.temperature}

    def _answer(self, name: str, prompt: str | tuple[Turn, ...], seed: int) -> dict[str, Any]:
        self.waits(name)
        started = time.monotonic()
        sampling = Sampling(temperature=self.temperature, max_tokens=self.speakers.most_tokens)
        found = self.speakers.say(name, prompt, sampling, seed)
        stages = [
            {
                "seat": stage.completion.seat,
                "saw": stage.saw,
                "text": stage.completion.text,
                "answer": self.speakers.table.read_answer(stage.completion),
            }
            for stage in found
        ]
        return {
            "text": stages[-1]["text"],
            "answer": stages[-1]["answer"],
            "finish": found[-1].completion.stop,
            "tokens": sum(len(stage.completion.token_ids) for stage in found),
            "seconds": round(time.monotonic() - started, 2),
            **({"stages": stages} if len(stages) > 1 else {}),
        }

"""A conversation with a run's speakers: messages, follow-ups, duels and games, each an entry that can be written down.

Entries are JSON: `message` and `answers` by speaker; `duel` and its `stages`; `play` and what it earned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lite_selfplay.data import Sample, Sampling, Turn
from lite_selfplay.errors import RequestError
from lite_selfplay.games.presentation import as_words
from lite_selfplay.runs.talk.play import Called, Played, find_role, play
from lite_selfplay.runs.talk.reply import Question, Reply
from lite_selfplay.runs.talk.speakers import ARROW, Speakers

Entry = Mapping[str, Any]
Answering = Callable[[Sequence[Reply], Callable[[], None]], None]
"""Shows replies while it calls the function that answers them."""

MOST_CHARACTERS = 1_000_000


def unseen(replies: Sequence[Reply], answer: Callable[[], None]) -> None:
    """Answer without showing anything meanwhile."""
    answer()


@dataclass
class Conversation:
    """Who answers, how, and what was said so far.

    `names` are the speakers that answer a message. `plain`: messages reach them as they are; else each is a problem,
    asked in the words in which the seats were trained.
    """

    speakers: Speakers
    names: tuple[str, ...]
    temperature: float = 0.0
    max_tokens: int = 0
    plain: bool = False
    seed: int = 0
    entries: list[Entry] = field(default_factory=list)
    _said: dict[str, tuple[Turn, ...]] = field(default_factory=dict)
    _games: int = 0

    def choose(self, names: Sequence[str]) -> None:
        """Let these answer. Raises UnknownNameError or RequestError, with nothing changed."""
        for name in names:
            self.speakers.seats_of(name)
        self.names = tuple(dict.fromkeys(names))

    @property
    def _sampling(self) -> Sampling:
        tokens = self.max_tokens or self.speakers.most_tokens
        return Sampling(temperature=self.temperature, max_tokens=tokens)

    def ask(self, text: str, show: Answering = unseen) -> Entry:
        """Everybody's answer to a message. Raises RequestError for one that nobody can be asked."""
        _require_text(text)
        prompts = {name: text if self.plain or ARROW in name else self.speakers.prompt(text) for name in self.names}
        replies = self._answered(prompts, show)
        self._said = {
            name: (Turn("user", prompts[name]), Turn("assistant", reply.text))
            for name, reply in replies.items()
            if len(reply.seats) == 1 and reply.error is None
        }
        return self._keep({"message": text, "answers": {name: self._answer(reply) for name, reply in replies.items()}})

    def follow(self, text: str, show: Answering = unseen) -> Entry:
        """Everybody's answer to a further message, after their own last answers. Raises RequestError."""
        _require_text(text)
        if not self._said:
            raise RequestError("there is nothing to follow up yet, and cascades answer one problem at a time")
        turns = {name: (*said, Turn("user", text)) for name, said in self._said.items()}
        replies = self._answered(turns, show)
        for name, reply in replies.items():
            if reply.error is None:
                self._said[name] = (*turns[name], Turn("assistant", reply.text))
        return self._keep({"follow": text, "answers": {name: self._answer(reply) for name, reply in replies.items()}})

    def duel(self, text: str, pair: str | None = None, show: Answering = unseen) -> Entry:
        """One seat drafts, another answers after reading what the game shows it of the draft. Raises RequestError."""
        _require_text(text)
        if pair is None and not self.speakers.cascades:
            game = self.speakers.target.config.game.label if self.speakers.target.folder else "no game"
            raise RequestError(f"there is no rival in {game}: nobody reads another's answer there")
        name = pair or self.speakers.cascades[0]
        reply = self._answered({name: text}, show)[name]
        return self._keep({"duel": text, "pair": name, **self._answer(reply)})

    def play(self, name: str | None, answer: Callable[[Called], str], say: Callable[[str], None]) -> Entry:
        """Play a step of the game in a role, or in the place of a seat. Raises LiteSelfPlayError."""
        role = find_role(self.speakers, name)
        self._games += 1
        temperature = None if self.temperature == 0 else self.temperature  # greedy, a group is one answer many times
        found = play(self.speakers, role, answer, number=self.seed + self._games, temperature=temperature, say=say)
        return self._keep(_game(found))

    def _answered(self, prompts: Mapping[str, str | tuple[Turn, ...]], show: Answering) -> dict[str, Reply]:
        seed = self.seed + len(self.entries)
        replies = [
            self.speakers.reply(Question(name, asked, self._sampling, seed, self.speakers.kind))
            for name, asked in prompts.items()
        ]
        show(replies, lambda: self.speakers.answer(replies))
        return dict(zip(prompts, replies, strict=True))

    def _answer(self, reply: Reply) -> dict[str, Any]:
        """A reply as JSON. Of a cascade, `stages` holds what each seat said, and what it was shown."""
        if reply.error is not None:
            return {"error": str(reply.error)}
        stages = [
            {
                "seat": stage.seat,
                "text": stage.completion.text,
                "answer": self.speakers.table.read_answer(stage.completion),
                "saw": stage.saw,
            }
            for stage in reply.stages
        ]
        last = stages[-1] if stages else {"text": "", "answer": None}
        return {
            "text": last["text"],
            "answer": last["answer"],
            "finish": reply.finish,
            "tokens": reply.completion_tokens,
            "seconds": round(reply.seconds, 2),
            **({"stages": stages} if len(reply.seats) > 1 else {}),
        }

    def _keep(self, entry: Entry) -> Entry:
        self.entries.append({**entry, "temperature": self.temperature, "checkpoint": self.speakers.checkpoint})
        return self.entries[-1]


def failures(entry: Entry) -> list[str]:
    """What went wrong in an entry, in sentences, each once."""
    found = [entry, *entry.get("answers", {}).values()]
    return list(dict.fromkeys(each["error"] for each in found if each.get("error")))


def _require_text(text: str) -> None:
    if not text.strip():
        raise RequestError("there is nothing to ask")
    if len(text) > MOST_CHARACTERS:
        raise RequestError(f"the message has {len(text):,} characters, of at most {MOST_CHARACTERS:,}")


def _game(found: Played) -> dict[str, Any]:
    """A game with a person as JSON."""
    called, problem = found.called, found.called.problem
    return {
        "play": called.role,
        "in_place_of": called.seat,
        "prompt": called.prompt,
        "problem": None if problem is None else problem.text,
        "reference": None if problem is None or problem.answer is None else str(problem.answer),
        "you": {**_sample(found.sample, called, found), "advantage": found.advantage},
        "others": [_sample(sample, called, found) for sample in found.others],
    }


def _sample(sample: Sample, called: Called, found: Played) -> dict[str, Any]:
    verdict, meant = sample.verdict, found.game.accuracy_of(called.role)
    words = "not judged" if verdict is None else meant.yes if verdict.correct else meant.no
    if verdict is not None and not verdict.correct and verdict.reason not in ("", "wrong"):
        words += f" ({as_words(verdict.reason)})"
    return {
        "text": sample.completion.text,
        "answer": None if verdict is None else verdict.answer,
        "verdict": words,
        "well_formed": None if verdict is None else verdict.well_formed,
        "reward": sample.reward,
    }

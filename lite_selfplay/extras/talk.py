"""Answers a user's messages in a chat with a run. Its speakers are its base model, its seats (LoRA adapters) and
cascades: in `A->B`, B answers after reading A's answer. The command line displays the answers.

Prompts are those of the run's game: problems as in training, another seat's draft as the game shows it.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.data import BASE, Completion, Problem, Sampling, Turn
from lite_selfplay.errors import LiteSelfPlayError, RequestError, UnknownNameError
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.table import Reader
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.memory import TOKENS_ON_CPU
from lite_selfplay.models.silence import quiet
from lite_selfplay.models.sources import base_of
from lite_selfplay.runs.targets import Target
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.task import derived_seed
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress

if TYPE_CHECKING:
    from lite_selfplay.training.rollout import LiveTable


ARROW = "->"


@dataclass(frozen=True)
class Stage:
    """A seat's completion, alone or in a cascade. `saw`: the part of another seat's answer in its prompt, if any."""

    completion: Completion
    saw: str | None = None


@dataclass(frozen=True)
class Speakers:
    """A run's speakers (base, seats, cascades), with the model in memory. `most_tokens`: the limit of a completion;
    `context`: of a completion with its prompt. A user's problem is prompted like the run's problem `like`.
    `reads(table, answer, problem)`: the part of an answer that another seat sees, and its prompt; None: no cascades."""

    table: "LiveTable"
    target: Target
    most_tokens: int
    context: int
    like: Problem
    reads: Callable[[Reader, Completion, Problem], tuple[str, str]] | None
    _interrupts: list[Interrupts] = field(repr=False)

    @property
    def alone(self) -> tuple[str, ...]:
        """The names of speakers except cascades: the base, the seats, and seats loaded from checkpoints (`A@20`)."""
        return self.table.policies if self.target.folder else (BASE,)

    @property
    def cascades(self) -> tuple[str, ...]:
        """The names of cascades: all ordered pairs of seats (`A->B`), or `A->A` for one seat; () without `reads`."""
        if self.reads is None:
            return ()
        seats = self.target.seats
        return tuple(ARROW.join(pair) for pair in permutations(seats, 2)) or (f"{seats[0]}{ARROW}{seats[0]}",)

    def seats_of(self, name: str) -> tuple[str, ...]:
        """The seats in a speaker's name: (A, B) for `A->B`, even if the game does not use this cascade. Raises
        UnknownNameError with near names, RequestError for a cascade if seats do not read answers."""
        seats = tuple(part.strip() for part in name.split(ARROW))
        if len(seats) > 2 or not all(seat in self.alone for seat in seats):
            raise UnknownNameError("speaker", name, [*self.alone, *self.cascades])
        if len(seats) == 2 and self.reads is None:
            raise RequestError(f"{name}: in the game of {self.target.name}, seats do not read each other's answers")
        return seats

    def prompt(self, text: str) -> str:
        """The prompt for a user's problem, worded as in training."""
        return asked(self._problem(text))

    def say(self, name: str, prompt: str | Sequence[Turn], sampling: Sampling, seed: int = 0) -> list[Stage]:
        """Sample a speaker's answer to a prompt or conversation. A cascade takes a problem's text and returns both
        completions. Raises RequestError if the prompt is too long, Interrupted at the next token after a signal."""
        first, *others = self.seats_of(name)
        with Interrupts() as self._interrupts[0]:
            self._interrupts[0].poll()  # from here on, a signal takes effect at the next poll, between two tokens
            if not others:
                return [self._stage(first, prompt, sampling, seed)]
            assert self.reads is not None
            problem = self._problem(str(prompt))
            draft = self._stage(first, asked(problem), sampling, seed)
            saw, after = self.reads(self.table, draft.completion, problem)
            return [draft, self._stage(others[0], after, sampling, derived_seed(seed, "answer"), saw)]

    def _problem(self, text: str) -> Problem:
        return Problem("yours", text, kind=self.like.kind, extra=self.like.extra)

    def _stage(
        self, seat: str, prompt: str | Sequence[Turn], sampling: Sampling, seed: int, saw: str | None = None
    ) -> Stage:
        tokens = self.table.prompt_tokens(prompt)
        if tokens + sampling.max_tokens > self.context:
            raise RequestError(
                f"the prompt has {tokens:,} tokens and its completion up to {sampling.max_tokens:,}; together they may "
                f"have at most {self.context:,}"
            )
        ((completion,),) = self.table.sample(seat, [prompt], 1, sampling, [[seed]])
        return Stage(completion, saw)


@contextlib.contextmanager
def speakers_of(
    name: Path | str,
    *,
    past: Sequence[str] = (),
    precision: str | None = None,
    max_tokens: int | None = None,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    progress: Progress | None = None,
) -> Iterator[Speakers]:
    """A context with the speakers of a run folder or a base model, in memory until it closes. `past`: seats of
    checkpoints to load too (`A@20`). `max_tokens`: the limit of a completion; None: the run's, or 512. Raises
    UnknownNameError, ConfigError, ModelNotFoundError or RunFolderError."""
    shown = progress or Progress()
    target = Target.of(name, precision, 0, trust_remote_code, unsafe_code).at(past)
    target.require_adapters()
    import_first(target.config.model)
    with quiet():
        model = base_of(target.config.model, shown)
        target.require_base(model.identity)
        shown.say(f"loading {model.name} in {target.config.model.precision}")
        context = min(_positions(model.path), target.config.run.generation_tokens or TOKENS_ON_CPU)
        # Prompts may have as many tokens as the base can read, not only the run's limit, which kept training cheap.
        config = target.config.having({"run": {"max_prompt_tokens": context}})
        target = replace(target, config=config)
        tokens = min(max_tokens or target.config.run.max_completion_tokens or 512, context - 1)
        interrupts = [Interrupts()]  # replaced for every answer
        with target.table(model, tokens, shown, Poll(shown, lambda: interrupts[0].poll())) as table:
            reads = find_mode(target.mode).reads if target.folder else None
            yield Speakers(table, target, tokens, context, _example_problem(target), reads, interrupts)


def _positions(path: Path) -> int:
    """The context length in the `config.json` of a base model's folder; 2048 if it names none."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return int({**config, **config.get("text_config", {})}.get("max_position_embeddings") or 2048)


def _example_problem(target: Target) -> Problem:
    """The first problem of the run's training task, whose kind decides a prompt's wording; else an empty problem."""
    section = target.config.tasks
    if target.folder is not None and section.train is not None:
        with contextlib.suppress(LiteSelfPlayError, StopIteration):  # its data are not on this machine
            return next(iter(load_task(section.train, data_dir=section.data_dir).problems))
    return Problem("", "")


Entry = Mapping[str, Any]
"""One question of a chat: its text under `message`, `follow` or `duel`, and under `answers` each speaker's `text`, the
extracted `answer`, `finish` (stop reason), `tokens`, `seconds`, and a cascade's `stages`, with what each `saw`."""

MOST_CHARACTERS = 1_000_000


@dataclass
class Talk:
    """A chat with the speakers in `names`, which keeps each one's last turns. `plain`: messages are sent unchanged;
    else each is a problem, prompted as in training. `waits(name)` is called before each speaker answers."""

    speakers: Speakers
    names: Sequence[str]
    temperature: float = 0.0
    plain: bool = False
    seed: int = 0
    waits: Callable[[str], None] = lambda name: None
    _said: dict[str, tuple[Turn, ...]] = field(default_factory=dict)
    _asked: int = 0

    def choose(self, names: Sequence[str]) -> None:
        """Choose who answers messages. For a bad name, raises UnknownNameError or RequestError and changes nothing."""
        for name in names:
            self.speakers.seats_of(name)
        self.names = tuple(dict.fromkeys(names))

    def ask(self, text: str) -> Entry:
        """Ask the chosen speakers. Raises RequestError if the message is empty or too long, Interrupted by a signal."""
        asks = {name: text if self.plain or ARROW in name else self.speakers.prompt(text) for name in self.names}
        return self._answered("message", text, asks)

    def follow(self, text: str) -> Entry:
        """A follow-up to the last answers, for the same speakers except cascades. Raises the errors of `ask`."""
        if not self._said:
            raise RequestError("nothing to follow up: ask a question first (cascades take no follow-ups)")
        return self._answered("follow", text, {name: (*said, Turn("user", text)) for name, said in self._said.items()})

    def duel(self, text: str, name: str | None = None) -> Entry:
        """Let a cascade answer a problem: one seat drafts, another answers after reading the part that the game shows.
        `name`: `A->B`; None: the first cascade. Raises the errors of `ask`, and UnknownNameError."""
        if name is None and not self.speakers.cascades:
            raise RequestError(
                f"no duels: in the game of {self.speakers.target.name}, seats do not read each other's answers"
            )
        name = name or self.speakers.cascades[0]
        if len(self.speakers.seats_of(name)) != 2:
            raise RequestError(f"a duel needs two seats, such as A->B, not {name}")
        return self._answered("duel", text, {name: text})

    def _answered(self, kind: str, text: str, asks: Mapping[str, str | tuple[Turn, ...]]) -> Entry:
        if not text.strip():
            raise RequestError("the message is empty")
        if len(text) > MOST_CHARACTERS:
            raise RequestError(f"the message has {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed")
        seed, self._asked = self.seed + self._asked, self._asked + 1
        answers = {name: self._answer(name, prompt, seed) for name, prompt in asks.items()}
        if kind != "duel":
            self._said = {
                name: (*([Turn("user", said)] if isinstance(said, str) else said), Turn("assistant", answer["text"]))
                for (name, said), answer in zip(asks.items(), answers.values(), strict=True)
                if ARROW not in name
            }
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

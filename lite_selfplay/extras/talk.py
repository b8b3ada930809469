"""Answers a user's messages in a chat with a run. The speakers who answer are the run's base model, its seats (LoRA
adapters) and its cascades: in `A->B`, B answers after reading A's answer. The command line displays the answers. The
run's game words the prompts: a problem is prompted as in training, and another seat's draft as the game shows it."""

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
    """A completion in an answer: the only one, or one of the two of a cascade `A->B`, in which seat B answers after
    reading A's answer. `saw` is the part of A's answer that is in B's prompt; None for any other completion."""

    completion: Completion
    saw: str | None = None


@dataclass(frozen=True)
class Speakers:
    """A run's speakers, with the model in memory: base, seats (LoRA adapters), and cascades (`A->B`: B answers after
    reading A's answer). `table` samples; `target` is the run, or a base model without one. `most_tokens`: the limit of
    a completion; `context`: of prompt and completion together. `like`: a problem of the run's task; a user's problem is
    worded like it. `reads(table, answer, problem)` returns the part of an answer that the next seat reads, and its
    whole prompt; None: no cascades, since seats do not read answers. `_interrupts`: a list of one signal handler."""

    table: "LiveTable"
    target: Target
    most_tokens: int
    context: int
    like: Problem
    reads: Callable[[Reader, Completion, Problem], tuple[str, str]] | None
    _interrupts: list[Interrupts] = field(repr=False)

    @property
    def alone(self) -> tuple[str, ...]:
        """The names that answer alone: `base`, a run's seats (LoRA adapters), and seats of checkpoints (`A@20`)."""
        return self.table.policies if self.target.folder else (BASE,)

    @property
    def cascades(self) -> tuple[str, ...]:
        """The names of the cascades: `A->B` (seat B answers after reading A's answer) for each ordered pair of the
        run's evaluated seats, or `A->A` if there is one. Empty if seats do not read answers in this game."""
        if self.reads is None:
            return ()
        seats = self.target.seats
        return tuple(ARROW.join(pair) for pair in permutations(seats, 2)) or (f"{seats[0]}{ARROW}{seats[0]}",)

    def seats_of(self, name: str) -> tuple[str, ...]:
        """The seats in `name`, in the order of answering: (A,) for `A`, (A, B) for the cascade `A->B`, in which B reads
        A's answer. All names in `alone` are allowed as A and B. Raises UnknownNameError with similar names for any
        other name or more than two; RequestError for a cascade if seats do not read answers in this game."""
        seats = tuple(part.strip() for part in name.split(ARROW))
        if len(seats) > 2 or not all(seat in self.alone for seat in seats):
            raise UnknownNameError("speaker", name, [*self.alone, *self.cascades])
        if len(seats) == 2 and self.reads is None:
            raise RequestError(f"{name}: in the game of {self.target.name}, seats do not read each other's answers")
        return seats

    def prompt(self, text: str) -> str:
        """The prompt for a user's problem `text`, worded as in training."""
        return asked(self._problem(text))

    def say(self, name: str, prompt: str | Sequence[Turn], sampling: Sampling, seed: int = 0) -> list[Stage]:
        """Sample the answer of `name` (`A`, or the cascade `A->B`, in which B reads A's answer) to `prompt`. Returns
        one completion, or for a cascade A's and then B's. For a cascade `prompt` is the text of a problem, otherwise a
        whole prompt or conversation. Equal seeds give equal answers. Raises the errors of `seats_of`, RequestError if
        the prompt is too long for `context`, Interrupted after a signal (before the next token)."""
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
    """A context with the Speakers of the run folder or base model `name`, in memory until it closes. `past`: seats to
    load from checkpoints too (`A@20`: after step 20). `precision`: of the base's weights; None: the run's, or a base
    model's default. `max_tokens`: the limit of a completion; None: the run's, or 512. `trust_remote_code`: the base's
    own Python code may run. `unsafe_code`: programs written by the model may run without a sandbox. Raises
    UnknownNameError for an unknown model or seat, ConfigError if the run's configuration is invalid or needs a
    permission that is not given, ModelNotFoundError if the base is missing, RunFolderError if the run is damaged, has
    no saved adapters or was trained over another base."""
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
    """The context length in tokens in the `config.json` of a base model's folder `path`; 2048 if it names none."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return int({**config, **config.get("text_config", {})}.get("max_position_embeddings") or 2048)


def _example_problem(target: Target) -> Problem:
    """The first problem of the run's training task, which decides how a user's problem is worded. An empty problem if
    `target` is not a run or has no training task, or the task cannot be loaded on this machine."""
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
    """A chat in which the `names` (such as `A` or the cascade `A->B`) answer; it keeps the conversation with each since
    the last question. `plain`: questions are sent unchanged; else each is a problem, prompted as in training. `seed`:
    of the first message; later ones get the next numbers. `waits(name)` is called before each answer."""

    speakers: Speakers
    names: Sequence[str]
    temperature: float = 0.0
    plain: bool = False
    seed: int = 0
    waits: Callable[[str], None] = lambda name: None
    _said: dict[str, tuple[Turn, ...]] = field(default_factory=dict)
    _asked: int = 0

    def choose(self, names: Sequence[str]) -> None:
        """Choose who answers from the next question on, such as `A`, or `A->B` (B answers after reading A's answer).
        Raises UnknownNameError for an unknown name, RequestError for `A->B` if seats do not read answers in this game;
        then nothing changes."""
        for name in names:
            self.speakers.seats_of(name)
        self.names = tuple(dict.fromkeys(names))

    def ask(self, text: str) -> Entry:
        """Let all chosen names answer a new question; returns the chat's entry, with question and answers. Raises
        RequestError for a question that is empty, over a million characters or beyond the context; Interrupted on a
        signal."""
        asks = {name: text if self.plain or ARROW in name else self.speakers.prompt(text) for name in self.names}
        return self._answered("message", text, asks)

    def follow(self, text: str) -> Entry:
        """Continue all conversations since the last question (cascades have none) with the message `text`; returns the
        chat's entry, with message and answers. Raises RequestError if there is none yet, and the errors of `ask`."""
        if not self._said:
            raise RequestError("nothing to follow up: ask a question first (cascades take no follow-ups)")
        return self._answered("follow", text, {name: (*said, Turn("user", text)) for name, said in self._said.items()})

    def duel(self, text: str, name: str | None = None) -> Entry:
        """Let one seat draft an answer to the problem `text`, and another answer after reading the part of the draft
        that the game shows. Returns the chat's entry, with the problem and the answer. `name` is the pair, such as
        `A->B`; None: the first of `Speakers.cascades`. Raises RequestError if `name` is not a pair or seats do not read
        answers in this game, UnknownNameError for an unknown seat, and the errors of `ask`."""
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

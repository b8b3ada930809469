"""A chat with a run: its base model, its seats and its cascades answer a user's messages. A seat is a named LoRA
adapter. In the cascade `A->B`, seat B answers after reading seat A's answer. A user's question is taken as a problem
and put into the prompt template of the run's training problems, unless it is sent unchanged (`Talk.plain`). Follow-up
messages are sent unchanged. The command line reads the user's messages and displays the answers."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.data import BASE, Completion, Problem, Sampling
from lite_selfplay.errors import LiteSelfPlayError, RequestError, UnknownNameError
from lite_selfplay.evaluation.suites import Settings
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.table import Reader
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.chat_template import Turn
from lite_selfplay.models.memory import TOKENS_ON_CPU
from lite_selfplay.models.silence import quiet
from lite_selfplay.models.sources.folders import positions
from lite_selfplay.runs.targets import Target
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.task import derived_seed
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Monitor, Progress

if TYPE_CHECKING:
    from lite_selfplay.training.rollout import LiveTable


ARROW = "->"


Stage = tuple[Completion, str | None]
"""One completion of an answer, and what it saw of another. An answer has one completion, or two if the cascade `A->B`
gave it: seat A's completion, and then seat B's, sampled after reading A's. Only B saw something: the part of A's
completion that B's prompt contained."""


@dataclass(frozen=True)
class Speakers:
    """The base model and seats (named LoRA adapters) of a run, held in memory to answer a user's messages, alone or in
    a cascade `A->B`, in which seat B answers after reading seat A's answer.

    - `table`: the object that samples completions from the model in memory.
    - `target`: the run whose seats answer, or a base model if no run was loaded.
    - `most_tokens`: the most tokens of one completion.
    - `context`: the most tokens of a prompt and its completion together.
    - `like`: an example problem of the run's training task. Its `kind` and `extra` select the prompt template into
      which a user's problem is put.
    - `reads`: a function of the table, A's completion and the problem, which returns the part of A's completion that B
      reads, and B's whole prompt. None if seats do not read answers in the run's game. Then there are no cascades.
    - `_interrupts`: a list whose only element handles the signals that arrive during the current answer.
    """

    table: "LiveTable"
    target: Target
    most_tokens: int
    context: int
    like: Problem
    reads: Callable[[Reader, Completion, Problem], tuple[str, str]] | None
    _interrupts: list[Interrupts] = field(repr=False)

    @property
    def alone(self) -> tuple[str, ...]:
        """The names that can answer alone: `base` for the base model, each seat (LoRA adapter) of the run, and each
        loaded seat of an earlier checkpoint, such as `A@20` for seat A after step 20. Without a run only `base`."""
        return self.table.policies if self.target.folder else (BASE,)

    @property
    def cascades(self) -> tuple[str, ...]:
        """The names of the cascades, such as `A->B`, in which seat B answers after reading seat A's answer. If the
        run's game evaluates several seats, the cascades are all ordered pairs of two different ones among them. If it
        evaluates a single seat A, the only cascade is `A->A`. Empty if seats do not read answers in the run's game."""
        if self.reads is None:
            return ()
        seats = self.target.seats
        return tuple(ARROW.join(pair) for pair in permutations(seats, 2)) or (f"{seats[0]}{ARROW}{seats[0]}",)

    def seats_of(self, name: str) -> tuple[str, ...]:
        """The seats that answer under `name`, in the order of answering: `(A,)` for `A`, and `(A, B)` for the cascade
        `A->B`, in which seat B answers after reading seat A's answer. A cascade may combine any two names in the
        property `alone`, also a name with itself (`A->A`). Raises UnknownNameError, which suggests similar names, for a
        name outside `alone` or a cascade of more than two. Raises RequestError for a cascade if seats do not read
        answers in the run's game."""
        seats = tuple(part.strip() for part in name.split(ARROW))
        if len(seats) > 2 or not all(seat in self.alone for seat in seats):
            raise UnknownNameError("speaker", name, [*self.alone, *self.cascades])
        if len(seats) == 2 and self.reads is None:
            raise RequestError(f"{name}: in the game of {self.target.name}, seats do not read each other's answers")
        return seats

    def prompt(self, text: str) -> str:
        """The prompt that poses a user's problem `text` in the prompt template of the run's training problems."""
        return asked(self._problem(text))

    def say(self, name: str, prompt: str | Sequence[Turn], sampling: Sampling, seed: int = 0) -> list[Stage]:
        """Sample the answer of `name`: the base model or one seat (see the property `alone`), or a cascade `A->B`, in
        which seat B answers after reading A's answer. For a cascade, `prompt` is only the text of a problem; this
        function writes the whole prompt around it. Otherwise `prompt` is sent as it is: a text as one user message, or
        the messages of a conversation. Every completion is sampled with the settings `sampling`. Equal seeds give equal
        answers. Returns one stage, or two for a cascade: seat A's and then seat B's.

        Raises UnknownNameError for an unknown name. Raises RequestError if a prompt and `sampling.max_tokens` together
        exceed the model's context (`context`, in tokens), or if `name` is a cascade and seats do not read answers in
        the run's game. Raises Interrupted, without sampling another token, if a signal requests a stop."""
        first, *others = self.seats_of(name)
        with Interrupts() as self._interrupts[0]:
            self._interrupts[0].poll()  # from here on, a signal takes effect at the next poll, between two tokens
            if not others:
                return [self._stage(first, prompt, sampling, seed)]
            assert self.reads is not None
            problem = self._problem(str(prompt))
            draft = self._stage(first, asked(problem), sampling, seed)
            saw, after = self.reads(self.table, draft[0], problem)
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
        return completion, saw


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
    """A context manager that loads a run or a base model, and keeps it in memory as `Speakers` until the context ends.

    - `name`: the folder of a run, or the name or folder of a base model.
    - `past`: seats of earlier checkpoints to load as well, such as `A@20` for seat A after step 20. Ignored if `name`
      is a base model.
    - `precision`: the precision of the base model's weights. None means the run's precision. If `name` is a base model,
      None means `4bit`; but a model whose model card says that adapters were merged into it is loaded in the precision
      in which it was saved.
    - `max_tokens`: the most tokens of one completion. None means the run's limit, or 512 if there is none.
    - `trust_remote_code`: whether Python code that comes with the base model may run.
    - `unsafe_code`: whether programs that the model writes may run on a machine without a sandbox.
    - `progress`: receives messages while the model is loaded. None discards them.

    Raises UnknownNameError for an unknown model or seat, ModelNotFoundError if the base model's files are missing, and
    ConfigError if the run's configuration is invalid or needs a permission that was not given. Raises RunFolderError if
    the run is damaged, has no saved adapters, or was trained over another base model than the one now found under its
    name.
    """
    shown = progress or Progress()
    settings = Settings(seats=past, precision=precision, trust_remote_code=trust_remote_code, unsafe_code=unsafe_code)
    target = Target.of(name, settings, shown.warn)
    target.require_adapters()
    import_first(target.config.model)
    with quiet():
        model = target.base(shown)
        context = min(positions(model.path) or 2048, target.config.run.generation_tokens or TOKENS_ON_CPU)
        # Prompts may have as many tokens as the base can read, not only the run's limit, which kept training cheap.
        target = replace(target, config=target.config.having({"run": {"max_prompt_tokens": context}}))
        tokens = min(max_tokens or target.config.run.max_completion_tokens or 512, context - 1)
        interrupts = [Interrupts()]  # replaced for every answer
        with target.table(model, tokens, Monitor(shown, stop=lambda: interrupts[0].poll())) as table:
            reads = find_mode(target.mode).reads if target.folder else None
            yield Speakers(table, target, tokens, context, _example_problem(target), reads, interrupts)


def _example_problem(target: Target) -> Problem:
    """The first problem of the run's training task. Its kind selects the prompt template for a user's problem. Returns
    a math problem with an empty text if `target` is not a run, the run has no training task, or the task cannot be
    loaded on this machine."""
    section = target.config.tasks
    if target.folder is not None and section.train is not None:
        with contextlib.suppress(LiteSelfPlayError, StopIteration):  # its data are not on this machine
            return next(iter(load_task(section.train, data_dir=section.data_dir).problems))
    return Problem("", "")


Entry = Mapping[str, Any]
"""One message of a chat and its answers. The message is under the name of the `Talk` method that sent it, with
`message` for `ask`. `answers` has, for each name that answered, its `text`, the extracted final `answer`, `finish` (why
the completion ended), `tokens` and `seconds`. For a cascade it also has `stages`, the completions of both seats, each
with `saw`, the part of the other seat's answer in its prompt. `temperature` is the sampling temperature."""

MOST_CHARACTERS = 1_000_000


@dataclass
class Talk:
    """A chat in which all chosen names answer each question of the user (`ask`). A question starts a new conversation
    with each name that is no cascade, and further messages (`follow`) continue these conversations. A cascade answers
    questions only.

    - `speakers`: the base model and the seats (named LoRA adapters) in memory, which sample the answers.
    - `names`: the names that answer, such as seat `A`, or the cascade `A->B`, in which B answers after reading A's
      answer.
    - `temperature`: the sampling temperature of all answers. 0 is greedy decoding.
    - `plain`: whether a question is sent unchanged. False means that it is put into the prompt template of the run's
      training problems. A cascade always uses the template.
    - `seed`: the sampling seed for all answers to the user's first message. Each later message, a question or
      a follow-up, gets the next number.
    - `waits`: a function that is called with a name just before that name answers.
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
        """Choose the names that answer from the next question on, such as seat `A`, or the cascade `A->B`, in which
        seat B answers after reading A's answer. Raises UnknownNameError for an unknown name, and RequestError for a
        cascade if seats do not read answers in the run's game. After an error the earlier names remain chosen."""
        for name in names:
            self.speakers.seats_of(name)
        self.names = tuple(dict.fromkeys(names))

    def ask(self, text: str) -> Entry:
        """Send the question `text` to each of the `names`, without any earlier message. Returns the question with the
        answers. Raises RequestError if `text` is empty or longer than a million characters, or if a prompt and the
        longest allowed completion together exceed the model's context. Raises Interrupted if a signal requests a
        stop."""
        asks = {name: text if self.plain or ARROW in name else self.speakers.prompt(text) for name in self.names}
        return self._answered("message", text, asks)

    def follow(self, text: str) -> Entry:
        """Send the message `text` to all names that answered the last question, except cascades (`A->B`, in which seat
        B reads A's answer). Each gets the messages since that question, with its own answers. Returns the message with
        the new answers. Raises RequestError if there was no question yet or only cascades answered it, or if `text` is
        empty or longer than a million characters. Raises it also if one of the conversations and the longest allowed
        completion together exceed the model's context. Raises Interrupted if a signal requests a stop."""
        if not self._said:
            raise RequestError("nothing to follow up: ask a question first (cascades take no follow-ups)")
        return self._answered("follow", text, {name: (*said, Turn("user", text)) for name, said in self._said.items()})

    def duel(self, text: str, name: str | None = None) -> Entry:
        """Let one seat draft an answer to the problem `text`, and another seat answer after reading the part of the
        draft that the game shows. Returns the problem with the draft and the answer. This does not change the
        conversations that the method `follow` continues. `name` is the pair of seats: in `A->B`, seat A drafts. None
        means the first pair in `Speakers.cascades`. Raises RequestError if `name` is not a pair, if seats do not read
        answers in the run's game, or if `text` is empty, longer than a million characters or too long for the model's
        context. Raises UnknownNameError for an unknown seat, and Interrupted if a signal requests a stop."""
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
                "seat": completion.seat,
                "saw": saw,
                "text": completion.text,
                "answer": self.speakers.table.read_answer(completion),
            }
            for completion, saw in found
        ]
        return {
            "text": stages[-1]["text"],
            "answer": stages[-1]["answer"],
            "finish": found[-1][0].stop,
            "tokens": sum(len(completion.token_ids) for completion, _ in found),
            "seconds": round(time.monotonic() - started, 2),
            **({"stages": stages} if len(stages) > 1 else {}),
        }
